//! One suite for holds in every place: a file, a server, and an engine. What a place cannot do is a
//! list here, which can only shrink.

use std::time::Duration;

use litelease::Litelease;
use litelease_client::Client;
use litelease_cluster::{Cluster, MemoryEngine};
use litelease_hold::{Held, Loss, short_owner};
use litelease_proof::rig::{LONG, TestFolder, eventually};
use litelease_proof::server::Server;

/// A ttl whose first renewal comes after 20 s.
const MINUTE: Duration = Duration::from_secs(60);

/// Long enough for a busy machine to hear of a change, and shorter than the time to a renewal.
const BEFORE_RENEWAL: Duration = Duration::from_secs(15);

/// How other programs see and change the same leases.
enum Others {
    File(Box<Litelease>),
    Engine(Cluster, MemoryEngine),
}

/// Where leases are held.
struct Spot {
    shown: &'static str,
    holder: Holder,
    others: Others,
    /// Kept as long as the leases are used.
    _folder: Option<TestFolder>,
    _server: Option<Server>,
}

enum Holder {
    File(Box<Litelease>),
    Server(Box<Client>),
    Engine(Cluster),
}

impl Spot {
    fn all() -> [Spot; 3] {
        let file = TestFolder::new("WAL");
        let (holder, others) = (Box::new(file.open(LONG)), Box::new(file.open(LONG)));
        let file = Spot {
            shown: "a file",
            holder: Holder::File(holder),
            others: Others::File(others),
            _folder: Some(file),
            _server: None,
        };

        let folder = TestFolder::new("WAL");
        let server = Server::start(&folder.file, &[]);
        let key = server.access.trim().rsplit(' ').next().unwrap().to_owned();
        let client = Client::with_key(&format!("http://{}", server.address), &key).unwrap();
        let server = Spot {
            shown: "a server",
            holder: Holder::Server(Box::new(client)),
            others: Others::File(Box::new(folder.open(LONG))),
            _folder: Some(folder),
            _server: Some(server),
        };

        let engine = MemoryEngine::new();
        let engine = Spot {
            shown: "an engine",
            holder: Holder::Engine(Cluster::on(engine.clone())),
            others: Others::Engine(Cluster::on(engine.clone()), engine),
            _folder: None,
            _server: None,
        };
        [file, server, engine]
    }

    fn hold(&self, name: &str, ttl: Duration, wait: Duration) -> Result<Held, String> {
        match &self.holder {
            Holder::File(db) => {
                let options = litelease::HoldOptions::new(ttl).wait(wait);
                db.hold(name, options).map(Held::from).map_err(|error| error.to_string())
            }
            Holder::Server(client) => {
                let options = litelease_client::HoldOptions::new(ttl).wait(wait);
                client.hold(name, options).map(Held::from).map_err(|error| error.to_string())
            }
            Holder::Engine(cluster) => {
                let options = litelease_cluster::HoldOptions::new(ttl).wait(wait);
                cluster.hold(name, options).map_err(|error| error.to_string())
            }
        }
    }

    fn owner(&self, name: &str) -> Option<String> {
        match &self.others {
            Others::File(db) => db.owner(name).unwrap(),
            Others::Engine(cluster, _) => cluster.owner(name).unwrap(),
        }
    }

    fn break_lease(&self, name: &str) {
        match &self.others {
            Others::File(db) => drop(db.break_lease(name).unwrap()),
            Others::Engine(cluster, _) => drop(cluster.break_lease(name).unwrap()),
        }
    }

    fn claim(&self, name: &str, owner: &str) -> i64 {
        let claimed = match &self.others {
            Others::File(db) => db.claim(name, owner, MINUTE).unwrap(),
            Others::Engine(cluster, _) => cluster.claim(name, owner, MINUTE).unwrap(),
        };
        claimed.acquired().unwrap().token
    }

    /// Hands a lease to another owner, as its own holder could.
    fn transfer(&self, held: &Held, to: &str) {
        match &self.others {
            Others::File(db) => drop(db.transfer(held, to, MINUTE).unwrap()),
            Others::Engine(cluster, _) => drop(cluster.transfer(held, to, MINUTE).unwrap()),
        }
    }

    /// Lets another owner have the grant under the same token: a backup was restored, and that
    /// owner was granted the token that was given before.
    fn restore(&self, name: &str, owner: &str) {
        match &self.others {
            Others::File(db) => {
                let sql = "UPDATE litelease_resources SET owner = ?2 WHERE name = ?1";
                assert_eq!(db.conn().execute(sql, [name, owner]).unwrap(), 1);
            }
            Others::Engine(_, engine) => engine.edit(|rows| {
                let (version, row) = rows.rows.get_mut(name).unwrap();
                *version += 1;
                row.tenure.as_mut().unwrap().owner = owner.into();
            }),
        }
    }
}

#[test]
fn a_hold_excludes_others_in_the_same_words_and_is_released_when_it_is_dropped() {
    for spot in Spot::all() {
        let held = spot.hold("x", MINUTE, Duration::ZERO).unwrap();
        assert_eq!(spot.owner("x").as_deref(), Some(held.owner()), "{}", spot.shown);
        let busy = spot.hold("x", MINUTE, Duration::ZERO).unwrap_err();
        let text = format!("\"x\" is held by {} (token 1)", short_owner(held.owner()));
        assert_eq!(busy, text, "{}", spot.shown);
        held.check().unwrap();
        drop(held);
        eventually("it is released", || spot.owner("x").is_none());
        let next = spot.hold("x", MINUTE, Duration::ZERO).unwrap();
        assert_eq!(next.token(), 2, "{}", spot.shown);
        next.release().unwrap();
        assert_eq!(spot.owner("x"), None, "{}", spot.shown);
    }
}

#[test]
fn a_ttl_that_cannot_be_kept_alive_is_refused_in_the_same_words_and_claims_nothing() {
    let text = "a ttl of 100ms is too short to be kept alive: give more than 100 ms";
    for spot in Spot::all() {
        let refused = spot.hold("x", Duration::from_millis(100), Duration::ZERO);
        assert_eq!(refused.unwrap_err(), text, "{}", spot.shown);
        assert_eq!(spot.owner("x"), None);
    }
}

#[test]
fn a_hold_that_waits_is_granted_the_name_when_it_is_released() {
    for spot in Spot::all() {
        let first = spot.hold("x", MINUTE, Duration::ZERO).unwrap();
        let release = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            first.release()
        });
        let next = spot.hold("x", MINUTE, LONG).unwrap();
        assert_eq!(next.token(), 2, "{}", spot.shown);
        release.join().unwrap().unwrap();
    }
}

#[test]
fn a_break_is_reported_before_the_next_renewal_and_the_hold_stays_lost() {
    for spot in Spot::all() {
        let held = spot.hold("x", MINUTE, Duration::ZERO).unwrap();
        spot.break_lease("x");
        let lost = held.lost().wait_timeout(BEFORE_RENEWAL);
        assert_eq!(lost, Some(Loss::Broken), "{}", spot.shown);
        assert_eq!(held.check().unwrap_err().reason, Loss::Broken, "{}", spot.shown);
        // What comes after it is left alone.
        let next = spot.claim("x", "b");
        assert!(held.release().is_err(), "{}", spot.shown);
        assert_eq!((next, spot.owner("x").as_deref()), (3, Some("b")), "{}", spot.shown);
    }
}

#[test]
fn a_transfer_is_reported_with_its_new_owner() {
    for spot in Spot::all() {
        let held = spot.hold("x", MINUTE, Duration::ZERO).unwrap();
        spot.transfer(&held, "b");
        let lost = held.lost().wait_timeout(BEFORE_RENEWAL);
        let successor = Loss::Superseded { by: 2, owner: Some("b".into()) };
        assert_eq!(lost, Some(successor), "{}", spot.shown);
    }
}

/// After a restore, another owner can be granted the token of the holder again. Only the owner text
/// tells the two apart.
#[test]
fn a_holder_whose_token_was_granted_again_after_a_restore_is_lost() {
    for spot in Spot::all() {
        // The server keeps what it has granted in memory, too, and refuses a file that was
        // restored while it runs.
        if matches!(spot.holder, Holder::Server(_)) {
            continue;
        }
        let held = spot.hold("x", MINUTE, Duration::ZERO).unwrap();
        spot.restore("x", "b");
        let lost = held.lost().wait_timeout(Duration::from_secs(40)).unwrap();
        let is_replaced = matches!(lost, Loss::FileReplaced | Loss::Forgotten);
        assert!(is_replaced, "{}: {lost}", spot.shown);
        drop(held);
        assert_eq!(spot.owner("x").as_deref(), Some("b"), "{}", spot.shown);
    }
}
