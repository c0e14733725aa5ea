//! Shards: members that come, go, stop and die share them evenly, and no checkpoint goes back.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::Child;
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use litelease::rusqlite::types::Value;
use litelease::{HoldError, Litelease, ShardEvent, Shards, ShardsOptions};
use litelease_proof::command::kill;
use litelease_proof::rig::{Dice, LONG, TestFolder, eventually, worker};

const WORKER: &str = env!("CARGO_BIN_EXE_worker");
const TTL: Duration = Duration::from_secs(30);

fn join(db: &Litelease, count: usize, id: &str) -> Result<Shards, HoldError> {
    Shards::join(db, "orders", count, ShardsOptions::new(id, TTL).drain(TTL))
}

fn next(shards: &Shards) -> ShardEvent {
    shards.next(Duration::from_secs(30)).unwrap().expect("an event")
}

/// How many shards each member has, by owner text.
fn shares(db: &Litelease) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    for listed in db.leases_under("orders/shard/") {
        if let Some((owner, expiry)) = listed.unwrap().lease.tenure
            && expiry > litelease::now_ms()
        {
            *shares.entry(owner).or_insert(0) += 1;
        }
    }
    shares
}

#[test]
fn a_member_that_joins_gets_its_share_when_the_others_have_finished() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let a = join(&db, 5, "a").unwrap();
    for shard in 0..5 {
        assert_eq!(next(&a), ShardEvent::Assigned { shard, token: 1, checkpoint: None });
        a.checkpoint(shard, 10 + shard as i64).unwrap();
    }
    let b = join(&place.open(LONG), 5, "b").unwrap();
    for _ in 0..2 {
        let ShardEvent::Requested { shard, until_ms } = next(&a) else { panic!("a request") };
        assert!(until_ms > litelease::now_ms());
        a.check(shard).unwrap();
        a.checkpoint(shard, 20 + shard as i64).unwrap();
        assert!(a.hand_over(shard).unwrap());
        assert!(a.check(shard).is_err() && a.checkpoint(shard, 0).is_err());
        match next(&b) {
            ShardEvent::Assigned { shard: moved, token: 2, checkpoint: Some(checkpoint) } => {
                assert_eq!((moved, checkpoint.token), (shard, 1));
                assert_eq!(checkpoint.value, Value::Integer(20 + shard as i64));
            }
            other => panic!("{other:?}"),
        }
    }
    // Nothing moves while the members stay the same.
    assert_eq!(a.next(Duration::from_millis(600)).unwrap(), None);
    assert_eq!(b.next(Duration::ZERO).unwrap(), None);
    assert_eq!(shares(&db).into_values().sum::<usize>(), 5);
    a.leave().unwrap();
    for _ in 0..3 {
        assert!(matches!(next(&b), ShardEvent::Assigned { .. }));
    }
}

#[test]
fn a_shard_that_is_handed_over_ends_with_the_session_of_its_new_member() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let a = Shards::join(&db, "orders", 2, ShardsOptions::new("a", LONG).drain(TTL)).unwrap();
    for _ in 0..2 {
        assert!(matches!(next(&a), ShardEvent::Assigned { .. }));
    }
    let b = join(&place.open(LONG), 2, "b").unwrap();
    let ShardEvent::Requested { shard, .. } = next(&a) else { panic!("a request") };
    let name = format!("orders/shard/{shard}");
    let expiry = |name: &str| db.inspect(name).unwrap().unwrap().expires_at_ms;
    let before = expiry("orders/member/b");
    assert!(a.hand_over(shard).unwrap());
    // The session may have been renewed meanwhile, and then so was the shard.
    assert!(expiry(&name) <= expiry("orders/member/b"), "handed over");
    assert!(expiry(&name) >= before);
    assert!(matches!(next(&b), ShardEvent::Assigned { .. }));
    assert!(expiry(&name) <= expiry("orders/member/b"), "assigned");
}

#[test]
fn a_member_that_is_lost_is_told_so_for_every_shard() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let a = join(&db, 2, "a").unwrap();
    for _ in 0..2 {
        assert!(matches!(next(&a), ShardEvent::Assigned { .. }));
    }
    let _ = db.break_lease("orders/member/a").unwrap();
    for _ in 0..2 {
        assert!(matches!(next(&a), ShardEvent::Lost { .. }));
    }
    assert!(matches!(a.next(TTL), Err(HoldError::Lost(_))));
    assert!(a.checkpoint(0, 1).is_err());
}

#[test]
fn a_member_that_ignores_a_request_loses_that_shard_and_keeps_the_others() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let (ttl, drain) = (Duration::from_millis(800), Duration::from_millis(300));
    let member = |id| Shards::join(&db, "orders", 2, ShardsOptions::new(id, ttl).drain(drain));
    let a = member("a").unwrap();
    for _ in 0..2 {
        assert!(matches!(next(&a), ShardEvent::Assigned { .. }));
    }
    let b = member("b").unwrap();
    let ShardEvent::Requested { shard, .. } = next(&a) else { panic!("a request") };
    let ShardEvent::Lost { shard: lost, reason } = next(&a) else { panic!("a loss") };
    assert_eq!((lost, reason), (shard, litelease::Loss::Requested));
    assert!(matches!(next(&b), ShardEvent::Assigned { shard: moved, .. } if moved == shard));
    a.check(1 - shard).unwrap();
    assert_eq!(a.next(Duration::from_millis(300)).unwrap(), None);
}

#[test]
fn another_count_is_refused_while_a_member_lives_and_odd_names_always() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let a = join(&db, 2, "a").unwrap();
    match join(&db, 3, "b") {
        Err(HoldError::ShardCount { group, count: 2 }) => assert_eq!(group, "orders"),
        other => panic!("{other:?}"),
    }
    assert_eq!(db.owner("orders/member/b").unwrap(), None, "it has left no trace");
    assert!(matches!(join(&db, 2, "a"), Err(HoldError::Busy(_))));
    for (group, count, id) in [("a/b", 1, "a"), ("a", 1, "a/b"), ("", 1, "a"), ("a", 0, "a")] {
        let odd = Shards::join(&db, group, count, ShardsOptions::new(id, TTL));
        assert!(matches!(odd, Err(HoldError::InvalidShards(_))));
    }
    for count in [10_001, usize::MAX] {
        assert!(matches!(join(&db, count, "b"), Err(HoldError::InvalidShards(_))));
    }
    a.leave().unwrap();
    join(&db, 3, "b").unwrap().leave().unwrap();
}

#[test]
fn a_member_may_wait_for_ever() {
    let place = TestFolder::new("WAL");
    let shards = join(&place.open(LONG), 1, "a").unwrap();
    let event = shards.next(Duration::MAX).unwrap();
    assert!(matches!(event, Some(ShardEvent::Assigned { shard: 0, .. })));
}

struct Member {
    id: String,
    child: Child,
    /// Reads the checkpoints that it has stored: shard, token, value. A pipe without a reader fills
    /// up in a long run, and then the member would wait for ever.
    stored: JoinHandle<Vec<(i64, i64, i64)>>,
}

impl Member {
    fn start(place: &TestFolder, id: &str) -> Self {
        let mut child = worker(WORKER, &["shards", "orders", "12", id, "800"], &place.file);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let checkpoint = |line: String| {
            let numbers: Vec<i64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
            <[i64; 3]>::try_from(numbers).ok().map(|[shard, token, value]| (shard, token, value))
        };
        let read = move || lines.map_while(Result::ok).filter_map(checkpoint).collect();
        Member { id: id.into(), child, stored: std::thread::spawn(read) }
    }

    fn signal(&self, signal: i32) {
        kill(self.child.id() as i32, signal);
    }

    /// Kills it, and returns the checkpoints that it has stored.
    fn end(mut self) -> Vec<(i64, i64, i64)> {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.stored.join().unwrap()
    }
}

#[test]
fn checkpoints_never_go_back_while_five_processes_are_stopped_and_killed() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let mut dice = Dice::new("shards");
    let mut members: Vec<_> =
        ["a", "b", "c", "d", "e"].iter().map(|id| Member::start(&place, id)).collect();
    let mut newest: BTreeMap<usize, i64> = BTreeMap::new();
    let mut stored = Vec::new();
    let is_balanced = || {
        let shares = shares(&db);
        shares.len() == 5
            && shares.values().all(|share| [2, 3].contains(share))
            && shares.values().sum::<usize>() == 12
    };
    let mut look = |time: Duration| {
        let end = Instant::now() + time;
        while Instant::now() < end {
            for shard in 0..12 {
                let name = format!("orders/shard/{shard}");
                if let Some(found) = db.last_checkpoint(&name).unwrap() {
                    let Value::Integer(value) = found.value else { panic!("{found:?}") };
                    let last = newest.insert(shard, value).unwrap_or(0);
                    assert!(value >= last, "shard {shard} went back from {last} to {value}");
                }
            }
            sleep(Duration::from_millis(2));
        }
        newest.values().sum::<i64>()
    };
    eventually("all have their share", is_balanced);
    // A long run goes on until its time is up.
    let seconds = std::env::var("LITELEASE_STRESS_SECONDS").ok().and_then(|text| text.parse().ok());
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    for round in 0.. {
        if round >= 4 && end.is_none_or(|end| Instant::now() >= end) {
            break;
        }
        let victim = dice.below(5) as usize;
        if round % 2 == 0 {
            members[victim].signal(libc::SIGSTOP);
            look(Duration::from_millis(1100 + dice.below(300)));
            members[victim].signal(libc::SIGCONT);
        } else {
            let member = members.remove(victim);
            let id = member.id.clone();
            stored.extend(member.end());
            look(Duration::from_millis(dice.below(300)));
            members.push(Member::start(&place, &id));
        }
        look(Duration::from_millis(300));
    }
    eventually("all have their share again", is_balanced);
    // What a member stored right before it was killed may be missing from its lines.
    eventually("much is stored", || look(Duration::from_millis(50)) > 300);
    stored.extend(members.into_iter().flat_map(Member::end));

    // In the order of the grants of each shard, every checkpoint is one further than the one
    // before.
    stored.sort_unstable();
    assert!(stored.len() > 200, "{}", stored.len());
    for pair in stored.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
        assert!(pair[0].2 < pair[1].2, "{:?} and then {:?}", pair[0], pair[1]);
    }
    assert!(stored.iter().any(|(_, token, _)| *token > 2), "shards have moved");
}
