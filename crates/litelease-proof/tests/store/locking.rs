//! What each verb does while another connection holds the write lock, in every kind of transaction.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use litelease::rusqlite::{Connection, ffi};
use litelease::{ClaimResult, Litelease, LiteleaseRef, ReleaseResult};
use litelease_proof::crate_player::{LeaseIds, perform};
use litelease_proof::play;
use litelease_proof::rig::{LONG, TestFolder, acquired, report, sqlite_code};
use litelease_proof::scenario::Action;

/// The transaction that the caller has open when it calls a verb.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Boundary {
    Autocommit,
    Deferred,
    DeferredAfterRead,
    Immediate,
    Savepoint,
}

const BOUNDARIES: [Boundary; 5] = [
    Boundary::Autocommit,
    Boundary::Deferred,
    Boundary::DeferredAfterRead,
    Boundary::Immediate,
    Boundary::Savepoint,
];

fn verbs() -> [(&'static str, Action); 5] {
    let (live, free) = ("live".to_owned(), "free".to_owned());
    let (a, b) = ("a".to_owned(), "b".to_owned());
    [
        ("inspect", Action::Owner { name: live.clone() }),
        (
            "claim live",
            Action::Claim { name: live.clone(), owner: b.clone(), ttl_ms: 50, above: None },
        ),
        ("claim free", Action::Claim { name: free, owner: b, ttl_ms: 50, above: None }),
        ("renew", Action::Renew { name: live.clone(), owner: a.clone(), ttl_ms: 950, token: None }),
        ("release", Action::Release { name: live, owner: a, token: None }),
    ]
}

/// The answers to the five verbs. `BUSY` is SQLite's; `busy …` is the lease's.
fn expected(boundary: Boundary) -> [&'static str; 5] {
    match boundary {
        // A live lease is busy from a plain read; what must write meets the lock.
        Boundary::Autocommit | Boundary::DeferredAfterRead => {
            ["owner a", "busy a 1 until 1000", "BUSY", "BUSY", "BUSY"]
        }
        // Nothing was read yet: the lock comes first, so that the busy timeout applies.
        Boundary::Deferred | Boundary::Savepoint => ["owner a", "BUSY", "BUSY", "BUSY", "BUSY"],
        Boundary::Immediate => ["BUSY at BEGIN"; 5],
    }
}

/// Whether the busy timeout must have been waited for.
fn waits(boundary: Boundary, answer: &str) -> bool {
    match boundary {
        // SQLite never waits for an upgrade: it could wait for itself.
        Boundary::DeferredAfterRead => false,
        _ => answer.starts_with("BUSY"),
    }
}

fn open_boundary(conn: &Connection, boundary: Boundary) -> litelease::rusqlite::Result<()> {
    conn.execute_batch(match boundary {
        Boundary::Autocommit => "",
        Boundary::Deferred => "BEGIN",
        Boundary::DeferredAfterRead => "BEGIN; SELECT count(*) FROM mine",
        Boundary::Immediate => "BEGIN IMMEDIATE",
        Boundary::Savepoint => "SAVEPOINT mine",
    })
}

#[test]
fn every_boundary_meets_a_writer_as_documented() {
    let verbs = verbs().map(|(verb, _)| verb).join(" | ");
    let mut table =
        format!("\nwhile another connection holds the write lock:\n  {:<30} {verbs}\n", "");
    for journal in ["WAL", "DELETE"] {
        for timeout in [Duration::ZERO, Duration::from_millis(60)] {
            for boundary in BOUNDARIES {
                let answers = meet_a_writer(journal, timeout, boundary);
                let case = format!("{journal} {timeout:?} {boundary:?}");
                writeln!(table, "  {case:<30} {}", answers.join(" | ")).unwrap();
                assert_eq!(answers, expected(boundary), "{case}");
            }
        }
    }
    report(&table);
}

fn meet_a_writer(journal: &'static str, timeout: Duration, boundary: Boundary) -> Vec<String> {
    let place = TestFolder::new(journal);
    let writer = place.open(Duration::ZERO);
    writer.conn().execute_batch("CREATE TABLE mine (id)").unwrap();
    acquired(writer.at(100).claim("live", "a", Duration::from_millis(900)));
    let conn = place.connect(timeout);
    let leases = LiteleaseRef::new(&conn);
    writer.conn().execute_batch("BEGIN IMMEDIATE; INSERT INTO mine VALUES (1)").unwrap();

    let answers = verbs().map(|(verb, action)| {
        let start = Instant::now();
        let opened = open_boundary(&conn, boundary);
        let answer = match opened {
            Err(error) => play::error(&error.into()).replace("error SQLITE_BUSY", "BUSY at BEGIN"),
            Ok(()) => {
                let was_autocommit = conn.is_autocommit();
                let answer = perform(&leases, &mut LeaseIds::new(), 110, &action)
                    .unwrap_or_else(|error| play::error(&error).replace("error SQLITE_", ""));
                assert_eq!(conn.is_autocommit(), was_autocommit, "{verb} moved the boundary");
                answer
            }
        };
        if waits(boundary, &answer) {
            assert!(start.elapsed() >= timeout, "{verb} did not wait for the busy timeout");
        }
        if !conn.is_autocommit() {
            conn.execute_batch("ROLLBACK").unwrap();
        }
        answer
    });
    writer.conn().execute_batch("ROLLBACK").unwrap();
    assert_eq!(leases.at(110).owner("live").unwrap().as_deref(), Some("a"), "nothing was written");
    assert_eq!(leases.token("free").unwrap(), None, "nothing was written");
    answers.to_vec()
}

/// Frees the write lock after a while; meanwhile `work` waits for it.
fn while_locked<T>(place: &TestFolder, held_for: Duration, work: impl FnOnce() -> T) -> T {
    let writer = place.connect(Duration::ZERO);
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(held_for);
            writer.execute_batch("COMMIT").unwrap();
        });
        work()
    })
}

#[test]
fn the_callers_busy_timeout_applies_in_every_boundary_that_has_not_read() {
    for journal in ["WAL", "DELETE"] {
        for boundary in [Boundary::Autocommit, Boundary::Deferred, Boundary::Savepoint] {
            let place = TestFolder::new(journal);
            place.open(Duration::ZERO);
            let conn = place.connect(Duration::from_secs(60));
            open_boundary(&conn, boundary).unwrap();
            let claimed = while_locked(&place, Duration::from_millis(100), || {
                LiteleaseRef::new(&conn).claim("x", "a", LONG)
            });
            assert_eq!(acquired(claimed).token, 1, "{journal} {boundary:?}");
        }
    }
}

#[test]
fn the_clock_is_read_after_the_write_lock_is_held() {
    for journal in ["WAL", "DELETE"] {
        let place = TestFolder::new(journal);
        let db = place.open(Duration::from_secs(60));
        let ttl = Duration::from_secs(2);
        let before_ms = litelease_proof::rig::now_ms();
        let lease =
            acquired(while_locked(&place, Duration::from_millis(400), || db.claim("x", "a", ttl)));
        assert!(lease.expires_at_ms >= before_ms + 400 + 2000, "{journal}");
    }
}

#[test]
fn a_lock_that_is_held_for_longer_than_the_ttl_does_not_eat_the_lease() {
    let place = TestFolder::new("WAL");
    let db = place.open(Duration::from_secs(60));
    let claimed = while_locked(&place, Duration::from_millis(1_200), || {
        db.claim("x", "a", Duration::from_secs(1))
    });
    // With a clock read before the lock it would have been over when it arrived.
    assert_eq!(acquired(claimed).token, 1);
}

#[test]
fn bootstrap_inside_a_deferred_transaction_waits_for_the_lock_and_keeps_it() {
    let place = TestFolder::new("WAL");
    place.connect(Duration::ZERO).execute_batch("CREATE TABLE mine (id)").unwrap();
    let conn = place.connect(Duration::from_secs(60));
    let leases = LiteleaseRef::new(&conn);
    for round in ["fresh", "again"] {
        conn.execute_batch("BEGIN").unwrap();
        while_locked(&place, Duration::from_millis(100), || leases.bootstrap()).unwrap();
        let other = place.connect(Duration::ZERO);
        assert!(other.execute_batch("BEGIN IMMEDIATE").is_err(), "{round}: the lock is kept");
        conn.execute_batch("COMMIT").unwrap();
    }
    assert_eq!(acquired(leases.claim("x", "a", LONG)).token, 1);
}

#[test]
fn bootstrap_tells_a_lock_from_a_missing_table() {
    for journal in ["WAL", "DELETE"] {
        for boundary in [Boundary::Autocommit, Boundary::Deferred, Boundary::Savepoint] {
            let place = TestFolder::new(journal);
            let writer = place.connect(Duration::ZERO);
            writer.execute_batch("CREATE TABLE mine (id); BEGIN IMMEDIATE").unwrap();
            let conn = place.connect(Duration::ZERO);
            open_boundary(&conn, boundary).unwrap();
            let outcome = LiteleaseRef::new(&conn).bootstrap();
            assert_eq!(sqlite_code(outcome), 5, "{journal} {boundary:?}");
        }
    }
}

#[test]
fn a_table_that_somebody_else_made_while_bootstrap_waited_is_fine() {
    let place = TestFolder::new("WAL");
    place.connect(Duration::ZERO).execute_batch("CREATE TABLE mine (id)").unwrap();
    let other = place.connect(Duration::ZERO);
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    LiteleaseRef::new(&other).bootstrap().unwrap();
    let conn = place.connect(Duration::from_secs(60));
    thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(100));
            other.execute_batch("COMMIT").unwrap();
        });
        LiteleaseRef::new(&conn).bootstrap().unwrap();
    });
}

#[test]
fn a_claim_joins_the_transaction_of_a_statement_that_is_still_writing() {
    // A RETURNING statement that was not read to its end keeps its transaction open in autocommit.
    let place = TestFolder::new("WAL");
    let db = place.open(Duration::ZERO);
    db.conn().execute_batch("CREATE TABLE mine (id)").unwrap();
    let mut insert = db.conn().prepare("INSERT INTO mine VALUES (1), (2) RETURNING id").unwrap();
    let mut rows = insert.query([]).unwrap();
    assert!(rows.next().unwrap().is_some());
    let lease = acquired(db.claim("x", "a", LONG));
    assert_eq!(lease.token, 1);
    drop(rows);
    assert_eq!(place.open(Duration::ZERO).owner("x").unwrap().as_deref(), Some("a"));
}

fn released(answer: litelease::Result<ReleaseResult>) {
    assert!(matches!(answer, Ok(ReleaseResult::Released { .. })), "{answer:?}");
}

#[test]
fn a_name_that_was_released_last_is_busy_all_the_same_once_somebody_else_has_it() {
    for journal in ["WAL", "DELETE"] {
        let place = TestFolder::new(journal);
        let (mine, theirs) = (place.open(Duration::ZERO), place.open(Duration::ZERO));
        let writer = place.connect(Duration::ZERO);
        let hand_over = || {
            let lease = acquired(mine.claim("x", "a", LONG));
            released(mine.release(&lease));
            acquired(theirs.claim("x", "b", LONG))
        };
        let theirs_now = hand_over();
        let busy = ClaimResult::Busy(theirs_now.clone());
        assert_eq!(mine.claim("x", "a", LONG).unwrap(), busy, "{journal}");
        released(theirs.release(&theirs_now));

        let busy = ClaimResult::Busy(hand_over());
        writer.execute_batch("BEGIN IMMEDIATE").unwrap();
        assert_eq!(mine.claim("x", "a", LONG).unwrap(), busy, "{journal}, while somebody writes");
        writer.execute_batch("ROLLBACK").unwrap();
    }
}

#[test]
fn a_name_that_was_released_last_is_not_granted_while_somebody_else_writes() {
    let place = TestFolder::new("WAL");
    let (db, writer) = (place.open(Duration::ZERO), place.connect(Duration::ZERO));
    let lease = acquired(db.claim("x", "a", LONG));
    released(db.release(&lease));
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let claimed = db.claim("x", "a", LONG);
    assert_eq!(sqlite_code(claimed), ffi::SQLITE_BUSY);
    writer.execute_batch("ROLLBACK").unwrap();
    assert_eq!(acquired(db.claim("x", "a", LONG)).token, 2);
}

#[test]
fn a_name_that_somebody_else_has_is_busy_without_asking_for_the_write_lock() {
    // SQLite asks this only where it wants a lock that it does not get.
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let place = TestFolder::new("WAL");
    let (holder, writer) = (place.open(Duration::ZERO), place.connect(Duration::ZERO));
    let mut conn = place.connect(Duration::ZERO);
    conn.busy_handler(Some(|_| ASKED.fetch_add(1, Ordering::Relaxed) == u32::MAX)).unwrap();
    let db = LiteleaseRef::new(&conn);
    for name in ["x", ""] {
        // Also where this handle has released the name last and so might expect it to be free.
        released(db.release(&acquired(db.claim(name, "b", LONG))));
        let busy = ClaimResult::Busy(acquired(holder.claim(name, "a", LONG)));
        writer.execute_batch("BEGIN IMMEDIATE").unwrap();
        assert_eq!(db.claim(name, "b", LONG).unwrap(), busy);
        assert_eq!(ASKED.load(Ordering::Relaxed), 0, "{name:?}");
        assert_eq!(sqlite_code(db.claim("free", "b", LONG)), ffi::SQLITE_BUSY);
        assert_ne!(ASKED.swap(0, Ordering::Relaxed), 0, "it is asked for what must be written");
        writer.execute_batch("ROLLBACK").unwrap();
    }
}

/// A connection to a file, and how often it has committed.
fn counting_commits(place: &TestFolder) -> (Litelease, Arc<AtomicUsize>) {
    let mut conn = Connection::open(&place.file).unwrap();
    let commits = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&commits);
    let count = move || {
        counting.fetch_add(1, Ordering::Relaxed);
        false
    };
    conn.commit_hook(Some(count)).unwrap();
    let db = Litelease::from_connection(conn);
    db.bootstrap().unwrap();
    (db, commits)
}

/// A purge deleted all old answers of the service in one transaction, millions after a busy day,
/// and every other writer of the file waited for it.
#[test]
fn a_purge_of_many_stored_answers_commits_after_every_slice() {
    let place = TestFolder::new("WAL");
    let (mut db, commits) = counting_commits(&place);
    let litelease_store::Table { name, definition } = litelease_store::ANSWERED;
    let fill = format!(
        "CREATE TABLE {name} {definition};
         WITH RECURSIVE at(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM at WHERE n < 2500)
         INSERT INTO {name} (request, at_ms, answer) SELECT CAST(n AS BLOB), 1000, 'x' FROM at;
         INSERT INTO {name} (request, at_ms, answer) VALUES (x'00', 5000, 'x');"
    );
    db.conn().execute_batch(&fill).unwrap();
    let rows = |conn: &Connection| -> i64 {
        conn.query_row(&format!("SELECT count(*) FROM {name}"), [], |row| row.get(0)).unwrap()
    };
    // In a transaction of the caller's, all of it or nothing.
    let tx = db.transaction().unwrap();
    assert_eq!(tx.at(9_000).purge(2_000).unwrap(), 0);
    assert_eq!(rows(tx.conn()), 1);
    drop(tx);
    assert_eq!(rows(db.conn()), 2_501);
    commits.store(0, Ordering::Relaxed);
    assert_eq!(db.at(9_000).purge(2_000).unwrap(), 0, "answers are no names");
    // Two full slices and the rest.
    assert!(commits.load(Ordering::Relaxed) >= 3, "{commits:?}");
    assert_eq!(rows(db.conn()), 1);
}

/// A purge of many names was one transaction, and every other writer of the file waited for it.
#[test]
fn a_purge_of_many_names_commits_after_every_slice() {
    let place = TestFolder::new("WAL");
    let (mut db, commits) = counting_commits(&place);
    let fill = db.transaction().unwrap();
    // The empty name is the first one, and a name may begin with another one and a NUL.
    let names = (0..2_498).map(|at| at.to_string()).chain(["".into(), "7\0".into()]);
    for name in names {
        let lease = fill.at(1_000).claim(&name, "a", LONG).unwrap().acquired().unwrap();
        let _ = fill.at(1_000).release(&lease).unwrap();
    }
    let _live = fill.at(5_000).claim("live", "a", LONG).unwrap();
    fill.commit().unwrap();
    commits.store(0, Ordering::Relaxed);
    assert_eq!(db.at(5_000).purge(2_000).unwrap(), 2_500);
    // Raising the floor may take a commit of its own for each.
    assert!(commits.load(Ordering::Relaxed) >= 3);
    let rows: i64 = db
        .conn()
        .query_row("SELECT count(*) FROM litelease_resources", [], |row| row.get(0))
        .unwrap();
    assert_eq!(rows, 1);
    let token = db.at(5_000).claim("7", "b", LONG).unwrap().acquired().unwrap().token;
    assert_eq!(token, 2, "no token returns");
}
