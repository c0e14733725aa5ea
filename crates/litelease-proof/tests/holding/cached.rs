//! Values that are answered from memory: real readers and writers, stopped and killed, and no old
//! answer.

use std::io::{BufRead, BufReader, Read};
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use litelease::{Cached, Error, HoldError, Litelease};
use litelease_proof::command::kill;
use litelease_proof::rig::{LONG, TestFolder, acquired, eventually, report, worker};

const WORKER: &str = env!("CARGO_BIN_EXE_worker");
const TTL: Duration = Duration::from_secs(30);

/// A file with a value, and where readers and writers note what they have seen.
fn place(journal: &'static str) -> (TestFolder, Litelease) {
    let place = TestFolder::new(journal);
    let db = place.open(LONG);
    db.conn()
        .execute_batch(
            "CREATE TABLE config (value INTEGER); INSERT INTO config VALUES (0);
             CREATE TABLE answers (reader INTEGER, value INTEGER, asked_ns INTEGER);
             CREATE TABLE commits (value INTEGER, committed_ns INTEGER);",
        )
        .unwrap();
    (place, db)
}

/// The value, and how often it was loaded.
fn cached(db: &Litelease, ttl: Duration) -> (Cached<i64>, Arc<AtomicU64>) {
    let loads = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&loads);
    let value = db.cached("config", ttl, move |conn| {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(conn.query_row("SELECT value FROM config", [], |row| row.get(0))?)
    });
    (value.unwrap(), loads)
}

fn set(value: &Cached<i64>, new: i64, patience: Duration) -> Result<(), HoldError> {
    let update = "UPDATE config SET value = ?1";
    value.write(patience, |tx| tx.conn().execute(update, [new]).map(drop).map_err(Error::from))
}

#[test]
fn a_value_is_answered_from_memory_without_touching_the_file() {
    for journal in ["WAL", "DELETE"] {
        let (place, db) = place(journal);
        let (value, loads) = cached(&db, TTL);
        assert_eq!(*value.get().unwrap(), 0);
        // No program can read the file now. (The watching thread may be reading it at this moment.)
        let locked = place.connect(LONG);
        if journal == "DELETE" {
            locked.execute_batch("BEGIN EXCLUSIVE").unwrap();
        }
        for _ in 0..1_000 {
            assert_eq!(*value.get().unwrap(), 0);
        }
        assert_eq!(loads.load(Ordering::SeqCst), 1, "{journal}");
        assert!(value.trusted_for() > Duration::from_secs(20));
    }
}

#[test]
fn a_writer_waits_for_readers_that_give_up_at_once_and_all_see_what_it_wrote() {
    for journal in ["WAL", "DELETE"] {
        let (place, db) = place(journal);
        let readers: Vec<_> = (0..3).map(|_| cached(&place.open(LONG), TTL)).collect();
        let (writer, _) = cached(&db, TTL);
        for round in 1..=5 {
            for (reader, _) in &readers {
                reader.get().unwrap();
            }
            assert_eq!(db.readers("config").unwrap().len(), 3);
            let started = Instant::now();
            set(&writer, round, LONG).unwrap();
            assert!(started.elapsed() < Duration::from_secs(20), "nobody's ttl was waited for");
            for (reader, _) in readers.iter().chain([&(cached(&db, TTL))]) {
                assert_eq!(*reader.get().unwrap(), round, "{journal}");
            }
        }
    }
}

#[test]
fn a_version_that_has_not_changed_needs_no_new_load() {
    let (_place, db) = place("WAL");
    let (value, loads) = cached(&db, Duration::from_secs(2));
    value.get().unwrap();
    eventually("its time is up", || value.trusted_for().is_zero());
    value.get().unwrap();
    assert!(!value.trusted_for().is_zero());
    assert_eq!(loads.load(Ordering::SeqCst), 1);
}

#[test]
fn while_a_writer_has_the_name_values_come_from_the_file() {
    let (_place, db) = place("WAL");
    let (value, loads) = cached(&db, TTL);
    value.get().unwrap();
    let lease = acquired(db.claim("config", "w", TTL));
    eventually("it is given up", || db.readers("config").unwrap().is_empty());
    db.conn().execute("UPDATE config SET value = 7", []).unwrap();
    assert_eq!([*value.get().unwrap(), *value.get().unwrap()], [7, 7]);
    assert_eq!(loads.load(Ordering::SeqCst), 3);
    assert!(value.trusted_for().is_zero());
    db.release(&lease).unwrap();
    assert_eq!([*value.get().unwrap(), *value.get().unwrap()], [7, 7]);
    assert_eq!(loads.load(Ordering::SeqCst), 4);
}

#[test]
fn a_locked_file_is_read_without_a_read_being_granted() {
    let (place, db) = place("WAL");
    let (value, _) = cached(&db, TTL);
    let locked = place.connect(Duration::ZERO);
    locked.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(*value.get().unwrap(), 0);
    assert!(value.trusted_for().is_zero());
    locked.execute_batch("ROLLBACK").unwrap();
    value.get().unwrap();
    assert!(!value.trusted_for().is_zero());
}

#[test]
fn a_writer_gives_up_after_its_patience_and_writes_nothing() {
    let (_place, db) = place("WAL");
    let (writer, _) = cached(&db, TTL);
    // A reader that does not watch the file.
    db.read("config", "deaf", TTL).unwrap().unwrap();
    let started = Instant::now();
    match set(&writer, 1, Duration::from_millis(300)) {
        Err(HoldError::ReadersLeft { readers, .. }) => assert_eq!(readers[0].reader, "deaf"),
        other => panic!("{other:?}"),
    }
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert_eq!(db.inspect("config").unwrap(), None, "the name is free again");
    assert_eq!(*writer.get().unwrap(), 0);
    // It is another writer's.
    let _lease = acquired(db.claim("config", "w", TTL));
    assert!(matches!(set(&writer, 1, Duration::from_millis(100)), Err(HoldError::Busy(_))));
    assert_eq!(*writer.get().unwrap(), 0);
}

#[test]
fn a_writer_that_fails_leaves_everything_as_it_was() {
    let (_place, db) = place("WAL");
    let (value, _) = cached(&db, TTL);
    value.get().unwrap();
    let failed: Result<(), HoldError> = value.write(LONG, |tx| {
        tx.conn().execute("UPDATE config SET value = 9", [])?;
        Ok(tx.conn().execute_batch("SELECT * FROM nothing")?)
    });
    assert!(matches!(failed, Err(HoldError::Lease(_))), "{failed:?}");
    assert_eq!(*value.get().unwrap(), 0);
    assert_eq!(db.inspect("config").unwrap(), None);
}

#[test]
fn a_writer_waits_for_a_deaf_reader_by_elapsed_time_although_the_row_says_it_has_expired() {
    let (place, db) = place("WAL");
    let (writer, _) = cached(&db, TTL);
    let started = Instant::now();
    db.read("config", "deaf", Duration::from_millis(900)).unwrap().unwrap();
    // What a wall clock that was set forward makes of the row, once the writer waits.
    let row = place.open(LONG);
    let forward = thread::spawn(move || {
        eventually("the writer waits", || row.inspect("config").unwrap());
        thread::sleep(Duration::from_millis(100));
        row.conn().execute("UPDATE litelease_reads SET expires_at_ms = 1", []).unwrap();
    });
    set(&writer, 1, LONG).unwrap();
    forward.join().unwrap();
    assert!(started.elapsed() >= Duration::from_millis(850), "{:?}", started.elapsed());
    assert_eq!(*writer.get().unwrap(), 1);
    let rows = "SELECT count(*) FROM litelease_reads WHERE reader = 'deaf'";
    assert_eq!(db.conn().query_row(rows, [], |row| row.get::<_, i64>(0)).unwrap(), 0);
}

#[test]
fn a_value_whose_load_was_overtaken_by_a_writer_is_not_kept() {
    let (place, db) = place("WAL");
    let (loaded, load) = mpsc::channel::<()>();
    let (go, wait) = mpsc::channel::<()>();
    let (loaded, wait) = (Mutex::new(loaded), Mutex::new(wait));
    let value = db.cached("config", TTL, move |conn| {
        let value: i64 = conn.query_row("SELECT value FROM config", [], |row| row.get(0))?;
        // Only the first load waits; the others find no grant.
        let _ = loaded.lock().unwrap().send(());
        let _ = wait.lock().unwrap().recv();
        Ok(value)
    });
    let value = value.unwrap();
    let (writer, _) = cached(&place.open(LONG), TTL);
    thread::scope(|scope| {
        let first = scope.spawn(|| *value.get().unwrap());
        load.recv().unwrap();
        set(&writer, 1, LONG).unwrap();
        drop(go);
        assert_eq!(first.join().unwrap(), 0, "which began before the writer");
    });
    assert_eq!(*value.get().unwrap(), 1);
}

#[test]
fn a_value_that_is_dropped_gives_up_its_read() {
    let (_place, db) = place("WAL");
    let (value, _) = cached(&db, TTL);
    let (other, _) = cached(&db, TTL);
    value.get().unwrap();
    other.get().unwrap();
    assert_ne!(value.reader(), other.reader(), "reader texts are fresh");
    let gone = value.reader().to_owned();
    drop(value);
    let left = db.readers("config").unwrap();
    assert_eq!(left.len(), 1);
    assert_ne!(left[0].reader, gone);
}

#[test]
fn a_value_that_is_dropped_while_another_connection_writes_gives_up_its_read_afterwards() {
    for journal in ["WAL", "DELETE"] {
        let (place, db) = place(journal);
        let (value, _) = cached(&db, LONG);
        value.get().unwrap();
        let mut writer = place.open(LONG);
        let tx = writer.transaction().unwrap();
        drop(value);
        assert_eq!(db.readers("config").unwrap().len(), 1, "{journal}: the file is locked");
        tx.rollback().unwrap();
        // A writer would have waited for an hour.
        eventually("the end of the read", || {
            db.readers("config").unwrap().is_empty().then_some(())
        });
    }
}

#[test]
fn a_ttl_out_of_bounds_and_a_database_in_memory_are_refused() {
    let (_place, db) = place("WAL");
    let hour = Duration::from_secs(3600);
    let refused = db.cached("config", hour + Duration::from_millis(1), |_| Ok(1)).unwrap_err();
    assert_eq!(refused.kind(), "TtlTooLong");
    assert!(refused.to_string().contains("at most 3600000 ms"), "{refused}");
    assert!(db.cached("config", hour, |_| Ok(1)).is_ok());
    let refused = db.cached("config", Duration::from_millis(100), |_| Ok(1)).unwrap_err();
    assert_eq!(refused.kind(), "TtlTooShort");
    let refused = litelease_proof::rig::memory().cached("config", TTL, |_| Ok(1)).unwrap_err();
    assert_eq!(refused.kind(), "InMemory");
}

#[test]
fn a_file_that_was_replaced_is_not_answered_from_memory() {
    let (place, db) = place("WAL");
    let (value, _) = cached(&db, TTL);
    value.get().unwrap();
    std::fs::rename(&place.file, place.file.with_extension("old")).unwrap();
    eventually("it is noticed", || matches!(value.get(), Err(HoldError::FileMoved(_))));
}

#[test]
fn nothing_is_written_for_an_hour_after_a_restore() {
    let (_place, db) = place("WAL");
    let (value, _) = cached(&db, TTL);
    value.get().unwrap();
    db.restore_fence().unwrap();
    match set(&value, 1, Duration::from_millis(200)) {
        Err(HoldError::ReadersLeft { readers, .. }) => {
            assert!(readers[0].reader.contains("restore_fence"), "{readers:?}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(*value.get().unwrap(), 0, "reading goes on");
    assert!(!value.trusted_for().is_zero());
}

fn line(child: &mut Child) -> String {
    let mut told = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut told).unwrap();
    told.trim().to_owned()
}

#[test]
fn a_reader_that_was_killed_is_not_waited_for() {
    let (place, db) = place("WAL");
    let mut reader = worker(WORKER, &["cached-read", "config", "3600000"], &place.file);
    assert_eq!(line(&mut reader), "reads");
    eventually("it has read", || !db.readers("config").unwrap().is_empty());
    let (writer, _) = cached(&db, TTL);
    reader.kill().unwrap();
    reader.wait().unwrap();
    assert_eq!(db.readers("config").unwrap().len(), 1);
    set(&writer, 1, LONG).unwrap();
    assert_eq!(*writer.get().unwrap(), 1);
}

#[test]
fn a_forked_copy_answers_nothing_from_memory_and_does_not_harm_its_parent() {
    let (place, _db) = place("WAL");
    let mut child = worker(WORKER, &["cached-forked", "config"], &place.file);
    let mut told = String::new();
    child.stdout.take().unwrap().read_to_string(&mut told).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(told, "Forked Forked\n1\n");
}

/// Lets three processes read and one write, stops the first reader for longer than its trust window
/// again and again, and lets the file show whether any of them answered an old value.
fn readers_and_a_writer(journal: &'static str, rounds: u64) {
    const TTL_MS: &str = "300";
    let (place, db) = place(journal);
    let start = |_| {
        let mut reader = worker(WORKER, &["cached-read", "config", TTL_MS], &place.file);
        assert_eq!(line(&mut reader), "reads");
        reader
    };
    let mut readers: Vec<Child> = (0..3).map(start).collect();
    let rounds = rounds.to_string();
    let mut writer = worker(WORKER, &["cached-write", "config", TTL_MS, &rounds], &place.file);
    let stopped = i32::try_from(readers[0].id()).unwrap();
    let mut stops = 0;
    while writer.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_millis(50 + stops % 7 * 11));
        kill(stopped, libc::SIGSTOP);
        thread::sleep(Duration::from_millis(500));
        kill(stopped, libc::SIGCONT);
        stops += 1;
    }
    assert!(writer.wait().unwrap().success());
    let mut gets = 0;
    for reader in &mut readers {
        drop(reader.stdin.take());
        let mut told = String::new();
        reader.stdout.as_mut().unwrap().read_to_string(&mut told).unwrap();
        assert!(reader.wait().unwrap().success());
        gets += told.trim().parse::<u64>().unwrap();
    }
    let count = |sql: &str| db.conn().query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    let (answers, commits) =
        (count("SELECT count(*) FROM answers"), count("SELECT count(*) FROM commits"));
    report(&format!(
        "{journal}: {gets} gets, {answers} values seen, {commits} writes, one reader stopped {stops} times"
    ));
    assert_eq!(commits.to_string(), rounds);
    assert!(answers > 0, "the readers have seen what was written");
    let old = "SELECT count(*) FROM answers JOIN commits
               ON commits.value > answers.value AND commits.committed_ns < answers.asked_ns";
    assert_eq!(count(old), 0, "a get that began after a commit answered an older value");
}

#[test]
fn no_reader_answers_an_old_value_after_a_writers_commit() {
    for (journal, rounds) in [("WAL", 20), ("DELETE", 12)] {
        readers_and_a_writer(journal, rounds);
    }
}
