//! Held leases and the Tracker on real files, through the public API.
//!
//! A test program of its own: one test forks, and one counts the threads of this process.

use std::fs;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use litelease::RequestResult;
use litelease::rusqlite::{Connection, OpenFlags};
use litelease::{
    ClaimResult, Error, Held, HoldError, HoldOptions, Identity, Litelease, LiteleaseRef, Loss,
    Tracker,
};
use litelease_proof::rig::{LONG, TestFolder, acquired, eventually, memory, now_ms, worker};

const WORKER: &str = env!("CARGO_BIN_EXE_worker");
/// Short enough to see the end of, long enough for a slow machine to renew in time.
const SHORT: Duration = Duration::from_secs(3);
/// For a hold whose end is told by the file, long before its next renewal.
const CALM: Duration = Duration::from_secs(30);

fn hold(db: &Litelease, name: &str, ttl: Duration) -> Held {
    db.hold(name, HoldOptions::new(ttl)).unwrap()
}

/// The reason of a hold that is about to be lost.
fn loss_of(held: &Held) -> Loss {
    held.lost().wait_timeout(Duration::from_secs(60)).expect("it is lost")
}

#[test]
fn a_hold_outlives_its_ttl_and_is_released_when_it_is_dropped() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let held = hold(&db, "books", 2 * SHORT);
    let first = held.lease();
    while now_ms() <= first.expires_at_ms {
        held.check().unwrap();
        let owner = db.owner("books").unwrap();
        assert_eq!(owner.as_deref(), Some(held.owner()), "live all the time");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(held.lease().expires_at_ms > first.expires_at_ms);
    drop(held);
    assert_eq!((db.owner("books").unwrap(), db.token("books").unwrap()), (None, Some(1)));
}

#[test]
fn a_hold_is_released_on_panic() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _held = hold(&db, "books", LONG);
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    assert_eq!(db.owner("books").unwrap(), None);
}

#[test]
fn every_hold_is_somebody_else_and_says_which_process_it_is() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let (one, other) = (hold(&db, "books", LONG), hold(&db, "maps", LONG));
    assert_ne!(one.owner(), other.owner());
    let who = Identity::parse(one.owner()).unwrap();
    assert_eq!(who.pid, std::process::id());
    assert!((now_ms() - who.since_ms().unwrap()).abs() < 3_600_000);
    match db.hold("books", HoldOptions::new(LONG).wait(Duration::from_millis(50))) {
        Err(HoldError::Busy(current)) => assert_eq!(current.owner, one.owner()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_operators_break_is_told_with_its_reason_and_the_successor_left_alone() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let held = hold(&db, "books", CALM);
    let (sender, told) = mpsc::channel();
    held.on_lost(move |lost| sender.send(lost.clone()).unwrap());
    let _ = db.break_lease("books").unwrap();
    assert_eq!(loss_of(&held), Loss::Broken);
    let lost = told.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!((lost.name.as_str(), &lost.reason), ("books", &Loss::Broken));
    assert_eq!(held.check(), Err(lost));
    assert_eq!(held.trusted_for(), Duration::ZERO);
    acquired(db.claim("books", "successor", LONG));
    drop(held);
    assert_eq!(db.owner("books").unwrap().as_deref(), Some("successor"));
}

#[test]
fn a_loss_that_the_file_tells_of_is_noticed_long_before_the_next_renewal() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    // The next renewal is due in twenty minutes.
    let held = hold(&db, "books", LONG);
    let _ = db.break_lease("books").unwrap();
    assert_eq!(loss_of(&held), Loss::Broken);

    let held = hold(&db, "books", LONG);
    let statement = "UPDATE litelease_resources SET owner = 'b', token = token + 1";
    place.connect(LONG).execute_batch(statement).unwrap();
    assert_eq!(loss_of(&held), Loss::Superseded { by: 4, owner: Some("b".into()) });

    let held = hold(&db, "maps", LONG);
    fs::remove_file(&place.file).unwrap();
    assert_eq!(loss_of(&held), Loss::FileReplaced);
}

#[test]
fn a_hold_is_told_who_superseded_it_or_that_it_was_released_elsewhere() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let held = hold(&db, "books", CALM);
    let _ = db.transfer_by_owner("books", held.owner(), "b", LONG).unwrap();
    assert_eq!(loss_of(&held), Loss::Superseded { by: 2, owner: Some("b".into()) });

    let held = hold(&db, "maps", CALM);
    db.release_by_owner("maps", held.owner()).unwrap();
    assert_eq!(loss_of(&held), Loss::ReleasedElsewhere);
}

#[test]
fn the_holders_own_long_transaction_is_named_and_told_in_time() {
    for journal in ["WAL", "DELETE"] {
        let place = TestFolder::new(journal);
        let mut db = place.open(LONG);
        let held = hold(&db, "books", SHORT);
        let tx = db.transaction().unwrap();
        let expiry = tx.inspect("books").unwrap().unwrap().expires_at_ms;
        let reason = loss_of(&held);
        // A machine that was too busy to tell in time has also been too busy to ask.
        eprintln!("{journal}: told {} ms before the end", expiry - now_ms());
        assert_eq!(reason, Loss::BlockedByWriter { pid: Some(std::process::id()) }, "{journal}");
        assert!(reason.to_string().contains("renew inside them"), "{reason}");
        tx.rollback().unwrap();
    }
}

#[test]
fn a_transaction_that_outlasts_the_ttl_keeps_the_hold_by_renewing_inside_it() {
    let place = TestFolder::new("WAL");
    let mut db = place.open(LONG);
    let held = hold(&db, "books", SHORT);
    let tx = db.transaction().unwrap();
    let expiry = held.lease().expires_at_ms;
    while now_ms() <= expiry {
        held.renew_in(&tx).unwrap();
        thread::sleep(Duration::from_millis(100));
    }
    held.renew_in(&tx).unwrap();
    tx.commit().unwrap();
    held.check().unwrap();
    assert_eq!(held.lost().wait_timeout(Duration::ZERO), None);
    // And the keeper goes on from there.
    let expiry = held.lease().expires_at_ms;
    eventually("a renewal after the transaction", || {
        (held.lease().expires_at_ms > expiry).then_some(())
    });
}

#[test]
fn a_renewal_inside_a_transaction_that_does_not_commit_counts_for_nothing() {
    let place = TestFolder::new("WAL");
    let mut db = place.open(LONG);
    let held = hold(&db, "books", LONG);
    let before = held.lease();
    let tx = db.transaction().unwrap();
    held.renew_in(&tx).unwrap();
    assert_eq!(held.lease(), before, "not before the COMMIT");
    tx.rollback().unwrap();
    assert_eq!(held.lease(), before);

    // A savepoint that the holder rolls back takes the renewal with it, although the transaction
    // commits.
    let tx = db.transaction().unwrap();
    tx.conn().execute_batch("SAVEPOINT mine").unwrap();
    held.renew_in(&tx).unwrap();
    tx.conn().execute_batch("ROLLBACK TO mine").unwrap();
    tx.commit().unwrap();
    assert_eq!(held.lease(), before);

    thread::sleep(Duration::from_millis(2)); // later by the clock of the row
    let tx = db.transaction().unwrap();
    held.renew_in(&tx).unwrap();
    tx.commit().unwrap();
    assert!(held.lease().expires_at_ms > before.expires_at_ms);
}

#[test]
fn renewing_in_a_transaction_of_another_file_is_refused() {
    let (place, elsewhere) = (TestFolder::new("WAL"), TestFolder::new("WAL"));
    let db = place.open(LONG);
    let held = hold(&db, "books", LONG);
    let mut other = elsewhere.open(LONG);
    let tx = other.transaction().unwrap();
    assert!(matches!(held.renew_in(&tx), Err(HoldError::OtherFile)));
}

#[test]
fn what_cannot_be_held_is_refused_and_leaves_nothing_behind() {
    let in_memory = memory();
    let refused = in_memory.hold("books", HoldOptions::new(LONG)).unwrap_err();
    assert!(matches!(refused, HoldError::InMemory), "{refused}");
    let waited = in_memory.claim_wait("books", "a", LONG, Duration::ZERO);
    assert!(matches!(waited, Err(HoldError::InMemory)));

    let place = TestFolder::new("WAL");
    let conn = place.connect(LONG);
    let db = LiteleaseRef::new(&conn);
    db.bootstrap().unwrap();
    for begin in ["BEGIN", "BEGIN IMMEDIATE", "SAVEPOINT mine"] {
        conn.execute_batch(begin).unwrap();
        let refused = db.hold("books", HoldOptions::new(LONG)).unwrap_err();
        assert!(matches!(refused, HoldError::InTransaction), "{begin}: {refused}");
        let waited = db.claim_wait("books", "a", LONG, Duration::MAX);
        assert!(matches!(waited, Err(HoldError::InTransaction)), "{begin}");
        conn.execute_batch("ROLLBACK").unwrap();
    }
    for ttl in [0, 1, 100] {
        let refused = db.hold("books", HoldOptions::new(Duration::from_millis(ttl))).unwrap_err();
        assert!(matches!(refused, HoldError::TtlTooShort(_)), "{refused}");
    }
    assert_eq!(db.token("books").unwrap(), None);
}

#[test]
fn a_file_that_is_deleted_or_replaced_under_a_hold_is_noticed() {
    for replace in [false, true] {
        let place = TestFolder::new("WAL");
        let db = place.open(LONG);
        let held = hold(&db, "books", CALM);
        fs::rename(&place.file, place.folder.path().join("elsewhere")).unwrap();
        if replace {
            place.open(LONG);
        }
        assert_eq!(loss_of(&held), Loss::FileReplaced, "replaced: {replace}");
        let refused = db.hold("maps", HoldOptions::new(LONG)).unwrap_err();
        assert!(matches!(refused, HoldError::FileMoved(_)), "{refused}");
    }
}

#[test]
fn a_forked_process_has_no_hold_and_harms_nobody() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let held = hold(&db, "books", LONG);
    // SAFETY: the copy calls what a careless program would, and ends without unwinding into the
    // test.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut code = 0;
        code |= i32::from(!matches!(held.check(), Err(lost) if lost.reason == Loss::Forked));
        let another = db.hold("maps", HoldOptions::new(LONG));
        code |= i32::from(!matches!(another, Err(HoldError::Forked))) << 1;
        drop(held);
        // SAFETY: ends the copy at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `status` is ours to write to.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:x}");
    held.check().unwrap();
    assert_eq!(
        db.owner("books").unwrap().as_deref(),
        Some(held.owner()),
        "not released by the copy"
    );
}

#[test]
fn what_a_forked_process_commits_stays_when_its_parent_closes_the_file() {
    // The connections that the parent keeps open for itself were open at the fork. SQLite's list of
    // open files was copied, its locks were not: the copy took no lock, and the parent's close
    // deleted the log under it.
    for kind in ["hold", "slot", "session", "shards", "cached"] {
        let place = TestFolder::new("WAL");
        drop(place.open(LONG));
        let mut parent = worker(WORKER, &["fork-commits", kind], &place.file);
        let mut told = String::new();
        parent.stdout.take().unwrap().read_to_string(&mut told).unwrap();
        assert!(parent.wait().unwrap().success() && told == "0\n", "{kind}: {told}");
        let count = "SELECT count(*) FROM notes";
        let rows = place.connect(LONG).query_row(count, [], |row| row.get::<_, i64>(0));
        assert_eq!(rows, Ok(21), "{kind}");
    }
}

#[test]
fn many_holds_of_many_files_are_kept_by_one_thread_and_let_go() {
    let places = [TestFolder::new("WAL"), TestFolder::new("DELETE")];
    let dbs = places.each_ref().map(|place| place.open(LONG));
    let holds: Vec<Held> = (0..100)
        .map(|number| hold(&dbs[number % 2], &number.to_string(), Duration::from_secs(10)))
        .collect();
    // The thread that kept the holds of another test may be about to end.
    eventually("one thread keeps them all", || {
        let threads = fs::read_dir("/proc/self/task").unwrap().filter(|task| {
            let name = task.as_ref().unwrap().path().join("comm");
            fs::read_to_string(name).is_ok_and(|name| name.trim() == "litelease keepe")
        });
        threads.count() == 1
    });
    drop(holds);
    for db in &dbs {
        assert!(db.list().unwrap().iter().all(|listed| listed.tenure.is_none()));
    }
}

#[test]
fn a_hold_dropped_while_the_file_is_locked_is_released_when_it_no_longer_is() {
    let place = TestFolder::new("WAL");
    let mut db = place.open(LONG);
    let held = hold(&db, "books", LONG);
    let tx = db.transaction().unwrap();
    drop(held);
    assert!(tx.owner("books").unwrap().is_some());
    tx.rollback().unwrap();
    eventually("the release", || db.owner("books").unwrap().is_none().then_some(()));
}

#[test]
fn a_program_that_writes_in_a_loop_does_not_make_a_short_hold_lost() {
    // With a rollback journal the file is free for some microseconds between two commits. The
    // keeper looked at it a few times per twentieth of the ttl, and never found it free.
    let place = TestFolder::new("DELETE");
    let db = place.open(LONG);
    let held = hold(&db, "books", Duration::from_secs(5));
    let mut writer = worker(WORKER, &["write-loop"], &place.file);
    writer.stdout.take().unwrap().read_exact(&mut [0; 7]).unwrap();
    let expiry = held.lease().expires_at_ms;
    eventually("a renewal", || {
        assert_eq!(held.check(), Ok(()));
        (held.lease().expires_at_ms > expiry).then_some(())
    });
    drop(writer.stdin.take());
    assert!(writer.wait().unwrap().success());
}

#[test]
fn a_tracker_keeps_its_file_when_the_working_directory_changes() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    let mut child = Command::new(WORKER)
        .args(["lock-moving", "locks.sqlite3", "books"])
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = String::new();
    child.stdout.take().unwrap().read_to_string(&mut told).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(told, "TrackerIsLocked\n", "a second lock after the working directory has changed");
    assert!(!other.join("locks.sqlite3").exists());
}

#[test]
fn a_locked_tracker_does_not_tell_the_token_that_unlocks_it() {
    let folder = tempfile::tempdir().unwrap();
    let tracker = Tracker::new(folder.path().join("locks.sqlite3")).unwrap();
    let token = tracker.lock_it("books", Tracker::EXPIRE).unwrap();
    // Where another program locked, the owner text may be nothing but a token.
    let other = "f".repeat(32);
    let db = Litelease::open_own(folder.path().join("locks.sqlite3")).unwrap();
    acquired(db.claim("maps", &other, LONG));
    for (name, secret) in [("books", &token), ("maps", &other)] {
        let error = tracker.lock_it(name, Tracker::EXPIRE).unwrap_err();
        let texts = [error.to_string(), format!("{error:?}")];
        assert!(!texts.concat().contains(&secret[..]), "{texts:?}");
    }
    let error = tracker.lock_it("books", Tracker::EXPIRE).unwrap_err().to_string();
    assert!(error.contains(&std::process::id().to_string()), "but who has it: {error}");
}

#[test]
fn a_tracker_refuses_a_file_with_live_locks_of_another_tracker() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.sqlite3");
    let other = rusqlite::Connection::open(&path).unwrap();
    let made = "CREATE TABLE locks (name TEXT PRIMARY KEY, lock TEXT, lock_at TEXT, expire_at TEXT);
        INSERT INTO locks VALUES ('free', NULL, NULL, NULL), ('maps', 'fd3c', '2001-01-01T00:00:00+00:00',
            '2001-01-01T00:01:00+00:00')";
    other.execute_batch(made).unwrap();
    let tracker = Tracker::new(&path).unwrap();
    let lock = tracker.lock("maps", Tracker::EXPIRE).expect("that lock is over");
    drop(lock);
    let live = "UPDATE locks SET lock = 'fd3c', lock_at = '2026-01-01T00:00:00.190501+00:00',
        expire_at = '2999-01-01T00:00:00.190501+00:00' WHERE name = 'free'";
    other.execute_batch(live).unwrap();
    let error = tracker.lock_it("books", Tracker::EXPIRE).unwrap_err();
    assert_eq!(error.kind(), "ForeignLocks");
    assert!(error.to_string().contains("Tracker.import_from"), "{error}");
}

#[test]
fn a_tracker_makes_everything_when_it_is_first_needed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/er/locks.sqlite3");
    let tracker = Tracker::new(&path).unwrap();
    assert!(path.parent().unwrap().is_dir() && !path.exists());
    tracker.unlock_it("books", "nothing is locked").unwrap();
    assert!(!path.exists(), "unlocking makes nothing");
    let token = tracker.lock_it("books", Tracker::EXPIRE).unwrap();
    assert!(token.len() == 32 && token.bytes().all(|byte| byte.is_ascii_hexdigit()));
    match tracker.lock_it("books", Tracker::EXPIRE) {
        Err(HoldError::TrackerIsLocked { name, owner, until }) => {
            assert_eq!(name, "books");
            assert!(owner.contains(&std::process::id().to_string()), "{owner}");
            assert!(until > now_ms());
        }
        other => panic!("{other:?}"),
    }
    for not_current in ["0".repeat(32).as_str(), "", &token[..31]] {
        tracker.unlock_it("books", not_current).unwrap();
        assert!(tracker.lock_it("books", Tracker::EXPIRE).is_err(), "{not_current:?} unlocked it");
    }
    tracker.unlock_it("books", &token).unwrap();
    assert_ne!(tracker.lock_it("books", Tracker::EXPIRE).unwrap(), token);
}

#[test]
fn a_tracker_lock_ends_after_its_time_and_its_old_token_unlocks_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let tracker = Tracker::new(folder.path().join("locks.sqlite3")).unwrap();
    let old = tracker.lock("books", Duration::from_millis(30)).unwrap();
    let new =
        eventually("the end of the first lock", || tracker.lock("books", Tracker::EXPIRE).ok());
    drop(old); // a guard that is too late
    assert!(tracker.lock("books", Tracker::EXPIRE).is_err(), "its successor is locked still");
    drop(new);
    let _last = tracker.lock("books", Tracker::EXPIRE).unwrap();
}

#[test]
fn a_tracker_owns_its_file_so_that_a_power_cut_loses_no_lock() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.sqlite3");
    let _lock = Tracker::new(&path).unwrap().lock("books", Tracker::EXPIRE).unwrap();
    let db = Litelease::open_own(&path).unwrap();
    let pragma = |name: &str| -> String {
        let value =
            db.conn().pragma_query_value(None, name, |row| row.get::<_, rusqlite::types::Value>(0));
        format!("{:?}", value.unwrap())
    };
    assert_eq!(pragma("journal_mode"), "Text(\"wal\")");
    assert_eq!(pragma("synchronous"), "Integer(2)");

    // An app's own file keeps its journal mode, and is written even more carefully.
    let place = TestFolder::new("DELETE");
    place.connect(LONG).execute_batch("CREATE TABLE theirs (id)").unwrap();
    let db = Litelease::open_own(&place.file).unwrap();
    let mode: String =
        db.conn().pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
    let level: i64 = db.conn().pragma_query_value(None, "synchronous", |row| row.get(0)).unwrap();
    assert_eq!((mode.as_str(), level), ("delete", 3));
}

#[test]
fn trackers_that_race_on_a_file_that_is_not_there_have_one_winner_and_know_it() {
    for round in 0..5 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/locks.sqlite3");
        let start = |_| worker(WORKER, &["lock-it", "books"], &path);
        let mut racers: Vec<_> = (0..8).map(start).collect();
        let answers = racers.iter_mut().map(|racer| {
            let mut told = String::new();
            racer.stdout.take().unwrap().read_to_string(&mut told).unwrap();
            assert!(racer.wait().unwrap().success(), "round {round}");
            told
        });
        let (won, lost): (Vec<_>, Vec<_>) = answers.partition(|told| told.starts_with("won "));
        assert_eq!((won.len(), lost.len()), (1, 7), "round {round}");
        let token = won[0].trim().trim_start_matches("won ");
        for told in lost {
            assert!(told.contains("lost to ") && !told.contains(token), "told who: {told}");
        }
    }
}

#[test]
fn a_claim_result_of_waiting_is_an_answer_and_not_an_error() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    acquired(db.claim("books", "a", LONG));
    let answer = db.claim_wait("books", "b", LONG, Duration::from_millis(30)).unwrap();
    assert!(matches!(answer, ClaimResult::Busy(current) if current.owner == "a"));
}

#[test]
fn a_callback_that_panics_does_not_keep_the_others_from_being_called() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let held = db.hold("x", HoldOptions::new(LONG)).unwrap();
    let (told, hears) = mpsc::channel();
    held.on_lost(|_| panic!("on purpose"));
    held.on_lost(move |lost| told.send(lost.name.clone()).unwrap());
    let _ = db.break_lease("x").unwrap();
    assert_eq!(hears.recv_timeout(Duration::from_secs(60)).as_deref(), Ok("x"));
}

#[test]
fn a_stuck_holder_whose_keeper_lives_on_is_out_and_one_that_goes_on_is_not() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let within = Duration::from_millis(1500);
    let options = HoldOptions::new(SHORT).progress_within(within);
    let (stuck, busy) =
        (db.hold("stuck", options.clone()).unwrap(), db.hold("busy", options).unwrap());
    let start = Instant::now();
    loop {
        // First the time and the row: what is trusted after that was so then.
        let (elapsed, owner) = (start.elapsed(), db.owner("stuck").unwrap());
        if stuck.check().is_err() {
            break;
        }
        assert_eq!(owner.as_deref(), Some(stuck.owner()), "trusted, so live");
        assert!(elapsed < within + SHORT, "it is out within its time and one ttl");
        busy.progress().unwrap();
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(stuck.check().unwrap_err().reason, Loss::NoProgress);
    busy.check().unwrap();
    // A waiter gets it when the row is over, and not before.
    let next = db.claim_wait("stuck", "next", LONG, LONG).unwrap();
    assert!(matches!(next, ClaimResult::Acquired(lease) if lease.token == 2));
}

#[test]
fn a_checkpoint_is_progress_and_late_progress_saves_a_hold() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let options = HoldOptions::new(2 * SHORT).progress_within(Duration::from_millis(800));
    let held = db.hold("books", options).unwrap();
    eventually("a renewal is refused", || held.trouble() == Some(Loss::NoProgress));
    held.check().unwrap();
    held.progress().unwrap();
    eventually("it is renewed again", || held.trouble().is_none());
    eventually("a renewal is refused", || held.trouble() == Some(Loss::NoProgress));
    let _ = db.checkpoint(("books", held.token()), "row 17").unwrap();
    eventually("it is renewed again", || held.trouble().is_none());
    held.check().unwrap();
}

#[test]
fn a_hold_ends_when_its_time_is_up_and_says_so() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    for max_time in [Duration::from_millis(2000), SHORT + Duration::from_millis(500)] {
        let before_ms = now_ms();
        let held = db.hold("books", HoldOptions::new(SHORT).max_time(max_time)).unwrap();
        let max_ms = max_time.as_millis() as i64;
        let ends_ms = before_ms + max_ms..=now_ms() + max_ms;
        let mut trusted_ms = before_ms;
        loop {
            // First the time and the row: what is trusted after that was so then.
            let (now_ms, owner) = (now_ms(), db.owner("books").unwrap());
            if held.check().is_err() {
                break;
            }
            assert_eq!(owner.as_deref(), Some(held.owner()), "trusted, so live");
            trusted_ms = now_ms;
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(held.check().unwrap_err().reason, Loss::TimeIsUp);
        let expiry_ms = held.lease().expires_at_ms;
        assert!(ends_ms.contains(&expiry_ms), "{ends_ms:?} {expiry_ms}");
        assert!(trusted_ms < expiry_ms, "told before anybody else can have it");
    }
}

#[test]
fn a_limit_that_somebody_else_sets_binds_the_keeper() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let held = hold(&db, "books", SHORT);
    let end_ms = now_ms() + SHORT.as_millis() as i64 + 1000;
    assert!(db.limit(("books", held.token()), None, Some(end_ms)).unwrap().is_done());
    assert_eq!(loss_of(&held), Loss::TimeIsUp);
    assert!(held.lease().expires_at_ms <= end_ms);
}

#[test]
fn a_renewal_inside_a_transaction_is_trusted_by_what_was_granted() {
    let place = TestFolder::new("WAL");
    let (mut db, other) = (place.open(LONG), place.open(LONG));
    let held = hold(&other, "books", 2 * SHORT);
    let end_ms = now_ms() + 6100;
    assert!(other.limit(("books", held.token()), None, Some(end_ms)).unwrap().is_done());
    // What was asked for would be trusted for longer than that from here on.
    thread::sleep(Duration::from_millis(1200));
    let tx = db.transaction().unwrap();
    held.renew_in(&tx).unwrap();
    tx.commit().unwrap();
    let trusted_ms = now_ms() + held.trusted_for().as_millis() as i64;
    assert!(trusted_ms <= end_ms, "{trusted_ms} {end_ms}");
}

#[test]
fn a_time_that_is_too_short_to_be_held_is_refused() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let short = HoldOptions::new(LONG).max_time(Duration::from_millis(100));
    assert!(matches!(db.hold("books", short), Err(HoldError::TtlTooShort(_))));
    let none = HoldOptions::new(LONG).progress_within(Duration::ZERO);
    match db.hold("books", none) {
        Err(HoldError::Lease(error @ Error::InvalidTime { .. })) => {
            let text = "\"books\": progress_within must be at least 1 ms, got 0 ms";
            assert_eq!(error.to_string(), text);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(db.owner("books").unwrap(), None, "nothing was granted");
}

#[test]
fn a_holder_hears_of_a_request_at_once_and_hands_over_without_gap_or_overlap() {
    let place = TestFolder::new("WAL");
    let (db, other) = (place.open(LONG), place.open(LONG));
    let held = db.hold("books", HoldOptions::new(LONG)).unwrap();
    let (sender, heard) = mpsc::channel();
    held.on_requested(move |request| sender.send(request.clone()).unwrap());
    held.on_lost(|lost| panic!("handed over is not lost: {lost}"));
    let asker = thread::spawn(move || {
        let options = HoldOptions::new(2 * SHORT).wait(LONG).request(LONG).value("new".to_owned());
        let held = other.hold("books", options).unwrap();
        (held.lease(), held, other)
    });
    let request = heard.recv_timeout(Duration::from_secs(30)).unwrap();
    assert_eq!((held.requested(), request.token), (Some(request.clone()), 1));
    held.check().unwrap();
    let _ = db.checkpoint(("books", held.token()), "page 7").unwrap();
    let handed = held.hand_over(2 * SHORT).map_err(|(_, error)| error).unwrap();
    assert_eq!((handed.token, &handed.owner), (2, &request.requester));
    let (lease, successor, _other) = asker.join().unwrap();
    assert_eq!((lease.token, lease.owner), (2, handed.owner));
    assert!(lease.expires_at_ms >= handed.expires_at_ms, "renewed by its new holder");
    assert_eq!(db.value("books").unwrap(), Some("new".to_owned().into()));
    let last = db.last_checkpoint("books").unwrap().unwrap();
    assert!(last.is_from_predecessor(successor.token()) && !last.is_from_predecessor(3));
    eventually("its new holder goes on to renew it", || {
        successor.lease().expires_at_ms > lease.expires_at_ms
    });
    successor.check().unwrap();
    assert_eq!(db.requested("books").unwrap(), None);
}

#[test]
fn a_holder_that_ignores_a_request_is_out_within_its_time_and_one_ttl() {
    let place = TestFolder::new("WAL");
    let (db, other) = (place.open(LONG), place.open(LONG));
    let held = hold(&db, "books", SHORT);
    let begin = Instant::now();
    let within = Duration::from_millis(1500);
    let asker = thread::spawn(move || {
        let answer = other.request_wait("books", "b", LONG, within, LONG).unwrap();
        (now_ms(), answer)
    });
    let (mut trusted_ms, mut until_ms) = (now_ms(), None);
    loop {
        // First the time: what is trusted after that was so then.
        let now_ms = now_ms();
        if held.check().is_err() {
            break;
        }
        trusted_ms = now_ms;
        until_ms = until_ms.or(db.requested("books").unwrap().map(|request| request.until_ms));
        let end_ms = until_ms.map(|until_ms| until_ms + SHORT.as_millis() as i64);
        assert!(end_ms.is_none_or(|end_ms| now_ms < end_ms), "it is out by now");
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(held.check().unwrap_err().reason, Loss::Requested);
    assert!(begin.elapsed() > within, "nothing is cut");
    let (granted_ms, answer) = asker.join().unwrap();
    assert!(matches!(answer, ClaimResult::Acquired(lease) if lease.token == 2));
    assert!(trusted_ms < granted_ms, "no overlap");
}

#[test]
fn a_request_whose_waiter_gives_up_is_withdrawn() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let held = hold(&db, "books", LONG);
    let answer = db.request_wait("books", "b", LONG, LONG, Duration::from_millis(300)).unwrap();
    assert!(matches!(answer, ClaimResult::Busy(current) if current.token == held.token()));
    assert_eq!(db.requested("books").unwrap(), None);
    eventually("the holder hears of that, too", || held.requested().is_none());
}

/// It was handed over between the request and the first look of its waiter.
#[test]
fn a_lease_that_was_handed_over_before_anybody_waited_is_accepted_once() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    for by_name in [false, true] {
        let name = format!("books {by_name}");
        let lease = acquired(db.claim(&name, "a", LONG));
        assert!(matches!(db.request(&name, "b", LONG).unwrap(), RequestResult::Requested { .. }));
        let handed = match by_name {
            true => db.transfer(&lease, "b", LONG).unwrap().transferred(),
            false => db.hand_over(&lease, LONG).unwrap().transferred(),
        };
        db.purge(now_ms()).unwrap(); // which must not take what is left of the request
        let accepted = acquired(db.claim_wait(&name, "b", LONG, LONG).map_err(lease_error));
        assert_eq!(Some(accepted.token), handed.map(|lease| lease.token));
        let again = db.claim_wait(&name, "b", LONG, Duration::from_millis(50)).unwrap();
        assert!(matches!(again, ClaimResult::Busy(_)), "the text alone is no grant");
    }
}

fn lease_error(error: HoldError) -> Error {
    match error {
        HoldError::Lease(error) => error,
        error => panic!("{error}"),
    }
}

#[test]
fn a_waiter_repeats_its_request_and_one_that_does_not_wait_lets_it_lapse() {
    let place = TestFolder::new("WAL");
    let (db, other) = (place.open(LONG), place.open(LONG));
    let lease = acquired(db.claim("books", "a", LONG));
    let _ = db.request("books", "b", LONG).unwrap();
    let now = now_ms();
    assert!(db.at(now + 11_000).requested("books").unwrap().is_none(), "lapsed");
    let waiter = thread::spawn(move || other.claim_wait("books", "b", LONG, LONG).unwrap());
    eventually("the request is repeated", || {
        db.at(now + 12_000).requested("books").unwrap().is_some()
    });
    assert!(db.hand_over(&lease, LONG).unwrap().transferred().is_some());
    assert!(matches!(waiter.join().unwrap(), ClaimResult::Acquired(lease) if lease.token == 2));
}

#[test]
fn a_text_of_a_requester_is_stored_as_that_of_an_owner_is() {
    let db = memory();
    for (at, text) in ["", "\0", "a\nb", &"x".repeat(1 << 20), "🔑"].iter().enumerate() {
        let name = at.to_string();
        let lease = acquired(db.claim(&name, text, LONG));
        let _ = db.request(&name, text, LONG).unwrap();
        assert_eq!(db.requested(&name).unwrap().unwrap().requester, *text);
        let handed = db.hand_over(&lease, LONG).unwrap().transferred().unwrap();
        assert_eq!((handed.owner.as_str(), handed.token), (*text, 2));
    }
}

/// The keeper opened the file with SQLite's default VFS, whatever the holder's was. Locks of one
/// VFS do not exclude those of another, so it wrote in the middle of a transaction.
#[test]
fn the_keeper_uses_the_vfs_of_the_holder() {
    let folder = TestFolder::new("DELETE");
    drop(folder.open(LONG));
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
    let conn = Connection::open_with_flags_and_vfs(&folder.file, flags, "unix-dotfile").unwrap();
    conn.busy_timeout(LONG).unwrap();
    let db = Litelease::from_connection(conn);
    let held = db.hold("x", HoldOptions::new(Duration::from_secs(1))).unwrap();
    db.conn().execute_batch("BEGIN IMMEDIATE").unwrap();
    let lost = held.lost().wait_timeout(Duration::from_secs(20));
    assert!(matches!(lost, Some(Loss::BlockedByWriter { .. })), "{lost:?}");
    db.conn().execute_batch("ROLLBACK").unwrap();
}
