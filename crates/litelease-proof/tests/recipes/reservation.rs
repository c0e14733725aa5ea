//! Reservation: capacity that is held for a while, and then for good.

use litelease::{BorrowOptions, Litelease};

use crate::{End::*, Protection::*, Two, both_halves, ms, number};

/// Makes a pool of one seat, and the table of orders.
fn one_seat(db: &Litelease) {
    db.pools().register("seats", 1).unwrap();
    db.conn().execute_batch("CREATE TABLE orders (seat, buyer)").unwrap();
}

/// A customer puts a seat into the basket and is never seen again.
#[test]
fn a_leaked_hold_is_capped_by_its_ttl() {
    both_halves(Capped, |protection| {
        let Two { a, b, .. } = &Two::new();
        match protection {
            Off => {
                let seats = "CREATE TABLE seats (held_by); INSERT INTO seats VALUES ('Ada')";
                a.conn().execute_batch(seats).unwrap();
                let hold = "UPDATE seats SET held_by = 'Bob' WHERE held_by IS NULL";
                // However much later.
                if b.conn().execute(hold, []).unwrap() == 0 { Failed } else { Capped }
            }
            On => {
                one_seat(a);
                a.pools().at(100).borrow("seats", ms(50)).unwrap().unwrap();
                assert_eq!(b.pools().at(149).borrow("seats", ms(50)).unwrap(), None);
                match b.pools().at(150).borrow("seats", ms(50)).unwrap() {
                    Some(_) => Capped,
                    None => Failed,
                }
            }
        }
    });
}

/// The customer pays after the hold has expired, and another customer has the seat by then.
#[test]
fn an_expired_hold_is_not_honoured() {
    both_halves(Refused, |protection| {
        let Two { a, b, .. } = &mut Two::new();
        one_seat(a);
        let late = a.pools().at(100).borrow("seats", ms(50)).unwrap().unwrap();
        // Not even while the seat is free: the hold was for this long and no longer.
        assert!(!a.pools().at(150).keep("seats", &late.lease_id).unwrap());
        let next = b.pools().at(150).borrow("seats", ms(50)).unwrap().unwrap();
        assert_eq!(late.slot.position, next.slot.position);

        let mut sell = |buyer: &str, lease: &str| {
            let tx = a.transaction().unwrap();
            if protection == Off || tx.pools().at(160).keep("seats", lease).unwrap() {
                tx.conn().execute("INSERT INTO orders VALUES (0, ?1)", [buyer]).unwrap();
            }
            tx.commit().unwrap();
        };
        sell("Bob", &next.lease_id);
        sell("Ada", &late.lease_id);
        match number(b, "SELECT count(*) FROM orders") {
            1 => Refused,
            _ => Failed,
        }
    });
}

/// Two customers look at once, and both see the last seat.
#[test]
fn overbooking_is_refused() {
    both_halves(Refused, |protection| {
        let Two { a, b, .. } = &Two::new();
        one_seat(a);
        match protection {
            Off => {
                let is_free = |db: &Litelease| number(db, "SELECT count(*) FROM orders") < 1;
                let (ada, bob) = (is_free(a), is_free(b));
                for (db, _) in [(a, ada), (b, bob)].iter().filter(|(_, is_free)| *is_free) {
                    db.conn().execute("INSERT INTO orders VALUES (0, 'me')", []).unwrap();
                }
            }
            On => {
                for db in [a, b] {
                    if let Some(seat) = db.pools().at(100).borrow("seats", ms(50)).unwrap() {
                        assert!(db.pools().at(110).keep("seats", &seat.lease_id).unwrap());
                        db.conn().execute("INSERT INTO orders VALUES (0, 'me')", []).unwrap();
                    }
                }
            }
        }
        match number(a, "SELECT count(*) FROM orders") {
            1 => Refused,
            _ => Failed,
        }
    });
}

/// A seat was sold for good and is not used. Nothing frees it by itself, so an operator has to see
/// it.
#[test]
fn stranded_capacity_is_listed() {
    both_halves(Listed, |protection| {
        let Two { a, b, .. } = &Two::new();
        match protection {
            // A count says that the capacity is gone, and not to whom or since when.
            Off => {
                a.conn()
                    .execute_batch("CREATE TABLE seats (free); INSERT INTO seats VALUES (0)")
                    .unwrap();
                assert_eq!(number(b, "SELECT free FROM seats"), 0);
                Failed
            }
            On => {
                one_seat(a);
                let noted = BorrowOptions::new().note("Ada, order 17");
                let seat = a.pools().at(100).borrow_with("seats", ms(50), noted).unwrap().unwrap();
                a.pools().at(120).keep("seats", &seat.lease_id).unwrap();

                let now_ms = 1_000_000;
                let listed = b.pools().at(now_ms).slots("seats").unwrap();
                let old = |since_ms: i64| now_ms - since_ms > 500_000;
                let stranded =
                    listed.iter().find(|row| row.kept_since_ms.is_some_and(old)).unwrap();
                assert_eq!(stranded.note.as_deref(), Some("Ada, order 17"));
                assert_eq!(stranded.kept_since_ms, Some(120));
                let slot = &stranded.slot;
                assert!(b.pools().free_kept("seats", slot.position, slot.token).unwrap());
                assert!(b.pools().at(now_ms).borrow("seats", ms(50)).unwrap().is_some());
                Listed
            }
        }
    });
}
