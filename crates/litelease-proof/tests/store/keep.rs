//! Slots that are kept: lists, resizes, restores, operators, damage, and what a borrow costs beside
//! them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use litelease::rusqlite::Connection;
use litelease::{BorrowOptions, Error, KEPT, Litelease};
use litelease_proof::rig::{LONG, TestFolder, memory};

const SHORT: Duration = Duration::from_millis(50);

/// A pool of 3 slots of which the first, borrowed by Ada, is kept since 120.
fn with_a_kept_slot() -> (Litelease, String) {
    let db = memory();
    let pools = db.pools();
    pools.register("seats", 3).unwrap();
    let options = BorrowOptions::new().note("Ada");
    let lent = pools.at(100).borrow_with("seats", SHORT, options).unwrap().unwrap();
    assert!(pools.at(120).keep("seats", &lent.lease_id).unwrap());
    (db, lent.lease_id)
}

#[test]
fn a_kept_slot_is_listed_with_its_note_and_since_when() {
    let (db, lease) = with_a_kept_slot();
    let pools = db.pools();
    assert!(pools.at(140).keep("seats", &lease).unwrap(), "keeping twice is a yes");
    pools.at(100).borrow("seats", SHORT).unwrap().unwrap();
    for now_ms in [130, i64::MAX] {
        let slots = pools.at(now_ms).slots("seats").unwrap();
        let kept = &slots[0];
        assert!(kept.slot.is_kept() && kept.slot.expires_at_ms == KEPT);
        assert_eq!((kept.note.as_deref(), kept.kept_since_ms), (Some("Ada"), Some(120)));
        assert_eq!(slots.get(1).and_then(|row| row.kept_since_ms), None);
        assert_eq!(slots.len(), if now_ms == 130 { 2 } else { 1 }, "at {now_ms}");
        let in_use = pools.at(now_ms).info("seats").unwrap().unwrap().in_use;
        assert_eq!(in_use, slots.len() as i64, "at {now_ms}");
    }
    assert!(pools.at(i64::MAX).keep("seats", &lease).unwrap());
    assert!(pools.at(i64::MAX).return_slot("seats", &lease).unwrap());
}

#[test]
fn the_next_lease_on_a_slot_that_was_kept_is_kept_since_another_time() {
    let (db, lease) = with_a_kept_slot();
    let pools = db.pools();
    assert!(pools.at(200).return_slot("seats", &lease).unwrap());
    let left: i64 = db
        .conn()
        .query_row("SELECT count(*) FROM litelease_kept_slots", [], |row| row.get(0))
        .unwrap();
    assert_eq!(left, 0, "a returned slot leaves nothing behind");
    let next = pools.at(300).borrow("seats", SHORT).unwrap().unwrap();
    assert_eq!(pools.at(300).slots("seats").unwrap()[0].kept_since_ms, None);
    assert!(pools.at(310).keep("seats", &next.lease_id).unwrap());
    assert_eq!(pools.at(320).slots("seats").unwrap()[0].kept_since_ms, Some(310));
}

#[test]
fn the_next_expiry_of_a_pool_is_not_that_of_a_kept_slot() {
    let (db, _) = with_a_kept_slot();
    assert_eq!(db.pools().next_expiry("seats").unwrap(), None);
    db.pools().at(100).borrow("seats", SHORT).unwrap().unwrap();
    assert_eq!(db.pools().next_expiry("seats").unwrap(), Some(150));
}

#[test]
fn a_kept_slot_survives_a_resize_to_nothing_and_back() {
    let (db, lease) = with_a_kept_slot();
    let pools = db.pools().at(1_000_000);
    let info = pools.register("seats", 0).unwrap();
    assert_eq!((info.count, info.in_use), (0, 1));
    assert_eq!(pools.borrow("seats", SHORT).unwrap(), None);
    pools.register("seats", 2).unwrap();
    assert_eq!(pools.borrow("seats", SHORT).unwrap().unwrap().slot.position, 1);
    assert_eq!(pools.borrow("seats", SHORT).unwrap(), None);
    assert!(pools.return_slot("seats", &lease).unwrap());
}

#[test]
fn a_restore_ends_every_lease_but_those_that_are_kept_which_get_new_tokens() {
    let (db, lease) = with_a_kept_slot();
    let pools = db.pools();
    pools.register("others", 3).unwrap();
    let other = pools.borrow("others", LONG).unwrap().unwrap();
    let second = pools.borrow("others", LONG).unwrap().unwrap();
    assert!(pools.keep("others", &second.lease_id).unwrap());
    let third = pools.borrow("seats", LONG).unwrap().unwrap();
    assert!(pools.keep("seats", &third.lease_id).unwrap());

    let floor = db.restore_fence().unwrap();
    assert!(!pools.return_slot("others", &other.lease_id).unwrap());
    let mut tokens = Vec::new();
    for (pool, lease, position) in
        [("seats", &lease, 0), ("seats", &third.lease_id, 1), ("others", &second.lease_id, 1)]
    {
        let slot = pools.slot(pool, lease).unwrap().unwrap();
        assert!(slot.is_kept() && slot.token > floor, "{slot:?} is not above {floor}");
        assert_eq!(slot.position, position);
        tokens.push(slot.token);
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 3, "each has a token of its own");
    assert_eq!(pools.info("seats").unwrap().unwrap().in_use, 2);
    assert_eq!(pools.info("others").unwrap().unwrap().in_use, 1);
    assert_eq!(pools.newest_token().unwrap(), tokens[2]);
    assert_eq!(pools.slots("seats").unwrap()[0].kept_since_ms, Some(120));
    // The next grant is larger than all of them, in either pool.
    for pool in ["others", "seats"] {
        let next = pools.borrow(pool, LONG).unwrap().unwrap().slot;
        assert!(next.token > tokens[2], "{next:?}");
    }
}

#[test]
fn an_operator_frees_a_kept_slot_by_position_and_token_and_no_other() {
    let (db, lease) = with_a_kept_slot();
    let pools = db.pools();
    let kept = pools.slot("seats", &lease).unwrap().unwrap();
    let lent = pools.borrow("seats", LONG).unwrap().unwrap().slot;
    for (position, token) in [
        (0, kept.token + 1),
        (0, kept.token - 1),
        (1, kept.token),
        (lent.position, lent.token),
        (2, 1),
        (-1, kept.token),
        (1 << 20, kept.token),
        (i64::MIN, kept.token),
    ] {
        assert!(!pools.free_kept("seats", position, token).unwrap(), "{position} {token}");
    }
    assert!(matches!(pools.free_kept("none", 0, kept.token), Err(Error::NoSuchPool)));
    assert!(pools.free_kept("seats", 0, kept.token).unwrap());
    assert!(!pools.free_kept("seats", 0, kept.token).unwrap());
    assert!(!pools.return_slot("seats", &lease).unwrap());
    assert_eq!(pools.info("seats").unwrap().unwrap().in_use, 1);
}

#[test]
fn a_transaction_that_is_rolled_back_takes_the_keep_with_it() {
    let mut db = memory();
    db.pools().register("seats", 1).unwrap();
    let lent = db.pools().at(100).borrow("seats", SHORT).unwrap().unwrap();
    let tx = db.transaction().unwrap();
    assert!(tx.pools().at(110).keep("seats", &lent.lease_id).unwrap());
    drop(tx);
    assert_eq!(db.pools().slot("seats", &lent.lease_id).unwrap(), Some(lent.slot));
    let tables = "SELECT count(*) FROM sqlite_schema WHERE name = 'litelease_kept_slots'";
    assert_eq!(db.conn().query_row(tables, [], |row| row.get::<_, i64>(0)).unwrap(), 0);
}

#[test]
fn a_table_of_kept_slots_that_is_not_ours_is_refused_by_name_and_nothing_is_kept() {
    for damage in [
        "CREATE TABLE litelease_kept_slots (slot INTEGER PRIMARY KEY, since TEXT)",
        "CREATE VIEW litelease_kept_slots AS SELECT 1 AS slot, 2 AS since_ms",
    ] {
        let db = memory();
        db.pools().register("seats", 1).unwrap();
        let lent = db.pools().borrow("seats", LONG).unwrap().unwrap();
        db.conn().execute_batch(damage).unwrap();
        let refused = db.pools().keep("seats", &lent.lease_id).unwrap_err();
        let Error::SchemaMismatch { table, .. } = &refused else { panic!("{refused}") };
        assert_eq!(*table, "litelease_kept_slots");
        assert_eq!(db.pools().slot("seats", &lent.lease_id).unwrap(), Some(lent.slot));
    }
}

#[test]
fn keeping_a_slot_that_is_kept_or_over_takes_no_write_lock() {
    let place = TestFolder::new("WAL");
    let (db, other) = (place.open(Duration::ZERO), place.connect(Duration::ZERO));
    db.pools().register("seats", 2).unwrap();
    let [kept, over] = [0, 1].map(|_| db.pools().at(100).borrow("seats", SHORT).unwrap().unwrap());
    assert!(db.pools().at(100).keep("seats", &kept.lease_id).unwrap());
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(db.pools().at(200).keep("seats", &kept.lease_id).unwrap());
    assert!(!db.pools().at(200).keep("seats", &over.lease_id).unwrap());
    assert!(!db.pools().at(200).keep("seats", "unknown").unwrap());
    assert!(db.pools().at(149).keep("seats", &over.lease_id).is_err(), "this one must write");
    assert!(!db.pools().free_kept("seats", 1, over.slot.token).unwrap());
}

#[test]
fn what_the_caller_inserted_last_stays_so_when_a_slot_is_kept() {
    let db = memory();
    db.conn().execute_batch("CREATE TABLE mine (x); INSERT INTO mine VALUES (1), (2)").unwrap();
    db.pools().register("seats", 1 << 10).unwrap();
    for _ in 0..3 {
        let lent = db.pools().borrow("seats", LONG).unwrap().unwrap();
        assert!(db.pools().keep("seats", &lent.lease_id).unwrap());
        assert_eq!(db.conn().last_insert_rowid(), 2);
    }
}

#[test]
fn a_borrow_costs_the_same_beside_any_number_of_kept_slots() {
    let counter = Arc::new(AtomicI64::new(0));
    let mut conn = Connection::open_in_memory().unwrap();
    let counting = Arc::clone(&counter);
    conn.progress_handler(1, Some(move || counting.fetch_add(1, Ordering::Relaxed) < 0)).unwrap();
    let db = Litelease::from_connection(conn);
    db.bootstrap().unwrap();
    let pools = db.pools();
    pools.register("seats", 1_000).unwrap();
    let round = || {
        let before = counter.load(Ordering::Relaxed);
        let lent = pools.borrow("seats", LONG).unwrap().unwrap();
        assert!(pools.return_slot("seats", &lent.lease_id).unwrap());
        counter.load(Ordering::Relaxed) - before
    };
    let keep = |count| {
        for _ in 0..count {
            let lent = pools.borrow("seats", LONG).unwrap().unwrap();
            assert!(pools.keep("seats", &lent.lease_id).unwrap());
        }
        round();
        round()
    };
    let (beside_one, beside_many) = (keep(1), keep(200));
    assert_eq!(beside_one, beside_many);
}

#[test]
fn a_broken_slot_is_free_for_others_and_its_holder_is_refused() {
    let db = memory();
    let (pools, ttl) = (db.pools(), Duration::from_millis(50));
    pools.register("few", 2).unwrap();
    let old = pools.at(100).borrow("few", ttl).unwrap().unwrap();
    let other = pools.at(100).borrow("few", ttl).unwrap().unwrap();
    let broken = |at_ms, position, token| pools.at(at_ms).break_slot("few", position, token);
    for (at_ms, position, token) in [(149, 1, 1), (149, 0, 2), (149, 1 << 20, 1), (150, 0, 1)] {
        assert!(!broken(at_ms, position, token).unwrap(), "{at_ms} {position} {token}");
    }
    assert!(broken(149, 0, old.slot.token).unwrap());
    assert!(!broken(149, 0, old.slot.token).unwrap());
    assert_eq!(pools.at(149).renew("few", &old.lease_id, ttl).unwrap(), None);
    assert!(!pools.at(149).return_slot("few", &old.lease_id).unwrap());
    let next = pools.at(149).borrow("few", ttl).unwrap().unwrap();
    assert_eq!((next.slot.position, next.slot.token), (0, 3));
    // Who has read the list before does not end the successor.
    assert!(!broken(149, 0, old.slot.token).unwrap());
    assert!(pools.at(149).renew("few", &other.lease_id, ttl).unwrap().is_some());
    assert!(pools.at(149).keep("few", &next.lease_id).unwrap());
    assert!(broken(1_000, 0, next.slot.token).unwrap(), "a slot that is kept, too");
    assert_eq!(pools.at(1_000).info("few").unwrap().unwrap().in_use, 0);
    assert!(matches!(pools.break_slot("none", 0, 1), Err(Error::NoSuchPool)));
}
