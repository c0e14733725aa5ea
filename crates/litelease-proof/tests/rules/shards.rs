//! The plan of shards: every small group, random histories, and plans with planted bugs.

use std::time::Instant;

use litelease_core::{MAX_SHARDS, ShardState, plan};
use litelease_proof::rig::{Dice, report};
use litelease_proof::shards::*;

/// A holder that is no member any more.
const DEAD: usize = 99;

/// A number that a longer run raises.
fn bound(variable: &str, short: u64) -> u64 {
    std::env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(short)
}

/// Calls `look` with every way to have `count` shards of these kinds. Shards are alike, so only how
/// many there are of each kind makes a difference.
fn every_mix(
    kinds: &[ShardState<usize>],
    count: usize,
    look: &mut impl FnMut(&[ShardState<usize>]) -> Result<(), String>,
) -> Result<(), String> {
    fn walk(
        kinds: &[ShardState<usize>],
        from: usize,
        shards: &mut Vec<ShardState<usize>>,
        count: usize,
        look: &mut impl FnMut(&[ShardState<usize>]) -> Result<(), String>,
    ) -> Result<(), String> {
        if shards.len() == count {
            return look(shards);
        }
        for kind in from..kinds.len() {
            shards.push(kinds[kind]);
            walk(kinds, kind, shards, count, look)?;
            shards.pop();
        }
        Ok(())
    }
    walk(kinds, 0, &mut Vec::new(), count, look)
}

/// All orders of these members.
fn orders(members: &[usize]) -> Vec<Vec<usize>> {
    match members {
        [] => vec![Vec::new()],
        _ => (0..members.len())
            .flat_map(|at| {
                let mut rest = members.to_vec();
                let first = rest.remove(at);
                orders(&rest).into_iter().map(move |mut order| {
                    order.insert(0, first);
                    order
                })
            })
            .collect(),
    }
}

fn held(holder: usize) -> ShardState<usize> {
    ShardState { holder: Some(holder), requester: None }
}

/// Settles every distribution of up to `most` shards over up to 5 members and no member, in every
/// order of heartbeats. For 5 members, a short run tries two orders: another order is the same as
/// another distribution, but for ties.
fn settle_every_distribution(planner: Planner, most: usize) -> Result<String, String> {
    let (mut starts, mut longest) = (0, 0);
    for m in 1..=5 {
        let members: Vec<usize> = (0..m).collect();
        let mut orders = orders(&members);
        if m == 5 && bound("LITELEASE_SHARDS", 0) == 0 {
            orders = vec![members.clone(), members.iter().rev().copied().collect()];
        }
        let kinds: Vec<_> = [ShardState::default()].into_iter().chain((0..m).map(held)).collect();
        for n in 0..=most {
            every_mix(&kinds, n, &mut |shards| {
                for order in &orders {
                    let mut world = World::new(planner, &members, shards.to_vec());
                    let settled = world.settle(order, 10);
                    let rounds =
                        settled.map_err(|error| format!("{shards:?} {order:?}: {error}"))?;
                    (starts, longest) = (starts + 1, rounds.max(longest));
                }
                Ok(())
            })?;
        }
    }
    Ok(format!("{starts} starts, at rest after {longest} heartbeats at most"))
}

/// The same with every mix of open requests, by members and by one that has died.
fn settle_every_request(planner: Planner, bounds: &[(usize, usize)]) -> Result<String, String> {
    let (mut starts, mut longest) = (0, 0);
    for (m, most) in bounds.iter().copied() {
        let members: Vec<usize> = (0..m).collect();
        let orders = orders(&members);
        let mut kinds = vec![ShardState::default()];
        for holder in 0..m {
            kinds.push(held(holder));
            let requesters = (0..m).filter(|who| *who != holder).chain([DEAD]);
            kinds.extend(requesters.map(|who| ShardState { requester: Some(who), ..held(holder) }));
        }
        for n in 1..=most {
            every_mix(&kinds, n, &mut |shards| {
                for order in &orders {
                    let mut world = World::new(planner, &members, shards.to_vec());
                    let settled = world.settle(order, 10);
                    let rounds =
                        settled.map_err(|error| format!("{shards:?} {order:?}: {error}"))?;
                    (starts, longest) = (starts + 1, rounds.max(longest));
                }
                Ok(())
            })?;
        }
    }
    Ok(format!("{starts} starts with requests, at rest after {longest} heartbeats at most"))
}

/// Every group at rest of up to 5 members and `most` shards: nothing moves; one more joins; each
/// one leaves.
fn change_every_group(planner: Planner, most: usize) -> Result<String, String> {
    let mut changes = 0;
    for m in 1..=5 {
        let members: Vec<usize> = (0..m).collect();
        for n in 0..=most {
            // Who has the larger share: any of them.
            for larger in (0..1u32 << m).filter(|set| set.count_ones() as usize == n % m) {
                let owned = |who: &usize| n / m + (larger as usize >> who & 1);
                let shards: Vec<_> = members
                    .iter()
                    .flat_map(|who| std::iter::repeat_n(held(*who), owned(who)))
                    .collect();
                let rest = World::new(planner, &members, shards.clone());
                if let Some(unrest) = rest.unrest() {
                    return Err(format!("{shards:?}: {unrest}"));
                }
                if m < 5 {
                    changes += join(&rest, m, n.div_ceil(m + 1))?;
                }
                for gone in &members {
                    changes += leave(&rest, *gone)?;
                }
            }
        }
    }
    Ok(format!("{changes} joins and departures"))
}

/// A member joins, in every order of heartbeats, and moves at most this many shards.
fn join(rest: &World, m: usize, most: usize) -> Result<usize, String> {
    let orders = orders(&(0..=m).collect::<Vec<_>>());
    for order in &orders {
        let mut world = rest.clone();
        world.join(m);
        world.settle(order, 4).map_err(|error| format!("{:?} + {m}: {error}", rest.shards))?;
        if world.moved > most {
            let moved = world.moved;
            return Err(format!("{:?}: {m} has joined, and {moved} shards moved", rest.shards));
        }
    }
    Ok(orders.len())
}

/// A member leaves, in every order of heartbeats of the others, and only its own shards move.
fn leave(rest: &World, gone: usize) -> Result<usize, String> {
    let members: Vec<usize> = rest.members().into_iter().filter(|who| *who != gone).collect();
    let orders = orders(&members);
    for order in orders.iter().filter(|order| !order.is_empty()) {
        let mut world = rest.clone();
        world.leave(gone);
        world.settle(order, 4).map_err(|error| format!("{:?} - {gone}: {error}", rest.shards))?;
        let is_kept = |(before, after): (&ShardState<usize>, &ShardState<usize>)| {
            before.holder == Some(gone) || before == after
        };
        if !rest.shards.iter().zip(&world.shards).all(is_kept) {
            return Err(format!("{:?}: {gone} has left, and others' shards moved", rest.shards));
        }
    }
    Ok(orders.len())
}

fn histories(planner: Planner, count: u64, dice: &mut Dice) -> Result<(), String> {
    (0..count).try_for_each(|number| {
        history(planner, dice).map_err(|error| format!("history {number}: {error}"))
    })
}

#[test]
fn every_distribution_comes_to_rest_with_equal_shares() {
    let started = Instant::now();
    let tried = settle_every_distribution(plan, 9).unwrap();
    report(&format!("shards: {tried} ({:.1} s)", started.elapsed().as_secs_f64()));
}

#[test]
fn every_mix_of_open_requests_comes_to_rest_with_equal_shares() {
    let started = Instant::now();
    let more = bound("LITELEASE_SHARDS", 0) as usize;
    let bounds = [(1, 9), (2, 9), (3, 5 + more.min(4)), (4, 3 + more.min(3))];
    let tried = settle_every_request(plan, &bounds).unwrap();
    report(&format!("shards: {tried} ({:.1} s)", started.elapsed().as_secs_f64()));
}

#[test]
fn a_join_moves_its_share_a_departure_only_its_own_and_nothing_else_moves() {
    let tried = change_every_group(plan, 9).unwrap();
    report(&format!("shards: {tried}"));
}

#[test]
fn seven_shards_of_four_members_are_shared_by_three() {
    // If a member takes a third one before all have two, the last one is left with one.
    let shards = [0, 0, 1, 1, 2, 3, 3].map(held).to_vec();
    for order in orders(&[0, 1, 2]) {
        let mut world = World::new(plan, &[0, 1, 2, 3], shards.clone());
        world.leave(3);
        world.settle(&order, 3).unwrap();
    }
}

#[test]
fn random_histories_are_at_rest_ten_heartbeats_after_the_last_change() {
    let mut dice = Dice::new("histories of a group");
    let (started, count) = (Instant::now(), bound("LITELEASE_HISTORIES", 5_000));
    histories(plan, count, &mut dice).unwrap();
    report(&format!("shards: {count} histories ({:.1} s)", started.elapsed().as_secs_f64()));
}

#[test]
fn plans_with_planted_bugs_are_caught() {
    let bugs: [(&str, Planner); 5] = [
        ("thrashes", thrashes),
        ("takes the larger share too early", is_greedy),
        ("does not see the requests of others", is_blind),
        ("asks for one at a time", asks_one_at_a_time),
        ("gives nothing up", keeps_all),
    ];
    for (bug, planner) in bugs {
        let caught = [
            settle_every_distribution(planner, 7).err(),
            change_every_group(planner, 7).err(),
            histories(planner, 1_000, &mut Dice::from(1)).err(),
        ];
        let by: Vec<&String> = caught.iter().flatten().collect();
        report(&format!("planted bug, a plan that {bug}: caught by {} of 3", by.len()));
        assert!(!by.is_empty(), "a plan that {bug} is not caught");
    }
}

#[test]
fn a_stranger_keeps_its_shard_and_who_is_no_member_does_nothing() {
    let shards = [held(DEAD), held(0), ShardState::default()];
    assert!(plan(&[0, 1], &shards, DEAD).is_empty());
    assert_eq!(plan(&[0, 1], &shards, 1).claim, [2]);
    assert!(plan(&[0, 1], &shards, 0).is_empty());
    assert!(plan(&[], &shards, 0).is_empty());
    assert!(plan(&[0], &[], 0).is_empty());
    // Members in any order, and named twice, are the same members.
    assert_eq!(plan(&[1, 0, 1], &shards, 1), plan(&[0, 1], &shards, 1));
}

#[test]
fn the_largest_group_is_planned_within_a_heartbeat() {
    // A plan is made inside a write transaction. It must not look at every shard for every request.
    let mut shards = vec![held(0); MAX_SHARDS];
    let asked = plan(&[0, 1], &shards, 1).request;
    assert_eq!(asked.len(), MAX_SHARDS / 2);
    for shard in asked {
        shards[shard].requester = Some(1);
    }
    assert_eq!(plan(&[0, 1], &shards, 0).give_up.len(), MAX_SHARDS / 2);
    assert_eq!(plan(&[0, 1], &shards, 1).withdraw, [0; 0]);
}
