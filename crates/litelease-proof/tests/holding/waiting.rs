//! Waiting across connections and processes: what wakes a waiter, and what it may rely on.

use std::io::Read;
use std::process::Child;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use litelease::{ClaimResult, Litelease};
use litelease_hold::Waiter;
use litelease_hold::Wakeup;
use litelease_proof::rig::{LONG, TestFolder, acquired, eventually, worker};

const WORKER: &str = env!("CARGO_BIN_EXE_worker");

/// A waiter on a thread of its own, which tells when it has been granted the name.
fn waiting(place: &TestFolder, name: &'static str, owner: &'static str) -> mpsc::Receiver<i64> {
    let db = place.open(LONG);
    let (sender, granted) = mpsc::channel();
    thread::spawn(move || {
        let answer = db.claim_wait(name, owner, LONG, Duration::MAX).unwrap();
        sender.send(answer.acquired().unwrap().token).unwrap();
    });
    granted
}

/// Waits until a process waits at the file.
fn is_waited_for(place: &TestFolder) {
    let wakeup = place.folder.path().join("test.sqlite3-wakeup");
    eventually("it waits", || wakeup.exists().then_some(()));
}

/// How a name can become free.
type Freeing = fn(&mut Litelease, &litelease::Lease);

#[test]
fn a_waiter_is_granted_the_name_however_it_becomes_free() {
    let ways: [(&str, Freeing); 4] = [
        ("release", |db, lease| drop(db.release(lease).unwrap())),
        ("break", |db, lease| drop(db.break_lease(&lease.name).unwrap())),
        ("a release in a transaction", |db, lease| {
            let tx = db.transaction().unwrap();
            tx.release(lease).unwrap();
            tx.commit().unwrap();
        }),
        ("somebody else's statement", |db, _| {
            let free = "UPDATE litelease_resources SET owner = NULL, lease_expires_at_ms = NULL";
            db.conn().execute_batch(free).unwrap();
        }),
    ];
    for journal in ["WAL", "DELETE"] {
        for (way, free) in ways {
            let place = TestFolder::new(journal);
            let mut db = place.open(LONG);
            let lease = acquired(db.claim("x", "a", LONG));
            let granted = waiting(&place, "x", "b");
            is_waited_for(&place);
            free(&mut db, &lease);
            let token = granted.recv_timeout(Duration::from_secs(60)).unwrap();
            assert!(token > lease.token, "{way} in {journal}");
        }
    }
}

#[test]
fn a_release_through_the_crate_notifies_waiters_after_its_commit() {
    let place = TestFolder::new("WAL");
    let mut db = place.open(LONG);
    let waiter = Waiter::at(&place.file);
    let generation = waiter.generation();
    acquired(db.claim("x", "a", LONG));
    let _ = db.renew_by_owner("x", "a", LONG).unwrap();
    assert_eq!(waiter.generation(), generation, "nothing has become free");
    db.release_by_owner("x", "a").unwrap();
    assert_ne!(waiter.generation(), generation, "release");

    let generation = waiter.generation();
    acquired(db.claim("x", "a", LONG));
    let tx = db.transaction().unwrap();
    tx.release_by_owner("x", "a").unwrap();
    assert_eq!(waiter.generation(), generation, "not before the COMMIT");
    tx.commit().unwrap();
    assert_ne!(waiter.generation(), generation, "commit");

    let generation = waiter.generation();
    acquired(db.claim("x", "a", LONG));
    let _ = db.break_lease("x").unwrap();
    assert_ne!(waiter.generation(), generation, "break");
}

#[test]
fn a_wakeup_that_is_made_late_is_found_by_a_handle_that_looked_for_it_in_vain() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    acquired(db.claim("x", "a", LONG));
    db.release_by_owner("x", "a").unwrap();
    let waiter = Waiter::at(&place.file);
    let generation = waiter.generation();
    eventually("a notification", || {
        acquired(db.claim("x", "a", LONG));
        db.release_by_owner("x", "a").unwrap();
        (waiter.generation() != generation).then_some(())
    });
}

#[test]
fn a_ring_or_a_write_ends_a_nap_long_before_its_time() {
    for journal in ["WAL", "DELETE"] {
        for way in ["notify", "write"] {
            let place = TestFolder::new(journal);
            let db = place.open(LONG);
            let lease = acquired(db.claim("x", "a", LONG));
            let file = place.file.clone();
            let (sender, ready) = mpsc::channel();
            let napper = thread::spawn(move || {
                let waiter = Waiter::at(&file);
                let generation = waiter.generation();
                sender.send(()).unwrap();
                let begin = Instant::now();
                waiter.wait_for_change(generation, Duration::from_secs(60));
                begin.elapsed()
            });
            ready.recv().unwrap();
            thread::sleep(Duration::from_millis(50)); // so that it mostly naps already
            let mut sleeper = Some(napper);
            // Once is enough, except when it came before the wait. So few that the file itself is
            // not written, which a checkpoint does, but only its -wal.
            for _ in 0..300 {
                match way {
                    "notify" => drop(db.release(&lease).unwrap()),
                    _ => db.conn().execute_batch("PRAGMA user_version = 7").unwrap(),
                }
                thread::sleep(Duration::from_millis(100));
                if sleeper.as_ref().is_some_and(|napper| napper.is_finished()) {
                    break;
                }
            }
            let napped = sleeper.take().unwrap().join().unwrap();
            assert!(napped < Duration::from_secs(30), "{way} in {journal}: {napped:?}");
        }
    }
}

#[test]
fn a_ring_between_looking_and_napping_is_not_lost() {
    // The wakeup alone: nothing is written, so nothing else could end the wait.
    let place = TestFolder::new("WAL");
    place.open(LONG);
    let waiting = Wakeup::create(&place.file).unwrap();
    let notifying = Wakeup::find(&place.file).unwrap();
    for round in 0..200 {
        let generation = waiting.generation();
        notifying.notify();
        let begin = Instant::now();
        waiting.wait(generation, Duration::from_secs(60));
        assert!(begin.elapsed() < Duration::from_secs(30), "round {round}");
    }
}

#[test]
fn a_holder_that_dies_is_succeeded_when_its_lease_is_over_and_not_before() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let mut holder = worker(WORKER, &["claim", "x", "a", "700"], &place.file);
    let mut told = String::new();
    holder.stdout.take().unwrap().read_to_string(&mut told).unwrap();
    holder.wait().unwrap(); // it is gone, and has not released
    let lease = db.at(0).inspect("x").unwrap().unwrap();
    let next = db.claim_wait("x", "b", LONG, Duration::from_secs(60)).unwrap();
    assert!(matches!(next, ClaimResult::Acquired(next) if next.token == 2));
    let late = litelease::now_ms() - lease.expires_at_ms;
    assert!(late >= 0, "granted {} ms before the end", -late);
}

#[test]
fn waiters_without_a_wakeup_get_there_too() {
    // Something else has the name of the wakeup, so no process can make one.
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    std::fs::create_dir(place.folder.path().join("test.sqlite3-wakeup")).unwrap();
    let lease = acquired(db.claim("x", "a", LONG));
    let granted = waiting(&place, "x", "b");
    thread::sleep(Duration::from_millis(50));
    db.release(&lease).unwrap();
    assert_eq!(granted.recv_timeout(Duration::from_secs(60)), Ok(2));
}

#[test]
fn a_file_that_is_replaced_under_a_waiter_is_noticed() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    acquired(db.claim("x", "a", LONG));
    let other = place.open(LONG);
    let waiter = thread::spawn(move || other.claim_wait("x", "b", LONG, Duration::MAX));
    is_waited_for(&place);
    std::fs::rename(&place.file, place.folder.path().join("elsewhere")).unwrap();
    let refused = waiter.join().unwrap().unwrap_err();
    assert!(matches!(refused, litelease::HoldError::FileMoved(_)), "{refused}");
}

#[test]
fn many_processes_that_wait_are_all_served_one_at_a_time() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let lease = acquired(db.claim("x", "first", LONG));
    let start = |number: usize| {
        worker(WORKER, &["wait-cycle", "x", &number.to_string(), "20"], &place.file)
    };
    let mut waiters: Vec<Child> = (0..6).map(start).collect();
    is_waited_for(&place);
    db.release(&lease).unwrap();
    let mut tokens = Vec::new();
    for waiter in &mut waiters {
        let mut told = String::new();
        waiter.stdout.take().unwrap().read_to_string(&mut told).unwrap();
        assert!(waiter.wait().unwrap().success());
        tokens.extend(told.lines().map(|line| line.parse::<i64>().unwrap()));
    }
    tokens.sort_unstable();
    assert_eq!(tokens, (2..=121).collect::<Vec<i64>>(), "each grant once, none lost");
}

#[test]
fn what_is_handed_over_to_a_waiter_at_its_last_moment_is_the_waiters() {
    let place = TestFolder::new("WAL");
    let mut holder = place.open(LONG);
    let lease = acquired(holder.claim("x", "a", LONG));
    let db = place.open(LONG);
    let waiting = thread::spawn(move || {
        db.request_wait("x", "b", LONG, LONG, Duration::from_millis(1500)).unwrap()
    });
    eventually("a request", || holder.requested("x").unwrap());
    // While this transaction is open, the waiter gives up, and waits for the lock to withdraw its
    // request.
    let tx = holder.transaction().unwrap();
    thread::sleep(Duration::from_millis(1900));
    let handed = tx.hand_over(&lease, LONG).unwrap().transferred().unwrap();
    tx.commit().unwrap();
    // Otherwise the name would have no holder, and could not be claimed before it expires.
    let waited = waiting.join().unwrap().acquired().expect("what was handed over");
    assert_eq!((waited.token, waited.owner), (handed.token, "b".to_owned()));
}
