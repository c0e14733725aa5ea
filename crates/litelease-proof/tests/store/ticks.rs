//! Ticks in real files: what else is in the transaction, other connections, odd tables.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use litelease::rusqlite::Connection;
use litelease::{
    ClaimTickResult, Error, FinishTickResult, Litelease, NewestTick, RetireResult, TickChange,
    TickOutcome, TickRequest, TickResult, TickState, TransferResult, now_ms,
};
use litelease_proof::rig::{LONG, acquired, memory};

fn granted(answer: litelease::Result<ClaimTickResult>) -> litelease::Lease {
    match answer.unwrap() {
        ClaimTickResult::Acquired { lease, .. } => lease,
        other => panic!("{other:?}"),
    }
}

fn count(db: &Litelease, table: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {table}");
    db.conn().query_row(&sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn an_effect_in_the_transaction_of_its_tick_happens_once_although_every_thread_has_the_schedule() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sqlite3");
    let db = Litelease::open_own(&path).unwrap();
    db.conn().execute_batch("CREATE TABLE effects (tick INTEGER)").unwrap();
    let (threads, ticks) = (4, 100);
    let start = Barrier::new(threads);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut db = Litelease::open_own(&path).unwrap();
                start.wait();
                for tick in 1..=ticks {
                    let tx = db.transaction().unwrap();
                    if tx.tick("digest", tick).unwrap() == TickResult::First {
                        tx.conn().execute("INSERT INTO effects VALUES (?1)", [tick]).unwrap();
                    }
                    tx.commit().unwrap();
                }
            });
        }
    });
    let (all, distinct): (i64, i64) = db
        .conn()
        .query_row("SELECT count(*), count(DISTINCT tick) FROM effects", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .unwrap();
    assert_eq!(all, distinct, "an effect came twice");
    assert!(all >= 1 && all <= ticks);
    assert_eq!(db.newest_tick("digest").unwrap().unwrap().tick.tick_ms, ticks);
}

#[test]
fn a_job_that_every_process_claims_is_run_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sqlite3");
    let db = Litelease::open_own(&path).unwrap();
    let runs = thread::scope(|scope| {
        let workers = ["a", "b", "c", "d"].map(|owner| {
            let path = &path;
            scope.spawn(move || {
                let db = Litelease::open_own(path).unwrap();
                let mut runs = 0;
                for tick in 1..=50 {
                    loop {
                        match db.claim_tick("nightly", owner, LONG, tick).unwrap() {
                            ClaimTickResult::Acquired { lease, attempt, .. } => {
                                assert_eq!(attempt, 1);
                                runs += 1;
                                let done = db.finish_tick(&lease, TickOutcome::Done).unwrap();
                                assert_eq!(done, FinishTickResult::Finished);
                            }
                            ClaimTickResult::Busy { .. } => {
                                thread::sleep(Duration::from_micros(200));
                                continue;
                            }
                            ClaimTickResult::AlreadyTaken(_) => {}
                            other @ ClaimTickResult::InFuture { .. } => panic!("{other:?}"),
                        }
                        break;
                    }
                }
                runs
            })
        });
        workers.map(|worker| worker.join().unwrap()).iter().sum::<i64>()
    });
    let tick = db.newest_tick("nightly").unwrap().unwrap().tick;
    assert_eq!(tick.newest(), NewestTick { tick_ms: 50, state: TickState::Done });
    assert!((1..=50).contains(&runs), "{runs} runs of 50 ticks");
    assert_eq!(db.token("nightly").unwrap(), Some(runs), "one grant for each run");
}

/// A transfer in autocommit is one statement; the tick must be carried in the same commit.
#[test]
fn a_transfer_in_autocommit_carries_the_tick_also_one_that_another_connection_has_begun() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sqlite3");
    let early = Litelease::open_own(&path).unwrap();
    let plain = acquired(early.claim("x", "a", LONG));
    let moved = early.transfer(&plain, "b", LONG).unwrap().transferred().unwrap();
    early.release(&moved).unwrap();
    // The handle knows a file without the table of ticks.
    let late = Litelease::open_own(&path).unwrap();
    let lease = granted(late.claim_tick("x", "a", LONG, 1000));
    let moved = early.transfer(&lease, "b", LONG).unwrap().transferred().unwrap();
    let info = late.newest_tick("x").unwrap().unwrap();
    assert_eq!((info.owner.as_deref(), info.tick.token), (Some("b"), moved.token));
    assert_eq!(info.holder, Some(moved.clone()));
    let stale = late.finish_tick(&lease, TickOutcome::Done).unwrap();
    assert!(matches!(stale, FinishTickResult::Stale { newest: Some(_) }));
    assert_eq!(late.finish_tick(&moved, TickOutcome::Done).unwrap(), FinishTickResult::Finished);
    assert_eq!(early.inspect("x").unwrap(), None, "the grant has ended");
    // A rejected transfer carries nothing.
    assert!(matches!(early.transfer(&moved, "c", LONG), Ok(TransferResult::Rejected { .. })));
}

#[test]
fn the_first_tick_disappears_with_its_transaction() {
    let mut db = memory();
    let tx = db.transaction().unwrap();
    assert_eq!(tx.tick("digest", 1000).unwrap(), TickResult::First);
    let _ = tx.claim_tick("nightly", "a", LONG, 1000).unwrap();
    drop(tx);
    assert_eq!(count(&db, "sqlite_schema WHERE name = 'litelease_newest_ticks'"), 0);
    assert_eq!(db.ticks().unwrap(), []);
    assert_eq!(db.tick("digest", 1000).unwrap(), TickResult::First);
}

#[test]
fn what_is_refused_takes_no_write_lock_and_makes_no_table() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sqlite3");
    let db = Litelease::open_own(&path).unwrap();
    let ahead = now_ms() + 3_600_000;
    let future = db.claim_tick("x", "a", LONG, ahead).unwrap();
    assert!(matches!(future, ClaimTickResult::InFuture { .. }));
    assert_eq!(db.forget_tick("x").unwrap(), TickChange::Unknown);
    assert_eq!(db.tick_again("x").unwrap(), TickChange::Unknown);
    assert_eq!(count(&db, "sqlite_schema WHERE name = 'litelease_newest_ticks'"), 0);
    let _ = granted(db.claim_tick("x", "a", LONG, 1000));
    let writer = Connection::open(&path).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let busy = db.claim_tick("x", "b", LONG, 1000).unwrap();
    assert!(matches!(busy, ClaimTickResult::Busy { tick_ms: Some(1000), .. }));
    let taken = db.claim_tick("x", "b", LONG, 999).unwrap();
    assert!(matches!(taken, ClaimTickResult::AlreadyTaken(newest) if newest.tick_ms == 1000));
    assert_eq!(db.ticks().unwrap().len(), 1);
}

#[test]
fn at_most_once_is_refused_by_every_verb() {
    let db = memory();
    let asked = TickRequest { tick_ms: 1000, attempts: 1 };
    let first = granted(db.at(1000).claim_tick("pay", "a", Duration::from_millis(50), asked));
    let again = db.at(1050).claim_tick("pay", "b", LONG, 1000).unwrap();
    assert!(
        matches!(again, ClaimTickResult::AlreadyTaken(newest) if newest.state == TickState::Open)
    );
    assert!(matches!(db.at(1050).tick("pay", 1000), Ok(TickResult::AlreadyTaken(_))));
    // Its own holder may still finish it.
    assert!(db.at(2000).finish_tick(&first, TickOutcome::Done).unwrap().is_finished());
    let none = db.claim_tick("pay", "a", LONG, TickRequest { tick_ms: 2000, attempts: 0 });
    assert_eq!(none.unwrap_err().kind(), "InvalidAttempts");
}

#[test]
fn a_tick_changes_nothing_else_of_the_connection() {
    let db = memory();
    db.conn().execute_batch("CREATE TABLE t (x); INSERT INTO t (rowid, x) VALUES (77, 1)").unwrap();
    let _ = db.tick("digest", 1000).unwrap();
    let _ = granted(db.claim_tick("nightly", "a", LONG, 1000));
    let _ = db.skip_ticks("other", None, false).unwrap();
    assert_eq!(db.conn().last_insert_rowid(), 77);
    assert!(db.conn().is_autocommit());
}

#[test]
fn a_file_with_ticks_is_not_retired_and_a_retired_file_takes_none() {
    let db = memory();
    let _ = db.tick("digest", 1000).unwrap();
    let floor = 1 << 40;
    let in_use = RetireResult::InUse { items: 0, kept: 0, ticks: 1 };
    assert_eq!(db.retire(floor, "etcd://h/x").unwrap(), in_use);
    assert!(matches!(db.forget_tick("digest").unwrap(), TickChange::Changed(_)));
    assert!(matches!(db.retire(floor, "etcd://h/x").unwrap(), RetireResult::Retired(_)));
    assert_eq!(db.tick("digest", 2000).unwrap_err().kind(), "TokenExhausted");
    let claimed = db.claim_tick("digest", "a", LONG, 2000);
    assert_eq!(claimed.unwrap_err().kind(), "TokenExhausted");
}

#[test]
fn a_restored_file_keeps_its_ticks_and_a_holder_from_before_finishes_none() {
    let db = memory();
    let lease = granted(db.claim_tick("nightly", "a", LONG, 1000));
    db.restore_fence().unwrap();
    let stale = db.finish_tick(&lease, TickOutcome::Done).unwrap();
    assert!(matches!(stale, FinishTickResult::Stale { .. }));
    let next = granted(db.claim_tick("nightly", "b", LONG, 1000));
    assert!(next.token > lease.token);
}

#[test]
fn foreign_and_damaged_tables_are_refused() {
    for (damage, reason) in [
        ("ALTER TABLE litelease_newest_ticks ADD COLUMN more", "differs"),
        ("CREATE TRIGGER t AFTER UPDATE ON litelease_newest_ticks BEGIN SELECT 1; END", "trigger"),
        ("DROP TABLE litelease_newest_ticks; CREATE TABLE litelease_newest_ticks (theirs)", ""),
        ("UPDATE litelease_newest_ticks SET tick_ms = 'soon'", "damaged"),
        ("UPDATE litelease_newest_ticks SET owner = x'00'", "damaged"),
    ] {
        let db = memory();
        let _ = db.tick("digest", 1000).unwrap();
        let lease = acquired(db.claim("plain", "a", LONG));
        db.conn().execute_batch(damage).unwrap();
        let error = db.tick("digest", 2000).unwrap_err();
        assert!(matches!(error, Error::SchemaMismatch { .. }), "{damage}: {error}");
        assert!(error.to_string().contains("litelease_newest_ticks"), "{damage}: {error}");
        assert!(reason != "damaged" || error.to_string().contains(reason), "{damage}: {error}");
        assert!(db.claim_tick("digest", "a", LONG, 2000).is_err(), "{damage}");
        // A plain lease has nothing to do with it.
        assert!(matches!(db.renew(&lease, LONG), Ok(litelease::RenewResult::Renewed(_))));
        let _ = acquired(db.claim("other", "a", LONG));
    }
}

#[test]
fn names_and_owners_are_compared_as_they_are() {
    let db = memory();
    for name in ["", " ", "a\0b", "e\u{301}", "\u{e9}", "'; DROP TABLE x; --"] {
        assert_eq!(db.tick(name, 1000).unwrap(), TickResult::First, "{name:?}");
        assert!(matches!(db.tick(name, 1000), Ok(TickResult::AlreadyTaken(_))), "{name:?}");
    }
    assert_eq!(db.ticks().unwrap().len(), 6);
    for tick_ms in [i64::MIN, -1, 0] {
        assert_eq!(db.tick(&format!("at {tick_ms}"), tick_ms).unwrap(), TickResult::First);
    }
    assert!(matches!(db.tick("x", i64::MAX), Ok(TickResult::InFuture { .. })));
    assert!(matches!(db.skip_ticks("x", Some(i64::MAX), false), Ok(TickChange::Changed(_))));
    assert!(matches!(db.tick("x", now_ms()), Ok(TickResult::AlreadyTaken(_))));
}
