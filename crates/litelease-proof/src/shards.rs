//! A group of members that share shards, under a stepped clock: sessions, heartbeats, requests and
//! drains, and what a plan must keep to.
//!
//! A plan is handed in, so that a wrong one can be tried, too.

use std::collections::BTreeMap;

use litelease_core::{ShardPlan, ShardState, plan};

use crate::rig::Dice;

/// Decides what a member does, as [`plan`] does.
pub type Planner = fn(&[usize], &[ShardState<usize>], usize) -> ShardPlan;

/// A session ends this long after its last heartbeat, in milliseconds.
pub const TTL_MS: i64 = 3_000;

/// The time between two heartbeats.
pub const HEARTBEAT_MS: i64 = 1_000;

/// A request lapses this long after it was last repeated.
const LAPSE_MS: i64 = 10_000;

/// The group as the file has it.
#[derive(Clone)]
pub struct World {
    planner: Planner,
    /// The present time.
    pub now_ms: i64,
    /// The shards.
    pub shards: Vec<ShardState<usize>>,
    /// When the session of each member ends.
    sessions: BTreeMap<usize, i64>,
    repeated_ms: Vec<i64>,
    /// When the work on each shard that is being given up is done.
    drained_ms: Vec<Option<i64>>,
    /// How many shards were handed over from one member to another.
    pub moved: usize,
    /// When a member came or went last.
    pub changed_ms: i64,
}

impl World {
    /// A group whose members do not plan yet. Their sessions do not end by themselves before their
    /// first heartbeat.
    pub fn new(planner: Planner, members: &[usize], shards: Vec<ShardState<usize>>) -> Self {
        let sessions = members.iter().map(|member| (*member, i64::MAX)).collect();
        let (repeated_ms, drained_ms) = (vec![0; shards.len()], vec![None; shards.len()]);
        let (now_ms, changed_ms, moved) = (0, 0, 0);
        World { planner, now_ms, shards, sessions, repeated_ms, drained_ms, moved, changed_ms }
    }

    /// The live members.
    pub fn members(&self) -> Vec<usize> {
        self.sessions.keys().copied().collect()
    }

    /// Ends the session of a member, and with it all that it has.
    pub fn leave(&mut self, member: usize) {
        if self.sessions.remove(&member).is_none() {
            return;
        }
        self.changed_ms = self.now_ms;
        for (shard, drained_ms) in self.shards.iter_mut().zip(&mut self.drained_ms) {
            if shard.holder == Some(member) {
                (*shard, *drained_ms) = (ShardState::default(), None);
            }
        }
    }

    /// Adds a member.
    pub fn join(&mut self, member: usize) {
        if self.sessions.insert(member, self.now_ms.saturating_add(TTL_MS)).is_none() {
            self.changed_ms = self.now_ms;
        }
    }

    /// Ends the sessions and requests whose time is up.
    pub fn expire(&mut self) {
        let now_ms = self.now_ms;
        let over: Vec<usize> =
            self.sessions.iter().filter(|(_, end)| **end <= now_ms).map(|(who, _)| *who).collect();
        over.into_iter().for_each(|member| self.leave(member));
        for (shard, repeated_ms) in self.shards.iter_mut().zip(&self.repeated_ms) {
            if now_ms - repeated_ms >= LAPSE_MS {
                shard.requester = None;
            }
        }
    }

    /// One heartbeat: the member renews its session, plans, and does what it has planned. Shards
    /// that it gives up are handed over when their work is done, `drain_ms` after it was first
    /// asked.
    pub fn beat(&mut self, me: usize, drain_ms: i64) -> Result<(), String> {
        self.expire();
        self.join(me);
        self.sessions.insert(me, self.now_ms.saturating_add(TTL_MS));
        let plan = (self.planner)(&self.members(), &self.shards, me);
        let wrong = |what: &str, shard: usize| Err(format!("{me} {what} shard {shard}: {plan:?}"));
        for shard in plan.withdraw.iter().copied() {
            match self.shards[shard].requester {
                Some(who) if who == me || !self.sessions.contains_key(&who) => {
                    self.shards[shard].requester = None;
                }
                _ => return wrong("withdraws somebody else's request for", shard),
            }
        }
        for shard in plan.claim.iter().copied() {
            match self.shards[shard].holder {
                None => self.shards[shard] = ShardState { holder: Some(me), requester: None },
                Some(_) => return wrong("claims a held", shard),
            }
        }
        for shard in plan.request.iter().copied() {
            let ShardState { holder, requester } = self.shards[shard];
            match (holder, requester) {
                (Some(holder), None) if holder != me => {}
                (Some(holder), Some(who)) if holder != me && who == me => {}
                _ => return wrong("must not request", shard),
            }
            (self.shards[shard].requester, self.repeated_ms[shard]) = (Some(me), self.now_ms);
        }
        for shard in 0..self.shards.len() {
            if !plan.give_up.contains(&shard) {
                if self.shards[shard].holder == Some(me) {
                    self.drained_ms[shard] = None;
                }
                continue;
            }
            let (holder, requester) = (self.shards[shard].holder, self.shards[shard].requester);
            let Some(to) = requester
                .filter(|to| holder == Some(me) && *to != me && self.sessions.contains_key(to))
            else {
                return wrong("must not give up", shard);
            };
            let done_ms = *self.drained_ms[shard].get_or_insert(self.now_ms + drain_ms);
            if self.now_ms >= done_ms {
                self.shards[shard] = ShardState { holder: Some(to), requester: None };
                self.drained_ms[shard] = None;
                self.moved += 1;
            }
        }
        Ok(())
    }

    /// Returns what is wrong with a group at rest: every member must have its share, and want
    /// nothing.
    pub fn unrest(&self) -> Option<String> {
        let members = self.members();
        if members.is_empty() {
            return None;
        }
        let (floor, ceil) =
            (self.shards.len() / members.len(), self.shards.len().div_ceil(members.len()));
        for member in &members {
            let has = self.shards.iter().filter(|shard| shard.holder == Some(*member)).count();
            if has < floor || has > ceil {
                return Some(format!("{member} has {has} shards, not {floor} or {ceil}"));
            }
            let plan = (self.planner)(&members, &self.shards, *member);
            if !plan.is_empty() {
                return Some(format!("{member} still wants to move shards: {plan:?}"));
            }
        }
        let requested = self.shards.iter().position(|shard| shard.requester.is_some());
        requested.map(|shard| format!("shard {shard} is still requested"))
    }

    /// Lets the members have heartbeats in this order, again and again, until all is at rest.
    /// Returns how many rounds that took.
    pub fn settle(&mut self, order: &[usize], most: usize) -> Result<usize, String> {
        for round in 0..=most {
            let Some(unrest) = self.unrest() else { return Ok(round) };
            if round == most {
                return Err(format!("after {most} heartbeats of each member: {unrest}"));
            }
            self.now_ms += HEARTBEAT_MS;
            for member in order {
                self.beat(*member, 0)?;
            }
        }
        Ok(most)
    }
}

/// Plays a random history of joins, departures, kills and late heartbeats, and checks that all is
/// at rest within ten heartbeats of the last change, and stays so.
pub fn history(planner: Planner, dice: &mut Dice) -> Result<(), String> {
    let most = if dice.below(8) == 0 { 64 } else { 12 };
    let count = 1 + dice.below(most) as usize;
    let mut world = World::new(planner, &[], vec![ShardState::default(); count]);
    // When each process that runs has its next heartbeat.
    let mut running: BTreeMap<usize, i64> = BTreeMap::new();
    let (mut started, mut next_event_ms, mut events) = (0, 0, 2 + dice.below(9));
    let mut beats: BTreeMap<usize, u32> = BTreeMap::new();
    let mut counted_since_ms = 0;
    loop {
        let next_beat = running.iter().min_by_key(|(_, at_ms)| **at_ms);
        let next_beat = next_beat.map(|(member, at_ms)| (*member, *at_ms));
        if events > 0 && next_beat.is_none_or(|(_, at_ms)| next_event_ms <= at_ms) {
            world.now_ms = world.now_ms.max(next_event_ms);
            events -= 1;
            // Often in the middle of what the last one has set off.
            next_event_ms = world.now_ms + dice.below(6_000) as i64;
            let running_now: Vec<usize> = running.keys().copied().collect();
            let chosen = running_now.get(dice.below(running_now.len().max(1) as u64) as usize);
            match (dice.below(6), chosen) {
                (0, Some(chosen)) => {
                    running.remove(chosen);
                    world.leave(*chosen);
                }
                (1, Some(chosen)) => _ = running.remove(chosen), // killed: its session ends later
                (2, Some(chosen)) => {
                    let late_ms = TTL_MS + dice.below(4_000) as i64;
                    running.entry(*chosen).and_modify(|at_ms| *at_ms += late_ms);
                }
                _ if running.len() < 7 => {
                    running.insert(started, world.now_ms);
                    started += 1;
                }
                _ => {}
            }
            continue;
        }
        let Some((member, at_ms)) = next_beat else { return Ok(()) };
        world.now_ms = at_ms;
        world.beat(member, dice.below(2_500) as i64)?;
        running.insert(member, at_ms + HEARTBEAT_MS - 200 + dice.below(400) as i64);
        if counted_since_ms != world.changed_ms || events > 0 {
            counted_since_ms = world.changed_ms;
            beats.clear();
        }
        *beats.entry(member).or_default() += 1;
        // Sessions of the killed end, too.
        let is_settled = world.members().len() == running.len();
        let least = running.keys().map(|member| beats.get(member).copied().unwrap_or(0)).min();
        match least.filter(|_| is_settled && events == 0) {
            Some(10) => {
                if let Some(unrest) = world.unrest() {
                    return Err(format!(
                        "{count} shards, ten heartbeats after the last change: {unrest}"
                    ));
                }
                let before = world.shards.clone();
                let members = world.members();
                for member in members.iter().chain(&members) {
                    world.now_ms += 1;
                    world.beat(*member, 0)?;
                }
                return match world.shards == before {
                    true => Ok(()),
                    false => Err("shards move although no member came or went".into()),
                };
            }
            _ => continue,
        }
    }
}

/// A plan with a bug: a member that has the smaller share asks for one of a larger share, for ever.
pub fn thrashes(members: &[usize], shards: &[ShardState<usize>], me: usize) -> ShardPlan {
    let mut plan = plan(members, shards, me);
    let has = |who: usize| shards.iter().filter(|shard| shard.holder == Some(who)).count();
    let richer = shards.iter().position(|shard| {
        shard.requester.is_none_or(|who| who == me)
            && shard.holder.is_some_and(|holder| {
                holder != me && members.contains(&holder) && has(holder) > has(me)
            })
    });
    if plan.is_empty() {
        plan.request.extend(richer);
    }
    plan.give_up = (0..shards.len())
        .filter(|shard| {
            let ShardState { holder, requester } = shards[*shard];
            holder == Some(me) && requester.is_some_and(|who| who != me && members.contains(&who))
        })
        .collect();
    plan
}

/// A plan with a bug: a member takes the larger share before every member has the smaller one.
pub fn is_greedy(members: &[usize], shards: &[ShardState<usize>], me: usize) -> ShardPlan {
    let mut plan = plan(members, shards, me);
    let has = shards.iter().filter(|shard| shard.holder == Some(me)).count() + plan.claim.len();
    let most = shards.len().div_ceil(members.len().max(1));
    let free = (0..shards.len())
        .filter(|shard| shards[*shard].holder.is_none() && !plan.claim.contains(shard));
    let more: Vec<usize> = free.take(most.saturating_sub(has)).collect();
    plan.claim.extend(more);
    plan
}

/// A plan with a bug: it does not see the requests of others.
pub fn is_blind(members: &[usize], shards: &[ShardState<usize>], me: usize) -> ShardPlan {
    let unseen = |shard: &ShardState<usize>| ShardState {
        requester: shard.requester.filter(|who| *who == me),
        ..*shard
    };
    let seen: Vec<_> = shards.iter().map(unseen).collect();
    let mut blind = plan(members, &seen, me);
    // It takes what others have not asked for already: more than the holder can spare.
    blind.request.retain(|shard| shards[*shard].requester.is_none_or(|who| who == me));
    let asked = |shard: &usize| {
        let ShardState { holder, requester } = shards[*shard];
        holder == Some(me) && requester.is_some_and(|who| who != me && members.contains(&who))
    };
    blind.give_up = (0..shards.len()).filter(asked).collect();
    blind
}

/// A plan with a bug: it requests one shard at a time.
pub fn asks_one_at_a_time(members: &[usize], shards: &[ShardState<usize>], me: usize) -> ShardPlan {
    let mut plan = plan(members, shards, me);
    plan.request.truncate(1);
    plan
}

/// A plan with a bug: it gives nothing up.
pub fn keeps_all(members: &[usize], shards: &[ShardState<usize>], me: usize) -> ShardPlan {
    ShardPlan { give_up: Vec::new(), ..plan(members, shards, me) }
}
