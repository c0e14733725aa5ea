//! Pools of numbered slots: their cost, their tokens after accidents, damage, and many processes at
//! once.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use litelease::rusqlite::{Connection, StatementStatus};
use litelease::{BorrowOptions, Error, Litelease};
use litelease_proof::rig::{Dice, LONG, TestFolder, memory, report, sqlite_code};
use litelease_store::LOWEST_FREE;

/// A pool of which the lower half is lent out, and the upper half was.
///
/// Comes with a count of the steps that SQLite takes, whatever statements they belong to.
fn half_full(count: i64) -> (Litelease, Arc<AtomicI64>) {
    let counter = Arc::new(AtomicI64::new(0));
    let mut conn = Connection::open_in_memory().unwrap();
    let counting = Arc::clone(&counter);
    conn.progress_handler(1, Some(move || counting.fetch_add(1, Ordering::Relaxed) < 0)).unwrap();
    let db = Litelease::from_connection(conn);
    db.bootstrap().unwrap();
    db.pools().register("p", count).unwrap();
    let conn = db.conn();
    conn.execute_batch(&format!(
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {count})
         INSERT INTO litelease_pool_slots (slot, token, lease, expires_at_ms)
         SELECT 1 << 20 | i, i + 1, iif(i < {count} / 2, 'lease' || i, NULL), iif(i < {count} / 2, 1000000, NULL) FROM n;
         UPDATE litelease_pools SET used = {count} / 2, newest = {count};"
    ))
    .unwrap();
    (db, counter)
}

#[test]
fn the_lowest_free_slot_costs_the_same_in_a_pool_of_any_size() {
    let steps = [1_000, 100_000].map(|count| {
        let (db, _) = half_full(count);
        let steps_to = |position: i64| {
            let mut lowest = db.conn().prepare(LOWEST_FREE).unwrap();
            let found: i64 = lowest.query_row([1], |row| row.get(0)).unwrap();
            assert_eq!(found, position);
            lowest.get_status(StatementStatus::VmStep)
        };
        let freed = steps_to(count / 2);
        // None is free: the one after all that were ever lent out.
        let lend_all = "UPDATE litelease_pool_slots SET lease = 'x', expires_at_ms = 1000000 WHERE lease IS NULL";
        db.conn().execute(lend_all, []).unwrap();
        [freed, steps_to(count)]
    });
    report(&format!(
        "lowest free slot, or else the next one: {:?} VM steps at 1,000 slots, {:?} at 100,000",
        steps[0], steps[1]
    ));
    assert_eq!(steps[0], steps[1]);
    assert!(steps[0].iter().all(|steps| *steps <= 60), "{steps:?}");
}

#[test]
fn a_whole_borrow_costs_the_same_in_a_pool_of_any_size_and_among_any_number_of_pools() {
    let ttl = Duration::from_millis(50);
    let measure = |count: i64, others: i64| {
        let (db, counter) = half_full(count);
        for other in 0..others {
            db.pools().register(&format!("other {other}"), 1).unwrap();
        }
        // Statements are compiled, and the schema looked at, before it counts.
        let first = db.pools().at(100).borrow("p", ttl).unwrap().unwrap();
        assert!(db.pools().at(100).return_slot("p", &first.lease_id).unwrap());
        let before = counter.load(Ordering::Relaxed);
        let lent = db.pools().at(100).borrow("p", ttl).unwrap();
        assert_eq!(lent.unwrap().slot.position, count / 2);
        counter.load(Ordering::Relaxed) - before
    };
    let (small, large, crowded) = (measure(1_000, 0), measure(100_000, 0), measure(1_000, 1_000));
    report(&format!(
        "a borrow: {small} VM steps at 1,000 slots, {large} at 100,000, {crowded} among 1,000 pools"
    ));
    assert_eq!(small, large);
    assert_eq!(small, crowded);
    assert!(small > 50, "{small} steps: this counts nothing");
}

#[test]
fn a_full_pool_is_told_without_the_write_lock() {
    let place = TestFolder::new("WAL");
    let (db, other) = (place.open(Duration::ZERO), place.connect(Duration::ZERO));
    let pools = db.pools();
    pools.register("p", 1).unwrap();
    let lent = pools.borrow("p", LONG).unwrap().unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(pools.borrow("p", LONG).unwrap(), None);
    assert!(!pools.return_slot("p", "unknown").unwrap());
    assert_eq!(pools.renew("p", "unknown", LONG).unwrap(), None);
    assert_eq!(pools.info("p").unwrap().unwrap().in_use, 1);
    assert_eq!(sqlite_code(pools.return_slot("p", &lent.lease_id)), 5);
    other.execute_batch("ROLLBACK").unwrap();
    assert!(pools.return_slot("p", &lent.lease_id).unwrap());
}

#[test]
fn tokens_of_pools_go_on_above_all_lost_ones_after_a_power_cut() {
    // WAL with synchronous=NORMAL may lose what it has acknowledged. Here it does: the copy is from
    // before.
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    db.conn().execute_batch("PRAGMA synchronous = NORMAL").unwrap();
    db.bootstrap().unwrap();
    db.pools().register("p", 5).unwrap();
    db.pools().borrow("p", LONG).unwrap().unwrap();
    let copy = place.folder.path().join("copy.sqlite3");
    db.conn().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    let lost = db.pools().borrow("p", LONG).unwrap().unwrap();
    assert_eq!(lost.slot.token, 2);

    // In the same boot numbers are dense; in another one they are not.
    let after = Litelease::open(&copy).unwrap();
    after.conn().execute_batch("UPDATE litelease_meta SET boot = 4711").unwrap();
    let next = after.pools().borrow("p", LONG).unwrap().unwrap();
    assert_eq!((next.slot.position, next.slot.token), (1, (1 << 32) + 1));
}

#[test]
fn a_restored_file_is_fenced_with_its_pools() {
    let db = memory();
    let pools = db.pools();
    pools.register("p", 2).unwrap();
    let old = pools.borrow("p", LONG).unwrap().unwrap();
    let floor = db.restore_fence().unwrap();
    assert!(floor > old.slot.token);
    assert_eq!(pools.info("p").unwrap().unwrap().in_use, 0);
    assert_eq!(pools.renew("p", &old.lease_id, LONG).unwrap(), None);
    assert_eq!(pools.borrow("p", LONG).unwrap().unwrap().slot.token, floor + 1);
}

#[test]
fn a_token_counts_even_if_its_slot_was_given_back_or_its_pool_deleted_in_the_same_commit() {
    let db = memory();
    let pools = db.pools();
    pools.register("p", 2).unwrap();
    let mut newest = 0;
    for deletes in [false, true, false] {
        db.begin_batch().unwrap();
        let lent = pools.borrow("p", LONG).unwrap().unwrap();
        assert!(lent.slot.token > newest, "{lent:?} after {newest}");
        newest = lent.slot.token;
        match deletes {
            false => assert!(pools.return_slot("p", &lent.lease_id).unwrap()),
            true => {
                assert!(pools.delete("p").unwrap());
                pools.register("p", 2).unwrap();
            }
        }
        db.commit_batch().unwrap();
        assert_eq!(pools.info("p").unwrap().unwrap().in_use, 0);
    }
    assert!(pools.borrow("p", LONG).unwrap().unwrap().slot.token > newest);
}

#[test]
fn a_batch_answers_and_stores_what_a_plain_transaction_would() {
    // A batch remembers what it has read and stores counts once; a plain transaction remembers
    // nothing.
    let (batched, plain) = (memory(), memory());
    let (mut dice, mut leases) = (Dice::new("batches"), Vec::new());
    for turn in 0..400 {
        batched.begin_batch().unwrap();
        plain.conn().execute_batch("BEGIN IMMEDIATE").unwrap();
        for _ in 0..=dice.below(9) {
            // Also a little before and after, which is another time to the same pool.
            let now_ms = turn * 3 + [0, 0, 0, 7, -7][dice.below(5) as usize];
            play(&batched, &plain, &mut dice, &mut leases, 1_000 + now_ms);
        }
        let is_kept = dice.below(4) > 0;
        if is_kept { batched.commit_batch() } else { batched.rollback_batch() }.unwrap();
        plain.conn().execute_batch(if is_kept { "COMMIT" } else { "ROLLBACK" }).unwrap();
        assert_eq!(stored(&batched), stored(&plain), "turn {turn}");
    }
}

/// Asks both the same, at the same time.
fn play(a: &Litelease, b: &Litelease, dice: &mut Dice, leases: &mut Vec<[String; 2]>, now_ms: i64) {
    let id = ["p", "q", "r"][dice.below(3) as usize];
    let (verb, number, key) = (dice.below(16), dice.below(5), format!("k{}", dice.below(6)));
    let (count, ttl) = (number as i64, Duration::from_millis(10 * number + 1));
    // One of the last few: most others are over.
    let lease = leases.iter().rev().nth(dice.below(6) as usize).cloned();
    let mut lent = Vec::new();
    let [one, other] = [(0, a), (1, b)].map(|(side, db)| {
        let pools = db.pools();
        let lease = lease.as_ref().map_or("", |lease| &lease[side]);
        match verb {
            0 | 1 => answer_text(pools.at(now_ms).register(id, count)),
            2 => answer_text(pools.at(now_ms).info(id)),
            3 => answer_text(pools.at(now_ms).slots(id)),
            4 if number == 0 => answer_text(pools.delete(id)),
            4..=6 => answer_text(pools.at(now_ms).return_slot(id, lease)),
            7 => answer_text(pools.at(now_ms).renew(id, lease, ttl)),
            _ => {
                let options =
                    if verb < 11 { BorrowOptions::new().key(&key) } else { BorrowOptions::new() };
                let borrowed = pools.at(now_ms).borrow_with(id, ttl, options);
                answer_text(borrowed.map(|borrowed| {
                    borrowed.map(|borrowed| {
                        lent.push(borrowed.lease_id);
                        borrowed.slot
                    })
                }))
            }
        }
    });
    assert_eq!(one, other, "verb {verb} on {id}, at {now_ms}");
    leases.extend(<[String; 2]>::try_from(lent));
}

/// An answer as a text.
fn answer_text(answer: litelease::Result<impl Debug>) -> String {
    answer.map_or_else(|error| error.to_string(), |answer| format!("{answer:?}"))
}

/// All that is stored but the UUIDs; what was counted is what is there.
fn stored(db: &Litelease) -> Vec<String> {
    let sql = "SELECT printf('%s: %d of %d, %d', id, used, count, newest) FROM litelease_pools
        UNION ALL SELECT printf('%d: %d %d %s', slot, token, expires_at_ms, key) FROM litelease_pool_slots
        UNION ALL SELECT printf('%s is not as counted', id) FROM litelease_pools
        WHERE (used, newest) IS NOT
        (SELECT count(lease), max(token) FROM litelease_pool_slots WHERE pool = number)";
    let Ok(mut statement) = db.conn().prepare(sql) else { return Vec::new() };
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    let rows: Vec<String> = rows.map(Result::unwrap).collect();
    assert!(!rows.iter().any(|row| row.ends_with("counted")), "{rows:?}");
    rows
}

#[test]
fn what_the_caller_inserted_last_stays_so() {
    let db = memory();
    db.conn().execute_batch("CREATE TABLE mine (x); INSERT INTO mine VALUES (1), (2)").unwrap();
    db.pools().register("p", 2).unwrap();
    // The first one makes its row, the second one finds it.
    for _ in 0..2 {
        let lent = db.pools().borrow("p", LONG).unwrap().unwrap();
        assert_eq!(db.conn().last_insert_rowid(), 2);
        assert!(db.pools().return_slot("p", &lent.lease_id).unwrap());
    }
}

#[test]
fn the_last_number_of_a_pool_has_slots_and_one_after_it_is_refused() {
    let db = memory();
    let pools = db.pools();
    pools.register("p", 2).unwrap();
    db.conn().execute("UPDATE litelease_pools SET number = (1 << 43) - 1", []).unwrap();
    let lent = [0, 1].map(|_| pools.borrow("p", LONG).unwrap().unwrap());
    assert_eq!(lent.each_ref().map(|lent| lent.slot.position), [0, 1]);
    assert!(lent.iter().all(|lent| pools.return_slot("p", &lent.lease_id).unwrap()));
    db.conn().execute("UPDATE litelease_pools SET number = 1 << 43", []).unwrap();
    assert!(matches!(pools.borrow("p", LONG), Err(Error::SchemaMismatch { .. })));
}

#[test]
fn a_lease_of_another_slot_or_pool_is_unknown() {
    let db = memory();
    let pools = db.pools();
    for pool in ["p", "q"] {
        pools.register(pool, 2).unwrap();
    }
    let [first, second] = [0, 1].map(|_| pools.borrow("p", LONG).unwrap().unwrap().lease_id);
    // The position of one with the rest of the other.
    let mixed = format!("{}{}", &first[..28], &second[28..]);
    assert_ne!(first[28..], second[28..]);
    for (pool, lease) in [
        ("p", &*mixed),
        ("q", &first),
        ("p", &first.to_uppercase()),
        ("p", &first[..35]),
        ("p", ""),
    ] {
        assert!(!pools.return_slot(pool, lease).unwrap(), "{pool}: {lease}");
        assert_eq!(pools.renew(pool, lease, LONG).unwrap(), None);
    }
    assert!(pools.return_slot("p", &first).unwrap());
    assert!(pools.return_slot("p", &second).unwrap());
}

#[test]
fn tables_that_are_not_ours_are_refused_by_name() {
    for (damage, table) in [
        ("DROP TABLE litelease_pool_slots", "litelease_pool_slots"),
        ("ALTER TABLE litelease_pools ADD COLUMN extra", "litelease_pools"),
        (
            "CREATE TRIGGER t BEFORE INSERT ON litelease_pool_slots BEGIN SELECT RAISE(IGNORE); END",
            "litelease_pool_slots",
        ),
        (
            "CREATE TEMP TRIGGER t BEFORE UPDATE ON litelease_pool_slots BEGIN SELECT RAISE(IGNORE); END",
            "litelease_pool_slots",
        ),
    ] {
        let db = memory();
        db.pools().register("p", 1).unwrap();
        let lent = db.pools().borrow("p", LONG).unwrap().unwrap();
        db.conn().execute_batch(damage).unwrap();
        let tried: Vec<Error> = [
            db.pools().borrow("p", LONG).map(drop).unwrap_err(),
            db.pools().return_slot("p", &lent.lease_id).map(drop).unwrap_err(),
            db.pools().register("p", 2).map(drop).unwrap_err(),
            db.pools().delete("p").map(drop).unwrap_err(),
        ]
        .into();
        for error in tried {
            assert!(
                matches!(&error, Error::SchemaMismatch { table: named, .. } if *named == table),
                "{damage}: {error}"
            );
        }
    }
}

#[test]
fn a_borrow_that_fails_half_way_leaves_nothing_in_the_callers_transaction() {
    let db = memory();
    db.pools().register("p", 2).unwrap();
    db.pools().at(100).borrow("p", Duration::from_millis(1)).unwrap().unwrap();
    // There is no larger token, which is found out when the slot is free already.
    db.conn()
        .execute_batch("UPDATE litelease_pools SET newest = 9223372036854775807; BEGIN IMMEDIATE")
        .unwrap();
    let refused = db.pools().at(200).borrow("p", LONG);
    assert!(matches!(refused, Err(Error::TokenExhausted { .. })), "{refused:?}");
    db.conn().execute_batch("COMMIT").unwrap();
    let left: i64 = db
        .conn()
        .query_row("SELECT count(*) FROM litelease_pool_slots WHERE lease IS NOT NULL", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(left, 1, "the sweep was not undone");
}

#[test]
fn notes_and_keys_have_their_limits() {
    let db = memory();
    let pools = db.pools();
    pools.register("p", 2).unwrap();
    let long = "x".repeat(201);
    for options in [
        BorrowOptions::new().note(&long),
        BorrowOptions::new().key(&long),
        BorrowOptions::new().key(""),
    ] {
        let refused = pools.borrow_with("p", LONG, options);
        assert!(matches!(refused, Err(Error::InvalidText { .. })), "{refused:?}");
    }
    assert_eq!(pools.slots("p").unwrap(), []);
    let most = "é".repeat(100);
    pools.borrow_with("p", LONG, BorrowOptions::new().note(&most).key(&most)).unwrap().unwrap();
    assert_eq!(pools.slots("p").unwrap()[0].note.as_deref(), Some(most.as_str()));
}

#[test]
fn errors_do_not_tell_the_id_of_a_pool_or_a_lease() {
    let place = TestFolder::new("DELETE");
    let (db, other) = (place.open(Duration::ZERO), place.connect(Duration::ZERO));
    let secret = "5ec7e700-0000-4000-8000-000000000000";
    db.pools().register(secret, 1).unwrap();
    let lent = db.pools().borrow(secret, LONG).unwrap().unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let errors = [
        db.pools().borrow(secret, LONG).map(drop).unwrap_err(),
        db.pools().borrow(secret, Duration::ZERO).map(drop).unwrap_err(),
        db.pools().return_slot(secret, &lent.lease_id).map(drop).unwrap_err(),
        db.pools().renew(secret, &lent.lease_id, LONG).map(drop).unwrap_err(),
        db.pools().register(secret, -1).map(drop).unwrap_err(),
        db.pools().delete(secret).map(drop).unwrap_err(),
    ];
    for error in errors {
        let text = format!("{error} {error:?}");
        assert!(!text.contains(secret) && !text.contains(&lent.lease_id), "{text}");
    }
}

#[test]
fn threads_on_one_file_never_have_the_same_slot_and_no_token_comes_twice() {
    let place = TestFolder::new("WAL");
    place.open(LONG).pools().register("p", 3).unwrap();
    let taken = [const { AtomicI64::new(0) }; 3];
    let tokens: Vec<i64> = thread::scope(|scope| {
        let workers: Vec<_> = (0..6)
            .map(|_| {
                scope.spawn(|| {
                    let db = place.open(LONG);
                    let mut tokens = Vec::new();
                    while tokens.len() < 100 {
                        let Some(lent) = db.pools().borrow("p", LONG).unwrap() else { continue };
                        let slot = &taken[usize::try_from(lent.slot.position).unwrap()];
                        assert_eq!(slot.fetch_add(1, Ordering::SeqCst), 0, "two have {lent:?}");
                        tokens.push(lent.slot.token);
                        slot.fetch_sub(1, Ordering::SeqCst);
                        assert!(db.pools().return_slot("p", &lent.lease_id).unwrap());
                    }
                    tokens
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), 600);
    assert_eq!(tokens.iter().max(), Some(&600));
    assert_eq!(place.open(LONG).pools().info("p").unwrap().unwrap().in_use, 0);
}

#[test]
fn a_pool_can_be_the_first_thing_in_a_callers_deferred_transaction() {
    let db = memory();
    db.conn().execute_batch("BEGIN").unwrap();
    db.pools().register("p", 1).unwrap();
    let lent = db.pools().borrow("p", LONG).unwrap().unwrap();
    db.conn().execute_batch("COMMIT").unwrap();
    assert_eq!(db.pools().slot("p", &lent.lease_id).unwrap(), Some(lent.slot));
}

#[test]
fn a_batch_that_is_dropped_stores_nothing() {
    let db = memory();
    db.pools().register("a", 2).unwrap();
    let borrow = || db.pools().borrow("a", LONG).unwrap().unwrap();
    let in_use = || db.pools().info("a").unwrap().unwrap().in_use;

    db.with_store(|store| {
        let _batch = store.begin_batch()?;
        borrow();
        Ok(())
    })
    .unwrap();
    assert!(db.conn().is_autocommit());
    assert_eq!(in_use(), 0);

    db.with_store(|store| {
        let batch = store.begin_batch()?;
        borrow();
        batch.commit()
    })
    .unwrap();
    assert!(db.conn().is_autocommit());
    assert_eq!(in_use(), 1);
}
