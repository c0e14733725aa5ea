//! Turns rows into the overview: each thing with its judgement.

use std::collections::{BTreeMap, HashMap};

use litelease::{Liveness, QueueInfo, TickState, is_live};
use litelease_core::{
    Health, Judgement, Limits, NameFacts, QueueFacts, Thresholds, TickFacts, judge_name,
    judge_queue, judge_tick, spoken,
};
use litelease_hold::schedule::Schedule;
use litelease_wire::{
    Overview, OverviewName, OverviewPool, OverviewQueue, OverviewSession, OverviewShards,
    OverviewSlot, OverviewTick, PoolOfLabel,
};

use super::processes::{Process, Processes};
use super::rows::{LiveName, Rows};
use super::summary::{Summary, summary};
use super::{Memory, words};
use crate::job::Id;

/// A thing of the overview, and its judgement.
pub(super) type JudgedRow<T> = (T, Judgement);

/// Composes the overview of some rows.
pub fn compose(
    rows: Rows,
    memory: &Memory,
    processes: &mut Processes,
    most: &Thresholds,
    now_ms: i64,
) -> Overview {
    let sessions = sessions(&rows, processes, now_ms);
    let shards = shards(&rows, now_ms);
    let Rows { names, free, queues, pools, ticks, history, limits, requests, .. } = rows;
    let names: Vec<JudgedRow<OverviewName>> = names
        .into_iter()
        .map(|live| {
            let name = &live.lease.name;
            let limits = limits.get(name).filter(|limits| limits.token == live.lease.token);
            let request = requests.get(name).filter(|(_, found)| found.token == live.lease.token);
            let request = request.map(|(who, request)| (who.as_str(), request.until_ms));
            judged_name(live, limits, request, memory, processes, most, now_ms)
        })
        .collect();
    processes.forget_others();
    let queues: Vec<_> = queues.into_iter().map(|info| judged_queue(info, most, now_ms)).collect();
    let pools = pools.into_iter().map(|(id, row)| pool(&id, row, memory, now_ms)).collect();
    let ticks: Vec<_> = ticks.iter().map(|info| judged_tick(info, most, now_ms)).collect();
    let Summary { verdict, health, figures, attention } =
        summary(&names, &queues, &pools, &ticks, most, now_ms);
    Overview {
        at_ms: now_ms,
        attention,
        figures,
        free,
        health: health.word().into(),
        history,
        names: names.into_iter().map(|(name, _)| name).collect(),
        pools,
        queues: queues.into_iter().map(|(queue, _)| queue).collect(),
        rule: rule(most),
        sessions,
        shards,
        ticks: ticks.into_iter().map(|(tick, _)| tick).collect(),
        verdict,
    }
}

fn judged_queue(info: QueueInfo, most: &Thresholds, now_ms: i64) -> JudgedRow<OverviewQueue> {
    let facts = QueueFacts {
        visible: info.visible,
        oldest_since_ms: info.oldest_ms.map(|oldest_ms| now_ms.saturating_sub(oldest_ms)),
        leased: info.leased,
        ..QueueFacts::default()
    };
    let judged = judge_queue(&facts, most, now_ms);
    let (health, why) = words(&judged);
    let row = OverviewQueue {
        dead: info.dead,
        delayed: info.delayed,
        health,
        leased: info.leased,
        max_attempts: info.max_attempts,
        oldest_since_ms: facts.oldest_since_ms,
        paused: None,
        queue: info.queue,
        visible: info.visible,
        why,
    };
    (row, judged)
}

/// Returns the thresholds in a sentence.
fn rule(most: &Thresholds) -> String {
    let Thresholds { wait_ms, item_ms, tick_ms, .. } = *most;
    format!(
        "Stuck: a client waits over {}, an item is visible over {} and nobody receives, or a tick \
         is {} past its time and not begun.",
        spoken(wait_ms),
        spoken(item_ms),
        spoken(tick_ms)
    )
}

fn judged_name(
    live: LiveName,
    limits: Option<&Limits>,
    request: Option<(&str, i64)>,
    memory: &Memory,
    processes: &mut Processes,
    most: &Thresholds,
    now_ms: i64,
) -> JudgedRow<OverviewName> {
    let LiveName { lease, since_ms, renewed_at_ms, .. } = live;
    let process = processes.find(&lease.owner);
    let (waiters, waiting) = memory.waiting_for(Id::Name(lease.name.as_str().into()));
    // A file does not store who waits. A request was made before the time that it leaves the
    // holder was over.
    let asked_ms = request.map(|(_, until_ms)| until_ms.min(now_ms));
    // A claim that no process renews is meant to run out.
    let is_kept = process.is_some() || renewed_at_ms > since_ms;
    let facts = NameFacts {
        since_ms,
        renewed_at_ms: renewed_at_ms.filter(|_| is_kept),
        expires_at_ms: lease.expires_at_ms,
        waiters: waiters.max(usize::from(request.is_some())),
        waits_since_ms: waiting.iter().filter_map(|waiter| waiter.since_ms).min().or(asked_ms),
        has_passed_limit: limits.is_some_and(|limits| limits.refusal(now_ms).is_some()),
        max_time_ms: limits.and_then(|limits| limits.not_after_ms?.checked_sub(since_ms?)),
        is_process_gone: process.as_ref().is_some_and(|one| one.liveness == Liveness::Dead),
        usual: None,
    };
    let judged = judge_name(&facts, most, now_ms);
    let (health, why) = words(&judged);
    let key = (lease.name, lease.token);
    let (user, command) = memory.holders.get(&key).cloned().unwrap_or_default();
    let here = process.as_ref();
    let row = OverviewName {
        command: command.or_else(|| here.and_then(|process| process.command.clone())),
        expires_at_ms: lease.expires_at_ms,
        health,
        host: here.map(|process| process.host.clone()),
        limits: limits.map(|limits| in_words(limits, since_ms)),
        name: key.0,
        owner: owner(&lease.owner, here),
        pid: here.map(|process| process.pid),
        process: here.map(|process| process.word().into()),
        renewed_at_ms,
        requester: request.map(|(who, _)| litelease_hold::short_owner(who)),
        since_ms,
        token: lease.token,
        user: user.or_else(|| here.and_then(|process| process.user.clone())),
        waiters,
        waiting: Some(waiting).filter(|waiting| !waiting.is_empty()),
        why,
    };
    (row, judged)
}

/// Returns the owner for people. One that only names a process is shown as host and number.
fn owner(owner: &str, process: Option<&Process>) -> String {
    match process {
        Some(process) => process.user.clone().unwrap_or_else(|| "process".into()),
        None => owner.to_owned(),
    }
}

fn in_words(limits: &Limits, since_ms: Option<i64>) -> String {
    let whole = limits.not_after_ms.zip(since_ms);
    let whole =
        whole.map(|(end_ms, since_ms)| format!("held at most {}", spoken(end_ms - since_ms)));
    let progress = limits.progress_within_ms.map(|ms| format!("progress every {}", spoken(ms)));
    whole.into_iter().chain(progress).collect::<Vec<_>>().join(", ")
}

fn pool(id: &str, pool: PoolOfLabel, memory: &Memory, now_ms: i64) -> OverviewPool {
    let (waiters, waiting) = memory.waiting_for(Id::Pool(id.into()));
    let slot = |slot: litelease_wire::HeldSlot| OverviewSlot {
        expires_at_ms: slot.expires_in.map(|left| now_ms.saturating_add(left.ms)),
        note: slot.note.map(|note| litelease_hold::short_owner(&note)),
        position: slot.position,
        token: slot.token,
    };
    OverviewPool {
        count: pool.count,
        health: if waiters > 0 { Health::Waiting } else { Health::Ok }.word().into(),
        in_use: pool.in_use,
        is_named: litelease::pool_of_name(&pool.label) == id,
        label: pool.label,
        slots: pool.slots.into_iter().map(slot).collect(),
        waiters,
        waiting: Some(waiting).filter(|waiting| !waiting.is_empty()),
    }
}

fn judged_tick(
    info: &litelease::TickInfo,
    most: &Thresholds,
    now_ms: i64,
) -> JudgedRow<OverviewTick> {
    let (tick, newest) = (info.tick, info.tick.newest());
    let is_running = info.holder.is_some();
    let schedule = info.schedule.as_deref().and_then(Schedule::from_stored);
    let next_ms = schedule.as_ref().and_then(|schedule| schedule.next(newest.tick_ms));
    let was_begun = tick.attempt > 0 && newest.tick_ms == tick.tick_ms;
    let facts = TickFacts {
        newest_ms: newest.tick_ms,
        began_ms: was_begun.then_some(tick.began_ms),
        is_first_attempt: tick.attempt == 1,
        is_running,
        has_failed: match newest.state {
            TickState::Failed => true,
            TickState::Open => !is_running,
            _ => false,
        },
        next_ms,
    };
    let judged = judge_tick(&facts, most, now_ms);
    let (health, why) = words(&judged);
    let state = match newest.state {
        TickState::Open if is_running => "running",
        state => state.word(),
    };
    let row = OverviewTick {
        attempt: tick.attempt,
        attempts: tick.attempts,
        began_ms: facts.began_ms,
        done_ms: tick.newest_done_ms(),
        ended_ms: tick.ended_ms,
        health,
        name: info.name.clone(),
        next_ms,
        owner: info.owner.as_deref().map(litelease_hold::short_owner),
        schedule: schedule.map(|schedule| schedule.to_string()),
        state: state.into(),
        tick_ms: newest.tick_ms,
        why,
    };
    (row, judged)
}

fn sessions(rows: &Rows, processes: &mut Processes, now_ms: i64) -> Vec<OverviewSession> {
    let names: HashMap<&str, &LiveName> =
        rows.names.iter().map(|live| (live.lease.name.as_str(), live)).collect();
    let session = |(identity, token, count): &(String, i64, i64)| {
        let live = names.get(identity.as_str()).filter(|live| live.lease.token == *token)?;
        let LiveName { lease, since_ms, renewed_at_ms, .. } = live;
        let facts = NameFacts {
            renewed_at_ms: *renewed_at_ms,
            expires_at_ms: lease.expires_at_ms,
            ..NameFacts::default()
        };
        let process = processes.find(&lease.owner);
        let here = process.as_ref();
        Some(OverviewSession {
            expires_at_ms: lease.expires_at_ms,
            health: judge_name(&facts, &Thresholds::default(), now_ms).health.word().into(),
            host: here.map(|process| process.host.clone()),
            name: identity.clone(),
            names: *count,
            owner: owner(&lease.owner, here),
            pid: here.map(|process| process.pid),
            renewed_at_ms: *renewed_at_ms,
            since_ms: *since_ms,
        })
    };
    rows.sessions.iter().filter_map(session).collect()
}

/// Returns the groups that have a live member.
fn shards(rows: &Rows, now_ms: i64) -> Vec<OverviewShards> {
    let mut groups: BTreeMap<&str, (OverviewShards, Vec<&str>)> = BTreeMap::new();
    for live in &rows.names {
        let Some((count, (group, _))) = live.shards.zip(live.lease.name.split_once("/member/"))
        else {
            continue;
        };
        let empty = || OverviewShards {
            count: 0,
            each: Vec::new(),
            group: group.into(),
            held: 0,
            health: Health::Ok.word().into(),
            requests: 0,
        };
        let (found, owners) = groups.entry(group).or_insert_with(|| (empty(), Vec::new()));
        found.count = found.count.max(count);
        found.each.push(0);
        owners.push(&live.lease.owner);
    }
    for live in &rows.names {
        let name = &live.lease.name;
        let Some((group, _)) = name.split_once("/shard/") else { continue };
        let Some((found, owners)) = groups.get_mut(group) else { continue };
        found.held += 1;
        let place = owners.iter().position(|owner| *owner == live.lease.owner);
        place.into_iter().for_each(|place| found.each[place] += 1);
        let request = rows.requests.get(name);
        let is_open = request.is_some_and(|(_, request)| {
            request.token == live.lease.token && is_live(request.until_ms, now_ms)
        });
        found.requests += i64::from(is_open);
    }
    groups.into_values().map(|(found, _)| found).collect()
}
