//! Delivery: one item of work, leased to one worker at a time.

use litelease::rusqlite::OptionalExtension;
use litelease::{AckResult, Error, StaleReason};

use crate::{End::*, Protection::*, Two, both_halves, ms, number};

/// A worker takes longer than its delivery lasts. Another one gets the item and does the work. Then
/// the first one completes, too: the customer pays twice.
#[test]
fn completing_after_expiry_does_not_duplicate_the_effect() {
    both_halves(Refused, |protection| {
        let Two { a, b, .. } = &Two::new();
        a.conn().execute_batch("CREATE TABLE paid (by)").unwrap();
        let pay = "INSERT INTO paid VALUES (?1)";
        a.queue("payments").at(100).send("invoice 17").unwrap();
        let first = a.queue("payments").at(100).receive(ms(50)).unwrap().unwrap();
        let second = b.queue("payments").at(150).receive(ms(50)).unwrap().unwrap();
        second.finish(|tx| Ok(tx.conn().execute(pay, ["b"])?)).unwrap();

        let completed = match protection {
            // The effect, and then the acknowledgement: which says that it is late.
            Off => {
                a.conn().execute(pay, ["a"]).unwrap();
                first.ack().map(drop)
            }
            On => first.finish(|tx| Ok(tx.conn().execute(pay, ["a"])?)).map(drop),
        };
        match number(a, "SELECT count(*) FROM paid") {
            1 => {
                assert!(matches!(completed, Err(Error::StaleReceipt { .. })), "{completed:?}");
                Refused
            }
            _ => Failed,
        }
    });
}

/// The visibility is 50 ms and the work takes 120: the item is delivered again while it is worked
/// on.
#[test]
fn a_mistuned_visibility_is_extended_while_the_worker_works() {
    both_halves(Refused, |protection| {
        let Two { a, b, .. } = &Two::new();
        let (at_a, at_b) = (a.queue("thumbnails"), b.queue("thumbnails"));
        at_a.at(100).send("a.png").unwrap();
        let item = at_a.at(100).receive(ms(50)).unwrap().unwrap();
        let mut second_delivery = None;
        for now_ms in 101..220 {
            // A worker extends every third of its visibility, in the background.
            if protection == On && (now_ms - 100) % 17 == 0 {
                assert!(at_a.at(now_ms).extend(&item.receipt, ms(50)).unwrap().is_some());
            }
            second_delivery = second_delivery.or(at_b.at(now_ms).receive(ms(50)).unwrap());
        }
        if second_delivery.is_some() { Failed } else { Refused }
    });
}

/// A worker acknowledges late, and removes the delivery of another worker, which then dies: the
/// item is lost although no worker has finished it.
#[test]
fn a_stale_ack_is_refused() {
    both_halves(Refused, |protection| {
        let Two { a, b, .. } = &Two::new();
        match protection {
            // A table whose rows are marked as taken.
            Off => {
                let jobs = "CREATE TABLE jobs (id INTEGER PRIMARY KEY, taken_until);
                            INSERT INTO jobs VALUES (1, 0)";
                a.conn().execute_batch(jobs).unwrap();
                let take = |db: &litelease::Litelease, now_ms: i64| {
                    let sql = "UPDATE jobs SET taken_until = ?1 + 50 WHERE taken_until <= ?1 RETURNING id";
                    let taken = db.conn().query_row(sql, [now_ms], |row| row.get::<_, i64>(0));
                    taken.optional().unwrap()
                };
                let first = take(a, 100).unwrap();
                let _second = take(b, 150).unwrap();
                a.conn().execute("DELETE FROM jobs WHERE id = ?1", [first]).unwrap();
                // The second worker dies. No worker ever gets the job again.
                assert_eq!(take(a, 1_000), None);
                Failed
            }
            On => {
                a.queue("jobs").at(100).send("job").unwrap();
                let first = a.queue("jobs").at(100).receive(ms(50)).unwrap().unwrap();
                let _second = b.queue("jobs").at(150).receive(ms(50)).unwrap().unwrap();
                let reason = StaleReason::DeliveredAgain;
                assert_eq!(first.ack().unwrap(), AckResult::Stale { reason });
                let third = a.queue("jobs").at(1_000).receive(ms(50)).unwrap();
                if third.is_some() { Refused } else { Failed }
            }
        }
    });
}
