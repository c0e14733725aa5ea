//! A file whose leases went elsewhere: nothing is granted there, and everything else goes on, also
//! after a reboot.

use std::time::Duration;

use litelease::{
    BreakResult, ClaimResult, Error, Guard, Litelease, ReleaseResult, RenewResult, RetireResult,
    Retirement, is_stale,
};
use litelease_proof::boot::{Boot, pretend};
use litelease_proof::rig::{LONG, TestFolder, acquired};

const URL: &str = "etcd://10.0.0.1:2379/jobs";

fn in_boot(boot: i64, place: &TestFolder, synchronous: i64) -> Litelease {
    pretend(Some(Boot::Known(boot)));
    let conn = place.connect(Duration::ZERO);
    conn.pragma_update(None, "synchronous", synchronous).unwrap();
    let db = Litelease::from_connection(conn);
    db.bootstrap().unwrap();
    db
}

#[track_caller]
fn retire(db: &Litelease) -> Retirement {
    let floor = db.epoch().unwrap().next_floor().unwrap();
    match db.retire(floor, URL).unwrap() {
        RetireResult::Retired(retirement) => retirement,
        refused => panic!("{refused:?}"),
    }
}

#[track_caller]
fn is_exhausted<T: std::fmt::Debug>(answer: litelease::Result<T>) {
    assert!(matches!(answer, Err(Error::TokenExhausted { .. })), "{answer:?}");
}

#[test]
fn a_retired_file_grants_nothing_and_everything_else_goes_on() {
    for (journal, synchronous) in [("WAL", 2), ("WAL", 1), ("DELETE", 1)] {
        let place = TestFolder::new(journal);
        let db = in_boot(7, &place, synchronous);
        let a = acquired(db.claim("a", "me", LONG));
        let b = acquired(db.claim("b", "me", LONG));
        let c = acquired(db.claim("c", "me", LONG));
        db.pools().register("pool", 2).unwrap();
        let slot = db.pools().borrow("pool", LONG).unwrap().unwrap();
        assert_eq!(db.retirement().unwrap(), None);
        let retirement = retire(&db);
        db.conn().execute_batch("CREATE TABLE results (text)").unwrap();
        db.guard("results", "a", &Guard::by_connection()).unwrap();
        assert_eq!(retirement, Retirement { floor: 1 << 32, moved_to: URL.into() });

        is_exhausted(db.claim("d", "me", LONG));
        is_exhausted(db.claim_above("d", "me", LONG, 5));
        is_exhausted(db.transfer(&b, "you", LONG));
        is_exhausted(db.pools().borrow("pool", LONG));
        is_exhausted(db.queue("mail").send("x"));
        is_exhausted(db.restore_fence());
        assert!(matches!(db.raise(5), Err(Error::FloorTooLow { .. })));
        assert!(matches!(db.claim("a", "you", LONG).unwrap(), ClaimResult::Busy(_)));

        // The next boot, too.
        for boot in [7, 8] {
            let mut db = in_boot(boot, &place, synchronous);
            is_exhausted(db.claim("d", "me", LONG));
            assert!(matches!(db.renew(&a, LONG).unwrap(), RenewResult::Renewed(_)));
            assert_eq!(acquired(db.ensure("a", "me", LONG)).token, a.token);
            assert!(db.pools().renew("pool", &slot.lease_id, LONG).unwrap().is_some());
            assert!(db.present(("a", a.token)).unwrap());
            db.conn().execute("INSERT INTO results VALUES ('ours')", []).unwrap();
            let tx = db.transaction().unwrap();
            assert!(matches!(tx.renew(&b, LONG).unwrap(), RenewResult::Renewed(_)));
            is_exhausted(tx.claim("e", "me", LONG));
            tx.commit().unwrap();
            assert_eq!(db.retirement().unwrap(), Some(retirement.clone()));
            assert_eq!(db.slots_in_use().unwrap(), 1);
        }
        let db = in_boot(9, &place, synchronous);
        assert!(matches!(db.release(&b).unwrap(), ReleaseResult::Released { token: 1, .. }));
        is_exhausted(db.claim("b", "me", LONG));
        assert!(db.present(("a", a.token)).unwrap());
        let broken = db.break_lease("a").unwrap();
        assert!(matches!(broken, BreakResult::Broken { token: 1, .. }), "{broken:?}");
        assert_eq!(db.token("a").unwrap(), Some(i64::MAX));
        assert!(matches!(db.renew(&a, LONG).unwrap(), RenewResult::Rejected { .. }));
        let late = db.conn().execute("INSERT INTO results VALUES ('late')", []).unwrap_err();
        assert!(is_stale(&late), "{late}");
        is_exhausted(db.claim("a", "me", LONG));
        db.free_slots().unwrap();
        assert_eq!(db.slots_in_use().unwrap(), 0);
        assert!(db.pools().renew("pool", &slot.lease_id, LONG).unwrap().is_none());
        let _ = db.release(&c).unwrap();
        assert_eq!(db.purge(i64::MAX).unwrap(), 3);
        is_exhausted(db.claim("a", "me", LONG));
        assert_eq!(db.retirement().unwrap(), Some(retirement), "{journal} {synchronous}");
    }
    pretend(None);
}

#[test]
fn a_file_is_retired_only_below_the_floor_and_the_first_retirement_counts() {
    let db = litelease_proof::rig::memory();
    assert_eq!(acquired(db.claim_above("a", "me", LONG, 99)).token, 100);
    assert_eq!(db.retire(99, URL).unwrap(), RetireResult::TooLow { newest: 100 });
    assert_eq!(acquired(db.claim("b", "me", LONG)).token, 1, "nothing was written");
    let first = Retirement { floor: 100, moved_to: URL.into() };
    assert_eq!(db.retire(100, URL).unwrap(), RetireResult::Retired(first.clone()));
    assert_eq!(db.retire(500, "postgres://other").unwrap(), RetireResult::Retired(first.clone()));
    assert_eq!(db.retirement().unwrap(), Some(first));
}

/// A guard in a retired file accepts its last holder for ever. It may come after the last look
/// before the transaction that retires the file.
#[test]
fn a_file_with_a_guarded_table_is_not_retired() {
    let db = litelease_proof::rig::memory();
    db.conn().execute_batch("CREATE TABLE results (text)").unwrap();
    db.guard("results", "a", &Guard::by_connection()).unwrap();
    let guarded = RetireResult::Guarded { table: "results".into(), name: "a".into() };
    assert_eq!(db.retire(5, URL).unwrap(), guarded);
    assert_eq!(acquired(db.claim("b", "me", LONG)).token, 1, "nothing was written");
    db.unguard("results", None).unwrap();
    assert!(matches!(db.retire(5, URL).unwrap(), RetireResult::Retired(_)));
}

#[test]
fn a_file_with_items_or_kept_slots_is_not_retired() {
    let db = litelease_proof::rig::memory();
    db.queue("mail").send("x").unwrap();
    db.pools().register("pool", 1).unwrap();
    let slot = db.pools().borrow("pool", LONG).unwrap().unwrap();
    assert!(db.pools().keep("pool", &slot.lease_id).unwrap());
    let floor = db.epoch().unwrap().next_floor().unwrap();
    assert_eq!(db.retire(floor, URL).unwrap(), RetireResult::InUse { items: 1, kept: 1, ticks: 0 });
    let item = db.queue("mail").receive(LONG).unwrap().unwrap();
    assert!(item.ack().unwrap().is_acknowledged());
    assert_eq!(db.retire(floor, URL).unwrap(), RetireResult::InUse { items: 0, kept: 1, ticks: 0 });
    assert!(db.pools().return_slot("pool", &slot.lease_id).unwrap());
    assert!(matches!(db.retire(floor, URL).unwrap(), RetireResult::Retired(_)));
}

#[test]
fn a_retirement_in_a_transaction_that_is_rolled_back_did_not_happen() {
    let mut db = litelease_proof::rig::memory();
    let tx = db.transaction().unwrap();
    assert!(matches!(tx.retire(5, URL).unwrap(), RetireResult::Retired(_)));
    is_exhausted(tx.claim("a", "me", LONG));
    tx.rollback().unwrap();
    assert_eq!(acquired(db.claim("a", "me", LONG)).token, 1);
    assert_eq!(db.retirement().unwrap(), None);
}
