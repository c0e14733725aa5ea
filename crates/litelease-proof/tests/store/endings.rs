//! Transactions that end in odd ways: by SQLite itself, by an interrupt, by a hook, by a statement
//! in the way. What a verb answers is what is stored, and what is the caller's stays theirs.

use std::time::Duration;

use litelease::rusqlite::{Connection, ffi};
use litelease::{Error, Litelease, LiteleaseRef};
use litelease_proof::rig::{LONG, TestFolder, acquired, memory, sqlite_code};

#[test]
fn a_commit_hook_that_refuses_means_no_grant_and_a_known_outcome() {
    let mut conn = Connection::open_in_memory().unwrap();
    LiteleaseRef::new(&conn).bootstrap().unwrap();
    conn.commit_hook(Some(|| true)).unwrap();
    let db = Litelease::from_connection(conn);
    assert_eq!(sqlite_code(db.claim("x", "a", LONG)), ffi::SQLITE_CONSTRAINT_COMMITHOOK);
    assert!(db.conn().is_autocommit());
    assert_eq!(db.token("x").unwrap(), None);
}

#[test]
fn a_commit_that_meets_readers_is_busy_and_leaves_no_transaction_open() {
    // With a rollback journal, COMMIT needs the readers to go.
    let place = TestFolder::new("DELETE");
    let mut db = place.open(Duration::from_millis(20));
    acquired(db.claim("seen", "a", LONG));
    let reader = place.connect(Duration::ZERO);
    reader.execute_batch("BEGIN; SELECT * FROM litelease_resources").unwrap();
    assert_eq!(sqlite_code(db.claim("x", "a", LONG)), ffi::SQLITE_BUSY);
    assert!(db.conn().is_autocommit());
    let tx = db.transaction().unwrap();
    acquired(tx.claim("x", "a", LONG));
    assert_eq!(sqlite_code(tx.commit()), ffi::SQLITE_BUSY);
    assert!(db.conn().is_autocommit());
    reader.execute_batch("COMMIT").unwrap();
    assert_eq!(acquired(db.claim("x", "b", LONG)).token, 1, "nothing of it was stored");
}

#[test]
fn a_transaction_that_sqlite_ended_takes_no_claims_any_more() {
    let mut db = memory();
    db.conn().execute_batch("CREATE TABLE mine (id INTEGER PRIMARY KEY)").unwrap();
    for ending in ["INSERT OR ROLLBACK INTO mine VALUES (1), (1)", "COMMIT", "ROLLBACK"] {
        let mut tx = db.transaction().unwrap();
        let _ = tx.conn().execute_batch(ending);
        let claimed = tx.claim("x", "a", LONG);
        assert!(matches!(claimed, Err(Error::TransactionEnded)), "{ending}: {claimed:?}");
        assert!(matches!(tx.bootstrap(), Err(Error::TransactionEnded)), "{ending}");
        assert!(matches!(tx.purge(0), Err(Error::TransactionEnded)), "{ending}");
        assert!(matches!(tx.savepoint(), Err(Error::TransactionEnded)), "{ending}");
        assert!(matches!(tx.commit(), Err(Error::TransactionEnded)), "{ending}");
        assert!(db.conn().is_autocommit());
        assert_eq!(db.token("x").unwrap(), None, "{ending}: nothing was stored");
    }
    let mut tx = db.transaction().unwrap();
    let savepoint = tx.savepoint().unwrap();
    savepoint.conn().execute_batch("ROLLBACK").unwrap();
    assert!(matches!(savepoint.commit(), Err(Error::TransactionEnded)));
    tx.rollback().unwrap();
    assert_eq!(acquired(db.claim("x", "a", LONG)).token, 1, "the handle works on");
}

#[test]
fn an_interrupt_at_any_moment_leaves_no_transaction_open_and_grants_nothing_twice() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};
    type Call = fn(&mut Litelease) -> litelease::Result<()>;
    let calls: [(&str, Call); 4] = [
        ("claim", |db| db.claim("x", "a", LONG).map(drop)),
        ("purge", |db| db.at(900).purge(900).map(drop)),
        ("purge in a transaction", |db| {
            let tx = db.transaction()?;
            let purged = tx.at(900).purge(900).map(drop);
            // The caller commits whatever came of it.
            tx.commit()?;
            purged
        }),
        ("claim in a transaction", |db| {
            let tx = db.transaction()?;
            let claimed = tx.claim("x", "a", LONG).map(drop);
            tx.rollback()?;
            claimed
        }),
    ];
    for (what, call) in calls {
        let mut stopped = 0;
        for budget in 0..400 {
            let place = TestFolder::new("WAL");
            let mut conn = place.connect(Duration::ZERO);
            let left = Arc::new(AtomicI64::new(i64::MAX));
            let counter = Arc::clone(&left);
            // Once the budget is used up, everything is interrupted, a rollback too.
            conn.progress_handler(1, Some(move || counter.fetch_sub(1, Ordering::Relaxed) <= 0))
                .unwrap();
            let mut db = Litelease::from_connection(conn);
            db.bootstrap().unwrap();
            acquired(db.at(100).claim("old", "a", Duration::from_millis(50)));
            left.store(budget, Ordering::Relaxed);
            let outcome = call(&mut db);
            stopped += i64::from(outcome.is_err());
            left.store(i64::MAX, Ordering::Relaxed);

            let after = db.claim("after", "b", LONG);
            assert!(after.is_ok(), "{what} after {budget}: {after:?}");
            assert!(db.conn().is_autocommit(), "{what} after {budget}: a transaction is left open");
            let other = place.open(Duration::ZERO);
            assert_eq!(
                other.owner("after").unwrap().as_deref(),
                Some("b"),
                "{what} after {budget}"
            );
            if outcome.is_ok() {
                break;
            }
        }
        assert!(stopped > 10, "{what}: interrupted only {stopped} times");
    }
}

#[test]
fn an_error_from_a_hook_after_the_commit_is_not_taken_for_a_failed_commit() {
    use litelease::rusqlite::hooks::Wal;
    fn fail(_: &mut Wal, _: i32) -> litelease::rusqlite::Result<()> {
        let code = litelease::rusqlite::ffi::Error::new(ffi::SQLITE_BUSY);
        Err(litelease::rusqlite::Error::SqliteFailure(code, None))
    }
    let place = TestFolder::new("WAL");
    acquired(place.open(Duration::ZERO).claim("x", "a", LONG));
    let mut conn = place.connect(Duration::ZERO);
    conn.wal_hook(Some(fail)).unwrap();
    let mut db = Litelease::from_connection(conn);
    let claimed = db.claim("y", "a", LONG);
    assert!(matches!(claimed, Err(Error::CommitUnknown(_))), "{claimed:?}");
    let tx = db.transaction().unwrap();
    acquired(tx.claim("z", "a", LONG));
    let committed = tx.commit();
    assert!(matches!(committed, Err(Error::CommitUnknown(_))), "{committed:?}");
    let other = place.open(Duration::ZERO);
    assert_eq!(other.token("y").unwrap(), Some(1), "it was stored all the same");
    assert_eq!(other.token("z").unwrap(), Some(1), "it was stored all the same");
}

#[test]
fn a_forgotten_savepoint_is_not_taken_for_the_one_around_it() {
    let mut db = memory();
    let mut tx = db.transaction().unwrap();
    let mut outer = tx.savepoint().unwrap();
    acquired(outer.claim("x", "a", LONG));
    std::mem::forget(outer.savepoint().unwrap());
    outer.rollback().unwrap();
    tx.commit().unwrap();
    assert_eq!(db.token("x").unwrap(), None);
}

#[test]
fn a_statement_that_is_writing_elsewhere_is_left_alone() {
    for table in ["temp.mine", "other.mine", "main.mine"] {
        let db = memory();
        db.conn().execute_batch("ATTACH ':memory:' AS other").unwrap();
        db.conn().execute_batch(&format!("CREATE TABLE {table} (id)")).unwrap();
        let sql = format!("INSERT INTO {table} VALUES (1), (2) RETURNING id");
        let mut insert = db.conn().prepare(&sql).unwrap();
        let mut rows = insert.query([]).unwrap();
        assert!(rows.next().unwrap().is_some());
        assert_eq!(acquired(db.claim("x", "a", LONG)).token, 1, "{table}");
        assert!(rows.next().unwrap().is_some());
        drop(rows);
        let count: i64 = db
            .conn()
            .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))
            .unwrap();
        assert_eq!(count, 2, "{table}");
        assert_eq!(db.owner("x").unwrap().as_deref(), Some("a"), "{table}");
    }
}

#[test]
fn a_statement_that_would_delay_the_commit_means_no_grant() {
    // SQLite commits nothing before such a statement has ended, and some of them hold no
    // transaction by which to see it. Either nothing is granted, or others see the grant.
    let mut blocked = 0;
    for pragma in ["PRAGMA journal_mode", "PRAGMA journal_mode = WAL", "PRAGMA wal_checkpoint"] {
        let place = TestFolder::new("WAL");
        let db = place.open(Duration::ZERO);
        acquired(db.claim("held", "a", LONG));
        let mut running = db.conn().prepare(pragma).unwrap();
        let mut rows = running.query([]).unwrap();
        assert!(rows.next().unwrap().is_some());
        let claimed = db.claim("x", "a", LONG);
        let seen = place.open(Duration::ZERO).token("x").unwrap();
        match claimed {
            Ok(_) => assert_eq!(seen, Some(1), "{pragma}: a grant that nobody sees"),
            error => {
                blocked += 1;
                assert_eq!((sqlite_code(error), seen), (ffi::SQLITE_BUSY, None), "{pragma}");
                assert_eq!(
                    sqlite_code(db.release_by_owner("held", "a")),
                    ffi::SQLITE_BUSY,
                    "{pragma}"
                );
            }
        }
        assert!(
            matches!(db.claim("held", "b", LONG), Ok(litelease::ClaimResult::Busy(_))),
            "{pragma}"
        );
        drop(rows);
        drop(running);
        let _ = db.claim("x", "a", LONG).unwrap();
        assert_eq!(db.token("x").unwrap(), Some(1), "{pragma}");
    }
    assert!(blocked > 0, "none of them was in the way");
}

#[test]
fn a_transaction_of_the_callers_is_never_rolled_back_for_them() {
    let mut db = memory();
    db.conn().execute_batch("CREATE TABLE mine (id); BEGIN; INSERT INTO mine VALUES (1)").unwrap();
    let error = db.transaction().unwrap_err();
    assert!(
        error.to_string().contains("cannot start a transaction within a transaction"),
        "{error}"
    );
    assert!(!db.conn().is_autocommit());
    db.conn().execute_batch("COMMIT").unwrap();
    let rows: i64 = db.conn().query_row("SELECT count(*) FROM mine", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 1);
}

/// A handle whose purge was interrupted after so many steps, its rollback too, and whose caller has
/// then begun a transaction of their own. Also whether the purge came through.
fn after_an_interrupted_purge(budget: i64) -> (Litelease, bool) {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};
    let mut conn = Connection::open_in_memory().unwrap();
    let left = Arc::new(AtomicI64::new(i64::MAX));
    let counter = Arc::clone(&left);
    conn.progress_handler(1, Some(move || counter.fetch_sub(1, Ordering::Relaxed) <= 0)).unwrap();
    let db = Litelease::from_connection(conn);
    db.bootstrap().unwrap();
    db.conn().execute_batch("CREATE TABLE mine (id)").unwrap();
    acquired(db.at(100).claim("old", "a", Duration::from_millis(50)));
    left.store(budget, Ordering::Relaxed);
    let purged = db.at(900).purge(900).is_ok();
    left.store(i64::MAX, Ordering::Relaxed);
    assert!(db.conn().is_autocommit(), "after {budget}: a transaction is left open");
    db.conn().execute_batch("BEGIN; INSERT INTO mine VALUES (1)").unwrap();
    (db, purged)
}

#[test]
fn an_interrupted_call_does_not_roll_back_a_later_transaction_of_the_callers() {
    let mut interrupted = 0;
    for budget in 0..200 {
        let (db, purged) = after_an_interrupted_purge(budget);
        acquired(db.claim("x", "a", LONG));
        assert!(!db.conn().is_autocommit(), "after {budget}: the caller's is still open");
        db.conn().execute_batch("ROLLBACK").unwrap();
        assert_eq!(db.token("x").unwrap(), None, "after {budget}: the claim went with it");
        // Nor is it rolled back when the handle is given up.
        let conn = after_an_interrupted_purge(budget).0.into_connection();
        assert!(!conn.is_autocommit(), "after {budget}: the caller's is still open");
        if purged {
            break;
        }
        interrupted += 1;
    }
    assert!(interrupted > 50, "interrupted only {interrupted} times");
}

#[test]
fn a_lock_or_an_interrupt_is_never_taken_for_a_damaged_file() {
    let place = TestFolder::new("DELETE");
    let db = place.open(Duration::ZERO);
    acquired(db.at(100).claim("old", "a", Duration::from_millis(50)));
    assert_eq!(db.at(200).purge(200).unwrap(), 1);
    for budget in 0..400 {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicI64, Ordering};
        let mut conn = place.connect(Duration::ZERO);
        let left = Arc::new(AtomicI64::new(i64::MAX));
        let counter = Arc::clone(&left);
        conn.progress_handler(1, Some(move || counter.fetch_sub(1, Ordering::Relaxed) == 0))
            .unwrap();
        let fresh = Litelease::from_connection(conn);
        left.store(budget, Ordering::Relaxed);
        match fresh.bootstrap() {
            Ok(()) => return,
            outcome => assert_eq!(sqlite_code(outcome), ffi::SQLITE_INTERRUPT, "after {budget}"),
        }
    }
    panic!("bootstrap never came through");
}
