//! Releases and transfers that were stored and whose answer was lost: they are found again also
//! after the next grant, and nothing that another client did is taken for them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use litelease_cluster::engine::{Change, Loaded, LoadedRow, RowChange, Stored, StoredRow};
use litelease_cluster::{
    ClaimResult, Cluster, Engine, EngineFacts, Error, HoldOptions, Lease, MemoryEngine, Options,
    ReleaseResult, RenewResult, Result, System, TransferResult,
};
use litelease_hold::{HeldGrant, Loss};
use litelease_proof::etcd::{self, Etcd};
use litelease_proof::postgres::{self, Postgres};

const TTL: Duration = Duration::from_secs(60);

/// When others come in.
#[derive(Clone, Copy, PartialEq)]
enum Others {
    Before,
    After,
}

/// What others do around one store, whose answer is lost.
type Accident = (Others, Box<dyn FnOnce() + Send>);

/// An engine that loses the answer of one store.
struct LosesAnswer {
    engine: Arc<dyn Engine>,
    accident: Mutex<Option<Accident>>,
}

impl Engine for LosesAnswer {
    fn load(&self, names: &[&str]) -> Result<Loaded> {
        self.engine.load(names)
    }

    fn store(&self, seen: &Loaded, change: &Change) -> Result<Stored> {
        match self.accident.lock().unwrap().take() {
            None => return self.engine.store(seen, change),
            Some((Others::Before, act)) => {
                act();
                let _ = self.engine.store(seen, change)?;
            }
            Some((Others::After, act)) => {
                assert_ne!(self.engine.store(seen, change)?, Stored::Conflict);
                act();
            }
        }
        Err(Error::CommitUnknown("planned".into()))
    }

    fn store_each(&self, seen: &Loaded, rows: &[StoredRow], time: Duration) -> Result<Vec<Stored>> {
        self.engine.store_each(seen, rows, time)
    }

    fn list(&self) -> Result<Loaded> {
        self.engine.list()
    }

    fn forget(&self, seen: &[LoadedRow]) -> Result<u64> {
        self.engine.forget(seen)
    }

    fn wait_for_change(&self, name: &str, version: i64, time: Duration) {
        self.engine.wait_for_change(name, version, time);
    }

    fn load_rows(&self, prefix: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.engine.load_rows(prefix)
    }

    fn commit_rows(&self, name: &str, token: i64, rows: &[RowChange]) -> Result<Stored> {
        self.engine.commit_rows(name, token, rows)
    }

    fn most_rows(&self, new_tokens: bool) -> usize {
        self.engine.most_rows(new_tokens)
    }

    fn facts(&self) -> Result<EngineFacts> {
        self.engine.facts()
    }
}

/// A client whose answers get lost, and another one.
struct Pair {
    engine: Arc<LosesAnswer>,
    client: Cluster,
    other: Cluster,
}

impl Pair {
    fn on(engine: Arc<dyn Engine>) -> Self {
        let options = Options { patience: TTL, ..Options::default() };
        let with = |engine| Cluster::with(engine, Arc::new(System), options);
        let loses = Arc::new(LosesAnswer { engine: engine.clone(), accident: Mutex::default() });
        Pair { client: with(loses.clone()), other: with(engine), engine: loses }
    }

    /// Claims a name, and loses the answer of the next store.
    fn claim(
        &self,
        name: &str,
        when: Others,
        act: impl FnOnce(&Cluster) + Send + 'static,
    ) -> Lease {
        let lease = self.client.claim(name, "a", TTL).unwrap().acquired().unwrap();
        let other = self.other.clone();
        *self.engine.accident.lock().unwrap() = Some((when, Box::new(move || act(&other))));
        lease
    }
}

/// Another client claims the name and renews its lease.
fn claim_and_renew(other: &Cluster, name: &str) {
    let lease = other.claim(name, "b", TTL).unwrap().acquired().unwrap();
    assert!(matches!(other.renew(&lease, TTL).unwrap(), RenewResult::Renewed(_)));
}

fn grant_of(lease: &Lease) -> HeldGrant {
    let Lease { name, owner, token, .. } = lease.clone();
    HeldGrant { name, owner, token, ttl: TTL, secret: String::new() }
}

fn check(engine: Arc<dyn Engine>) {
    let pair = Pair::on(engine);
    let unknown = |answer: Option<Error>| matches!(answer, Some(Error::CommitUnknown(_)));

    let lease = pair.claim("released", Others::After, |other| claim_and_renew(other, "released"));
    let released = pair.client.release(&lease).unwrap();
    assert!(matches!(released, ReleaseResult::Released { token: 1, .. }), "{released:?}");

    let lease = pair.claim("handed on", Others::After, |other| {
        let renewed = other.renew_by_owner("handed on", "b", TTL).unwrap();
        assert!(matches!(renewed, RenewResult::Renewed(_)));
    });
    let handed = pair.client.transfer(&lease, "b", TTL).unwrap();
    assert!(matches!(&handed, TransferResult::Transferred(to) if to.token == 2), "{handed:?}");

    // An operator's break is not taken for the release that came too late.
    let lease = pair.claim("broken", Others::Before, |other| {
        let _ = other.break_lease("broken").unwrap();
        claim_and_renew(other, "broken");
    });
    assert!(unknown(pair.client.release(&lease).err()));

    // Who has the name after the next grant tells nothing about the one before it.
    let lease = pair.claim("twice", Others::After, |other| {
        let next = other.claim("twice", "b", TTL).unwrap().acquired().unwrap();
        let _ = other.release(&next).unwrap();
        claim_and_renew(other, "twice");
    });
    assert!(unknown(pair.client.release(&lease).err()));

    // A payload stays beside the row when another client is granted the name: it shows nothing.
    let other = pair.other.clone();
    *pair.engine.accident.lock().unwrap() = Some((
        Others::After,
        Box::new(move || {
            let _ = other.break_lease("valued").unwrap();
            claim_and_renew(&other, "valued");
        }),
    ));
    let options = HoldOptions::new(TTL).value("mine");
    let held = pair.client.hold("valued", options);
    assert!(held.is_err(), "{held:?}");

    // A hold asks once, and is told at the next try of its keeper.
    let lease = pair.claim("held", Others::After, |other| claim_and_renew(other, "held"));
    let mut rows = pair.client.kept_rows();
    assert!(rows.release(&grant_of(&lease), Duration::ZERO).is_err_and(|loss| loss.may_pass()));
    assert_eq!(rows.release(&grant_of(&lease), Duration::ZERO), Ok(()));

    let lease = pair.claim("hold broken", Others::Before, |other| {
        let _ = other.break_lease("hold broken").unwrap();
    });
    assert!(rows.release(&grant_of(&lease), Duration::ZERO).is_err_and(|loss| loss.may_pass()));
    assert_eq!(rows.release(&grant_of(&lease), Duration::ZERO), Err(Loss::Broken));
}

#[test]
fn a_release_or_transfer_is_found_after_the_next_grant_in_memory() {
    check(Arc::new(MemoryEngine::new()));
}

#[test]
fn a_release_or_transfer_is_found_after_the_next_grant_on_etcd() {
    if etcd::is_installed() {
        let etcd = Etcd::shared();
        check(Cluster::open(&etcd.url("lost-answers")).unwrap().engine().clone());
    }
}

#[test]
fn a_release_or_transfer_is_found_after_the_next_grant_on_postgresql() {
    if postgres::is_installed() {
        let postgres = Postgres::shared();
        let cluster = Cluster::open(&postgres.url("lost_answers")).unwrap();
        cluster.bootstrap().unwrap();
        check(cluster.engine().clone());

        // The functions in the schema keep what the next client looks for, too.
        let pair = Pair::on(cluster.engine().clone());
        // The server runs as long as a test has it, and not only this client.
        let server = postgres.clone();
        let lease = pair.claim("by SQL", Others::After, move |_| {
            let claim = "SELECT lost_answers.claim('by SQL', 'b', 60000)";
            assert_eq!(server.sql(claim), "2");
        });
        let released = pair.client.release(&lease).unwrap();
        assert!(matches!(released, ReleaseResult::Released { token: 1, .. }), "{released:?}");
    }
}

/// A claim was stored, and its answer lost. Then it was released in a full etcd, which deletes the
/// row. The claim found no row, as before it was sent, and was sent again: token 1 came twice.
#[test]
fn a_claim_whose_row_was_deleted_in_a_full_etcd_does_not_have_its_token_again() {
    if !etcd::is_installed() {
        return;
    }
    let etcd = Arc::new(Etcd::start_small());
    let pair = Pair::on(Cluster::open(&etcd.url("")).unwrap().engine().clone());
    let engine = pair.engine.engine.clone();
    // The first claim of all stores the floor, too, which would tell.
    let _ = pair.other.claim("before", "b", TTL).unwrap();
    let absent = engine.load(&["x"]).unwrap();
    let (member, other) = (etcd.clone(), pair.other.clone());
    let delete = move || {
        member.fill();
        let released = other.release_by_owner("x", "a").unwrap();
        assert!(matches!(released, ReleaseResult::Released { token: 1, .. }), "{released:?}");
        member.make_room();
    };
    *pair.engine.accident.lock().unwrap() = Some((Others::After, Box::new(delete)));
    let claimed = pair.client.claim("x", "a", TTL);
    assert!(matches!(claimed, Err(Error::CommitUnknown(_))), "{claimed:?}");

    // The engine itself knows that the row has been there since.
    let row = StoredRow { token: 1, tenure: None, since_ms: 1, at_ms: 1, attempt: 1, ended: 0 };
    let change = Change { rows: vec![("x".into(), row)], ..Change::default() };
    assert_eq!(engine.store(&absent, &change), Ok(Stored::Conflict));
    assert_eq!(pair.other.claim("x", "b", TTL).unwrap().acquired().unwrap().token, 2);
}

/// A claim and a renewal whose answers were lost found their attempt in the row, although a fence
/// had ended the grant meanwhile: two clients believed in one name.
#[test]
fn a_grant_whose_answer_was_lost_is_not_told_after_a_fence_has_ended_it() {
    let pair = Pair::on(Arc::new(MemoryEngine::new()));
    let fence = |other: &Cluster| assert!(other.restore_fence().unwrap() > 1);
    let other = pair.other.clone();
    *pair.engine.accident.lock().unwrap() = Some((Others::After, Box::new(move || fence(&other))));
    if let Ok(ClaimResult::Acquired(lease)) = pair.client.claim("claimed", "a", TTL) {
        let current = pair.other.inspect("claimed").unwrap();
        assert_eq!(current.map(|current| current.token), Some(lease.token));
    }
    let lease = pair.claim("renewed", Others::After, fence);
    let renewed = pair.client.renew(&lease, TTL);
    assert!(!matches!(renewed, Ok(RenewResult::Renewed(_))), "{renewed:?}");
}
