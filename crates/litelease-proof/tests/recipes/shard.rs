//! Shard: a partition, owned by one member of a group.

use litelease::CheckpointResult;
use litelease_core::{ShardPlan, ShardState, plan};
use litelease_proof::rig::acquired;
use litelease_proof::shards::{Planner, World};

use crate::{End::*, Protection::*, Two, both_halves, ms, number};

const SHARD: &str = "orders/shard/7";

/// A member that was paused goes on and stores how far it is. That is behind where its successor
/// is, so the next one starts too early, and what it processes was processed before.
#[test]
fn a_zombie_checkpoint_is_refused() {
    both_halves(Refused, |protection| {
        let Two { a, b, .. } = &Two::new();
        a.conn()
            .execute_batch("CREATE TABLE progress (row); INSERT INTO progress VALUES (0)")
            .unwrap();
        let store = |db: &litelease::Litelease, token: i64, row: i64| match protection {
            Off => {
                db.conn().execute("UPDATE progress SET row = ?1", [row]).unwrap();
                CheckpointResult::Stored
            }
            On => db.checkpoint((SHARD, token), row).unwrap(),
        };
        let zombie = acquired(a.at(100).claim(SHARD, "a", ms(50)));
        assert_eq!(store(a, zombie.token, 10), CheckpointResult::Stored);
        let next = acquired(b.at(150).claim(SHARD, "b", ms(50)));
        assert_eq!(store(b, next.token, 200), CheckpointResult::Stored);

        let late = store(a, zombie.token, 12);
        let row = match protection {
            Off => number(b, "SELECT row FROM progress"),
            On => {
                assert_eq!(late, CheckpointResult::Stale { newest: Some(next.token) });
                let last = b.last_checkpoint(SHARD).unwrap().unwrap();
                if last.value == 200.into() { 200 } else { 0 }
            }
        };
        if row < 200 { Failed } else { Refused }
    });
}

/// Moves every shard to where its number says: shard k belongs to the member k mod n.
fn by_remainder(members: &[usize], shards: &[ShardState<usize>], me: usize) -> ShardPlan {
    let mut plan = ShardPlan::default();
    for (k, shard) in shards.iter().enumerate() {
        let target = members[k % members.len()];
        match (shard.holder, shard.requester) {
            (None, _) if target == me => plan.claim.push(k),
            (Some(holder), _) if target == me && holder != me => plan.request.push(k),
            (Some(holder), Some(who)) if holder == me && who == target => plan.give_up.push(k),
            _ => {}
        }
    }
    plan
}

/// A member joins and leaves again, as in every deployment. Each move of a shard is a drain and a
/// cold start.
#[test]
fn rebalance_thrash_is_capped_at_the_share_of_the_member_that_came_or_went() {
    both_halves(Capped, |protection| {
        let planner: Planner = match protection {
            Off => by_remainder,
            On => plan,
        };
        let shards = (0..64).map(|k| ShardState { holder: Some(k % 4), requester: None });
        let mut group = World::new(planner, &[0, 1, 2, 3], shards.collect());
        group.settle(&[0, 1, 2, 3], 20).unwrap();
        assert_eq!(group.moved, 0, "nobody came or went");

        group.join(4);
        group.settle(&[0, 1, 2, 3, 4], 20).unwrap();
        let joined = group.moved;
        group.leave(4);
        group.settle(&[0, 1, 2, 3], 20).unwrap();
        // Those of the member that left are free, and claimed without a move.
        let left = group.moved - joined;
        match (joined, left) {
            (1..=13, 0) => Capped,
            _ => Failed,
        }
    });
}

/// A shard moves from `a` to `b`. The old owner needs until `done_ms` to finish what it has begun.
/// Returns how long neither worked on it, and how long both did.
fn move_shard(protection: crate::Protection, done_ms: i64) -> (i64, i64) {
    let Two { a, b, .. } = &Two::new();
    let old = acquired(a.at(100).claim(SHARD, "a", ms(100)));
    let begun_ms = match protection {
        // The new owner waits for the old one's timer. The old one stops when it is done.
        Off => {
            acquired(b.at(200).claim(SHARD, "b", ms(100)));
            200
        }
        // The new owner asks. The old one renews until it is done, and then hands over.
        On => {
            let _ = b.at(120).request(SHARD, "b", ms(1_000)).unwrap();
            for now_ms in (140..done_ms).step_by(40) {
                assert!(b.at(now_ms).claim(SHARD, "b", ms(100)).unwrap().acquired().is_none());
                assert!(a.at(now_ms).renew(&old, ms(100)).unwrap().renewed().is_some());
            }
            let handed = a.at(done_ms).hand_over(&old, ms(100)).unwrap().transferred().unwrap();
            assert_eq!(handed.owner, "b");
            done_ms
        }
    };
    ((begun_ms - done_ms).max(0), (done_ms - begun_ms).max(0))
}

#[test]
fn gap_or_overlap_is_chosen_and_not_left_to_chance() {
    both_halves(Chosen, |protection| {
        let ends = [150, 190, 210, 280].map(|done_ms| move_shard(protection, done_ms));
        if ends == [(50, 0), (10, 0), (0, 10), (0, 80)] {
            return Failed; // now a gap, now an overlap
        }
        assert_eq!(ends, [(0, 0); 4]);
        Chosen
    });
}
