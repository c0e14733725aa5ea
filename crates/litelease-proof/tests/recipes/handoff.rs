//! Handoff: from one holder to the next.

use litelease::{CheckpointResult, Litelease, RequestResult};
use litelease_proof::rig::acquired;

use crate::{End::*, Protection::*, Two, both_halves, ms};

/// The old holder releases, and the new one claims. In between no owner works, and any claimant may
/// come first.
#[test]
fn a_gap_is_chosen_or_there_is_none() {
    both_halves(Chosen, |protection| {
        let Two { a, b, .. } = &Two::new();
        let old = acquired(a.at(100).claim("import", "old", ms(100)));
        let new = match protection {
            Off => {
                a.at(150).release(&old).unwrap();
                assert_eq!(b.at(150).owner("import").unwrap(), None, "the gap");
                acquired(b.at(160).claim("import", "stranger", ms(100)));
                b.at(170).claim("import", "new", ms(100)).unwrap().acquired()
            }
            On => {
                let new = a.at(150).transfer(&old, "new", ms(100)).unwrap().transferred();
                assert_eq!(
                    b.at(150).owner("import").unwrap().as_deref(),
                    Some("new"),
                    "one commit"
                );
                assert!(
                    b.at(160).claim("import", "stranger", ms(100)).unwrap().acquired().is_none()
                );
                new
            }
        };
        if new.is_some() { Chosen } else { Failed }
    });
}

/// The new holder is ready while the old one is in the middle of something. It takes the lease, and
/// both work.
#[test]
fn an_overlap_is_chosen_or_there_is_none() {
    both_halves(Chosen, |protection| {
        let Two { a, b, .. } = &Two::new();
        let old = acquired(a.at(100).claim("import", "old", ms(1_000)));
        let (done_ms, begun_ms) = match protection {
            // Now: from this commit on both work, until the old one finds out.
            Off => {
                b.at(150).take_over("import", "new", ms(1_000)).unwrap();
                assert!(a.at(200).renew(&old, ms(1_000)).unwrap().renewed().is_none());
                (200, 150)
            }
            // Drain: the old one is asked, finishes, and hands over.
            On => {
                let asked = b.at(150).request("import", "new", ms(500)).unwrap();
                assert!(matches!(asked, RequestResult::Requested { .. }), "{asked:?}");
                assert!(b.at(180).claim("import", "new", ms(1_000)).unwrap().acquired().is_none());
                let handed = a.at(200).hand_over(&old, ms(1_000)).unwrap().transferred().unwrap();
                assert_eq!((handed.owner.as_str(), handed.token), ("new", old.token + 1));
                (200, 200)
            }
        };
        if begun_ms < done_ms { Failed } else { Chosen }
    });
}

fn stored_row(db: &Litelease) -> i64 {
    match db.last_checkpoint("import").unwrap().unwrap().value {
        litelease::rusqlite::types::Value::Integer(row) => row,
        other => panic!("{other:?}"),
    }
}

/// The old holder has done 30 rows and stored 10. Its successor starts at 10 and does 20 rows once
/// more.
#[test]
fn uncommitted_progress_is_not_lost_if_the_holder_is_told() {
    both_halves(Told, |protection| {
        let Two { a, b, .. } = &mut Two::new();
        let old = acquired(a.at(100).claim("import", "old", ms(1_000)));
        assert_eq!(a.checkpoint(("import", old.token), 10).unwrap(), CheckpointResult::Stored);
        let done = 30;
        match protection {
            Off => {
                let new = b.at(150).take_over("import", "new", ms(1_000)).unwrap().lease;
                let late = a.checkpoint(("import", old.token), done).unwrap();
                assert_eq!(late, CheckpointResult::Stale { newest: Some(new.token) });
            }
            On => {
                let _ = b.at(150).request("import", "new", ms(500)).unwrap();
                let request = a.at(160).requested("import").unwrap().unwrap();
                assert_eq!((request.requester.as_str(), request.until_ms), ("new", 650));
                // In one commit: no reader sees the new owner without the last checkpoint.
                let tx = a.transaction().unwrap();
                assert_eq!(
                    tx.checkpoint(("import", old.token), done).unwrap(),
                    CheckpointResult::Stored
                );
                assert!(tx.at(160).hand_over(&old, ms(1_000)).unwrap().transferred().is_some());
                tx.commit().unwrap();
            }
        }
        if stored_row(b) == done { Told } else { Failed }
    });
}

/// The last checkpoint is of the first grant. The second one did more and stored nothing. The third
/// one takes the checkpoint for the present state.
#[test]
fn a_stale_starting_checkpoint_is_told() {
    both_halves(Told, |protection| {
        let Two { a, b, .. } = &Two::new();
        a.conn().execute_batch("CREATE TABLE imported (row INTEGER PRIMARY KEY)").unwrap();
        let import = |db: &Litelease, rows: std::ops::RangeInclusive<i64>| {
            rows.filter(|row| db.conn().execute("INSERT INTO imported VALUES (?1)", [row]).is_err())
                .count()
        };
        let first = acquired(a.at(100).claim("import", "first", ms(50)));
        assert_eq!(import(a, 1..=10), 0);
        assert_eq!(a.checkpoint(("import", first.token), 10).unwrap(), CheckpointResult::Stored);
        acquired(a.at(150).claim("import", "second", ms(50)));
        assert_eq!(import(a, 11..=50), 0);

        let third = acquired(b.at(200).claim("import", "third", ms(50)));
        let last = b.last_checkpoint("import").unwrap().unwrap();
        let start = match protection {
            On if !last.is_from_predecessor(third.token) => {
                // Not known what was done since: look at the target.
                crate::number(b, "SELECT max(row) FROM imported")
            }
            _ => stored_row(b),
        };
        match import(b, start + 1..=60) {
            0 => Told,
            _ => Failed, // rows that were done before
        }
    });
}
