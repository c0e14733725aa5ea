//! `litelease move`: tokens grow, the file grants nothing, holders keep theirs, and a crash after
//! any step is repaired by the same command.

use std::process::Stdio;
use std::thread;

use libc::SIGKILL;
use litelease::{ClaimResult, Error, Lease, Litelease, RenewResult};
use litelease_cluster::Cluster;
use litelease_proof::command::{Desk, Run, outcome};
use litelease_proof::etcd::{self, Etcd};
use litelease_proof::postgres::{self, Postgres};
use litelease_proof::rig::{LONG, acquired, eventually};
use litelease_proof::server::{Client, POOL, Server};
use litelease_serve::{AccessKey, ClusterAccess, FileAccess};
use serde_json::{Value, json};

use crate::service::{Engine, Servers};

fn start(desk: &Desk, url: &str, words: &[&str]) -> Run {
    let words = [&["move", "--to", url][..], words].concat();
    let mut command = desk.command(&words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Run { child: command.spawn().unwrap() }
}

#[track_caller]
fn granted(cluster: &Cluster, name: &str) -> Lease {
    cluster.claim(name, "there", LONG).unwrap().acquired().expect("nobody has it there")
}

/// The floor of an engine that may have no tables yet.
fn floor(cluster: &Cluster) -> i64 {
    let _ = cluster.bootstrap();
    cluster.engine().load(&[]).unwrap().floor.epoch.floor
}

#[track_caller]
fn grants_nothing(db: &Litelease) {
    for name in ["held", "free", "new"] {
        match db.claim(name, "here", LONG) {
            Err(Error::TokenExhausted { .. }) | Ok(ClaimResult::Busy(_)) => {}
            other => panic!("{name}: {other:?}"),
        }
    }
}

fn is_kept(db: &Litelease, lease: &Lease) -> bool {
    matches!(db.renew(lease, LONG).unwrap(), RenewResult::Renewed(_))
}

/// Kills the command after its first step and after its second one, and repeats it.
fn is_repeated_after_a_crash(url: &str) {
    let desk = Desk::new();
    let db = desk.db();
    let cluster = Cluster::open(url).unwrap();
    let held = acquired(db.claim_above("held", "here", LONG, 41));
    let newest = (3 << 32) + 5;
    db.release(&acquired(db.claim_above("free", "here", LONG, newest - 1))).unwrap();

    // The second step waits for a writer of the file, so that the first one is all that was done.
    db.conn().execute_batch("BEGIN IMMEDIATE").unwrap();
    let run = start(&desk, url, &[]);
    eventually("the first step", || floor(&cluster) == 4 << 32);
    run.signal(SIGKILL);
    run.end();
    db.conn().execute_batch("COMMIT").unwrap();
    assert_eq!(db.retirement().unwrap(), None);
    // Until the second step the file grants, and one that leaves the epoch moves the floor again.
    let later = acquired(db.claim_above("free", "here", LONG, 4 << 32));
    assert_eq!(later.token, (4 << 32) + 1);

    // The third step waits for holders, so that two are done.
    let run = start(&desk, url, &[]);
    eventually("the second step", || db.retirement().unwrap().is_some());
    assert_eq!(floor(&cluster), 5 << 32);
    run.signal(SIGKILL);
    run.end();
    grants_nothing(&db);
    assert!(is_kept(&db, &held) && is_kept(&db, &later));

    // To another engine it cannot go any more.
    let elsewhere = outcome(&desk.run(&["move", "--to", "etcd://127.0.0.1:1/other"]));
    assert!(elsewhere.0 == 69 && elsewhere.2.contains("was moved to"), "{elsewhere:?}");

    // The third step ends when the last holder does.
    let run = start(&desk, url, &[]);
    db.release(&later).unwrap();
    grants_nothing(&db);
    assert!(is_kept(&db, &held), "a holder keeps its lease to the end");
    db.release(&held).unwrap();
    let (code, errors) = run.end();
    assert_eq!(code, 0, "{errors}");
    grants_nothing(&db);
    for name in ["held", "free", "new"] {
        assert!(granted(&cluster, name).token > later.token);
    }

    // Once more changes nothing.
    let (code, said, _) = outcome(&desk.run(&["move", "--to", url, "--json"]));
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, said["floor"].as_i64()), (0, Some(5 << 32)));
    assert_eq!(floor(&cluster), 5 << 32);
    // A program that still uses the file learns where its leases went.
    for words in [&["claim", "x"][..], &["run", "x", "--", "true"], &["claim", "x", "--json"]] {
        let (code, _, errors) = outcome(&desk.run(words));
        assert_eq!(code, 69, "{words:?}: {errors}");
        assert!(errors.contains("it was moved to") && errors.contains(url), "{words:?}: {errors}");
    }
    // No command says that a name is free there, or serves the file.
    for words in
        [&["status"][..], &["who", "x"], &["wait", "x"], &["serve", "--listen", "127.0.0.1:0"]]
    {
        let (code, said, errors) = outcome(&desk.run(words));
        assert_eq!(code, 69, "{words:?}: {said} {errors}");
        assert!(errors.contains("moved to") && errors.contains(url), "{words:?}: {errors}");
    }
    let (code, said, _) = outcome(&desk.run(&["doctor"]));
    assert!(code == 0 && said.contains("the leases went to") && said.contains(url), "{said}");
}

#[test]
fn a_file_is_moved_to_etcd_and_a_crash_after_any_step_is_repaired_by_repeating_it() {
    if etcd::is_installed() {
        is_repeated_after_a_crash(&Etcd::shared().url("moved"));
    }
}

#[test]
fn a_file_is_moved_to_postgresql_and_a_crash_after_any_step_is_repaired_by_repeating_it() {
    if postgres::is_installed() {
        is_repeated_after_a_crash(&Postgres::shared().url("moved"));
    }
}

#[test]
fn a_file_whose_engine_does_not_answer_is_not_closed() {
    let desk = Desk::new();
    let db = desk.db();
    acquired(db.claim("x", "a", LONG));
    let (code, _, errors) = outcome(&desk.run(&["move", "--to", "etcd://127.0.0.1:1"]));
    assert!(code == 69 && errors.contains("the engine did not take it"), "{code}: {errors}");
    assert_eq!(db.retirement().unwrap(), None);
    assert_eq!(acquired(db.claim("y", "a", LONG)).token, 1);
}

#[test]
fn a_move_that_breaks_ends_every_lease_and_slot_and_shows_what_it_does() {
    if !etcd::is_installed() {
        return;
    }
    let etcd = Etcd::shared();
    let url = etcd.url("moved-by-force");
    let desk = Desk::new();
    let db = desk.db();
    let first = acquired(db.claim("first", "a", LONG));
    acquired(db.claim("second", "b", LONG));
    db.pools().register("pool", 1).unwrap();
    db.pools().borrow("pool", LONG).unwrap().unwrap();
    db.queue("mail").send("x").unwrap();
    let words = ["move", "--to", &url, "--break", "--leave-behind"];
    for (words, named) in [(&words[..4], "1 pools"), (&words[..], "1 items")] {
        let (code, _, errors) = outcome(&desk.run(words));
        assert!(code == 69 && errors.contains(named), "{code}: {errors}");
        assert!(is_kept(&db, &first), "nothing was done");
    }
    db.queue("mail").delete().unwrap();
    let (code, said, errors) = outcome(&desk.run(&words));
    assert_eq!(code, 0, "{errors}");
    assert!(said.contains("moved to") && said.contains(&url), "{said}");
    for part in ["step 1 of 3", "step 2 of 3", "first: broken", "second: broken", "1 slots"] {
        assert!(errors.contains(part), "{part}: {errors}");
    }
    assert!(!is_kept(&db, &first));
    assert_eq!(db.slots_in_use().unwrap(), 0);
    assert!(granted(&Cluster::open(&url).unwrap(), "first").token > i64::from(u32::MAX));
}

/// Each of these was moved without a word, and broke a promise or lost something afterwards.
#[test]
fn what_cannot_be_moved_is_refused_with_what_to_do_and_nothing_is_changed() {
    if !etcd::is_installed() {
        return;
    }
    let etcd = Etcd::shared();
    let url = etcd.url("not-moved");
    let desk = Desk::new();
    let db = desk.db();
    let lease = acquired(db.claim("x", "a", LONG));
    let refused = |words: &[&str], advice: &str| {
        let (code, _, errors) = outcome(&desk.run(&[&["move", "--to", &url][..], words].concat()));
        assert!(code == 69 && errors.contains("nothing was moved"), "{code}: {errors}");
        assert!(errors.contains(advice), "{advice}: {errors}");
        assert_eq!(db.retirement().unwrap(), None);
        assert!(is_kept(&db, &lease), "{errors}");
    };

    // Its guard would accept the last holder in the file for ever, and refuse the next one.
    db.conn().execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY)").unwrap();
    db.guard("orders", "x", &litelease::Guard::by_connection()).unwrap();
    refused(&[], "litelease guard remove orders");
    db.unguard("orders", None).unwrap();
    // It may also come while the file is about to be retired.
    let above = etcd.url("guarded-late");
    db.conn().execute_batch("BEGIN IMMEDIATE").unwrap();
    let run = start(&desk, &above, &[]);
    eventually("the first step", || floor(&Cluster::open(&above).unwrap()) > 0);
    db.guard("orders", "x", &litelease::Guard::by_connection()).unwrap();
    db.conn().execute_batch("COMMIT").unwrap();
    let (code, errors) = run.end();
    assert!(code == 69 && errors.contains("litelease guard remove orders"), "{code}: {errors}");
    assert_eq!(db.retirement().unwrap(), None);
    db.unguard("orders", None).unwrap();

    assert!(matches!(
        db.checkpoint(("x", lease.token), "7").unwrap(),
        litelease::CheckpointResult::Stored
    ));
    refused(&[], "1 checkpoints");
    refused(&[], "--leave-behind");

    let cluster = Cluster::open(&url).unwrap();
    // A command that was broken still works for a while, and its successor would begin already.
    let run = desk.start(&["y"], "echo > began; while [ ! -e go ]; do sleep 0.02; done");
    desk.read("began");
    refused(&["--leave-behind", "--break"], "which still runs");
    std::fs::write(desk.folder.path().join("go"), "").unwrap();
    assert_eq!(run.end(), (0, String::new()));
    assert_eq!(floor(&cluster), 0, "the engine was left alone, too");

    let (code, _, errors) =
        outcome(&desk.run(&["move", "--to", &url, "--leave-behind", "--break"]));
    assert_eq!(code, 0, "{errors}");
}

/// Clients of the file's server are sent to the new place, where a service runs already. The move
/// is killed after each step, and repeated.
#[test]
fn a_served_file_is_moved_to_an_engine_with_a_running_service_and_its_clients_are_sent_there() {
    for (engine, found) in Engine::all() {
        let url = found.url("moved_served");
        let there = Servers::start(&url, 1, &["--open"]);
        there.wait_for_all();
        let desk = Desk::new();
        let db = desk.db();
        let (key, other) = (AccessKey::generate().unwrap(), AccessKey::generate().unwrap());
        let server = Server::start(&desk.file, &[]);
        let access = FileAccess::new(&db);
        assert!(access.add("ci", &key.hash(), "claim:*\nobserve:*", None).unwrap());
        let mut client = server.client();
        let claim =
            |name: &str, wait: f64| json!({ "name": name, "owner": "a", "ttl": 60, "wait": wait });
        let held = client.ask("POST", "/v1/claim", &claim("held", 0.0), "").unwrap();
        assert_eq!(held.status, 200, "{engine}: {held:?}");
        let grant = held.json()["grant"].clone();
        let mut waiter = server.client();
        let wait = claim("held", 60.0);
        let waits = thread::spawn(move || waiter.ask("POST", "/v1/claim", &wait, "").unwrap());

        // The engine has a key of that name: it is said before the file is closed.
        let keys = ClusterAccess::new(Cluster::open(&url).unwrap());
        assert!(keys.add("ci", &other.hash(), "claim:*", None).unwrap());
        let (code, _, errors) = outcome(&desk.run(&["move", "--to", &url]));
        assert!(code == 69 && errors.contains("another access key called ci"), "{code}: {errors}");
        assert_eq!(db.retirement().unwrap(), None);
        assert!(keys.remove("ci").unwrap());

        let run = start(&desk, &url, &[]);
        eventually("the second step", || db.retirement().unwrap().is_some());
        run.signal(SIGKILL);
        run.end();
        let gone = waits.join().unwrap();
        assert!(gone.status == 410 && gone.error().contains(&url), "{engine}: {gone:?}");
        for (method, path, body) in [
            ("POST", "/v1/claim", claim("free", 0.0)),
            ("POST", "/v1/claim", claim("held", 0.0)),
            ("POST", "/v1/queue/send", json!({ "queue": "q", "body": "x" })),
            ("POST", "/v1/transfer", json!({ "grant": grant, "new_owner": "b", "ttl": 60 })),
            ("GET", "/v1/leases?name=free", Value::Null),
        ] {
            let gone = client.ask(method, path, &body, "").unwrap();
            assert!(gone.status == 410 && gone.error().contains(&url), "{path}: {gone:?}");
        }
        // A client without a key does not get the address.
        let mut stranger = Client::new(server.address);
        for (method, path, body, status) in [
            ("POST", "/v1/claim", claim("free", 0.0), 401),
            ("GET", "/v1/leases?name=free", Value::Null, 401),
            ("PUT", &*format!("/l/{POOL}"), json!({ "count": 1 }), 410),
        ] {
            let refused = stranger.ask(method, path, &body, "").unwrap();
            assert_eq!(refused.status, status, "{engine}: {path}: {refused:?}");
            assert!(!refused.body.contains(&url), "{engine}: {path}: {refused:?}");
        }
        let mut renew = |ttl: i64| {
            client.ask("POST", "/v1/renew", &json!({ "grant": grant, "ttl": ttl }), "").unwrap()
        };
        assert_eq!(renew(60).status, 200, "{engine}: a holder keeps its lease to the end");

        // The service there goes on above all of the file, while the move is not done.
        let mut new = there.client(0);
        let granted = new.ask("POST", "/v1/claim", &claim("free", 0.0), "").unwrap();
        assert!(granted.json()["token"].as_i64() > Some(1 << 32), "{engine}: {granted:?}");
        let run = start(&desk, &url, &[]);
        let released = client.ask("POST", "/v1/release", &json!({ "grant": grant }), "").unwrap();
        assert_eq!(released.status, 200);
        let (code, errors) = run.end();
        assert_eq!(code, 0, "{engine}: {errors}");
        let (code, said, errors) = outcome(&desk.run(&["move", "--to", &url]));
        assert!(code == 0 && said.contains("moved to"), "{engine}: {errors}");
        let moved = keys.list().unwrap();
        assert!(moved.iter().any(|row| row.name == "ci" && row.hash == key.hash()), "{engine}");
        assert!(server.stop());
    }
}

/// A command that runs under the file's lease while it is moved works on to its end.
#[test]
fn a_run_in_the_file_goes_on_while_the_file_is_moved_and_its_successor_is_refused() {
    if !etcd::is_installed() {
        return;
    }
    let etcd = Etcd::shared();
    let url = etcd.url("moved-under-run");
    let desk = Desk::new();
    let script = "echo > began; while [ ! -e go ]; do sleep 0.02; done; litelease renew x";
    let run = desk.start(&["--ttl", "1s", "x"], script);
    desk.read("began");
    let db = desk.db();
    let waits = desk.start(&["x"], "true");
    let moving = start(&desk, &url, &[]);
    eventually("the second step", || db.retirement().unwrap().is_some());
    // It was once said that nothing was moved.
    let (code, _, errors) = outcome(&desk.run(&["move", "--to", &url, "--break"]));
    assert!(code == 69 && errors.contains("which still runs"), "{code}: {errors}");
    assert!(errors.contains("grants nothing any more"), "{errors}");
    assert!(!errors.contains("nothing was moved"), "{errors}");
    let end_ms = || db.inspect("x").unwrap().unwrap().expires_at_ms;
    let before_ms = end_ms();
    eventually("a renewal", || end_ms() > before_ms);
    std::fs::write(desk.folder.path().join("go"), "").unwrap();
    assert_eq!(run.end(), (0, String::new()));
    let (code, errors) = waits.end();
    assert!(code == 69 && errors.contains("it was moved to"), "{code}: {errors}");
    assert_eq!(moving.end().0, 0);
}
