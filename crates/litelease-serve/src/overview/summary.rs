//! The answer to the question whether anything is stuck: a verdict, six figures, and what needs
//! attention.

use litelease_core::{Health, Judgement, Thresholds, grouped, spoken};
use litelease_wire::{
    Attention, Figure, OverviewName, OverviewPool, OverviewQueue, OverviewTick, OverviewWaiter,
};

use super::compose::JudgedRow;
use super::rows::MOST;
use super::worst;

pub(super) struct Summary {
    pub(super) verdict: String,
    pub(super) health: Health,
    pub(super) figures: Vec<Figure>,
    pub(super) attention: Vec<Attention>,
}

/// The things that a summary counts.
struct Things<'a> {
    names: &'a [JudgedRow<OverviewName>],
    queues: &'a [JudgedRow<OverviewQueue>],
    pools: &'a [OverviewPool],
    ticks: &'a [JudgedRow<OverviewTick>],
    most: &'a Thresholds,
    now_ms: i64,
}

pub(super) fn summary(
    names: &[JudgedRow<OverviewName>],
    queues: &[JudgedRow<OverviewQueue>],
    pools: &Vec<OverviewPool>,
    ticks: &[JudgedRow<OverviewTick>],
    most: &Thresholds,
    now_ms: i64,
) -> Summary {
    let things = Things { names, queues, pools, ticks, most, now_ms };
    let attention = things.attention();
    let count = |health: Health| attention.iter().filter(|row| row.health == health.word()).count();
    let counts = [Health::Stuck, Health::Late, Health::Paused].map(|one| (one, count(one)));
    let said = counts.iter().filter(|(_, count)| *count > 0).map(|(health, count)| {
        let is = if *count == 1 { "is" } else { "are" };
        format!("{count} {is} {health}")
    });
    let said = said.collect::<Vec<_>>().join(", ");
    let is_empty = names.is_empty() && queues.is_empty() && pools.is_empty() && ticks.is_empty();
    // What is left out was not judged.
    let among = match names.len() {
        MOST.. => format!(" among the first {} names", grouped(MOST as i64)),
        _ => String::new(),
    };
    let verdict = match said {
        said if count(Health::Stuck) > 0 => said + &among,
        _ if is_empty => "Nothing is held, and nothing waits".into(),
        said if said.is_empty() => format!("Nothing is stuck{among}"),
        said => format!("Nothing is stuck{among}, {said}"),
    };
    let health = counts.iter().find(|(_, count)| *count > 0).map_or(Health::Ok, |(it, _)| *it);
    Summary { verdict, health, figures: things.figures(), attention }
}

impl Things<'_> {
    fn figures(&self) -> Vec<Figure> {
        vec![
            self.live(),
            self.waiting(),
            self.oldest_wait(),
            self.oldest_item(),
            self.dead(),
            self.late_ticks(),
        ]
    }

    fn live(&self) -> Figure {
        let health = worst(self.names.iter().map(|(_, judged)| judged.health));
        let of = |health: Health| self.names.iter().filter(move |(_, one)| one.health == health);
        let why = match (of(Health::Stuck).next(), of(Health::Late).next()) {
            (Some((name, _)), _) => {
                let held = name.since_ms.map(|since_ms| spoken(self.now_ms - since_ms));
                let held = held.map(|held| format!(" is held {held}")).unwrap_or_default();
                format!("{} stuck: {}{held}", of(Health::Stuck).count(), name.name)
            }
            (None, Some((name, _))) => format!("{} late: {}", of(Health::Late).count(), name.name),
            (None, None) if self.names.is_empty() => "nobody has anything".into(),
            (None, None) => "all renewed in time".into(),
        };
        let health = if health.needs_attention() { health } else { Health::Ok };
        figure("live", "Live names", grouped(count(self.names.len())), why, health)
    }

    fn waiting(&self) -> Figure {
        let names = self.names.iter().map(|(name, _)| name).filter(|name| name.waiters > 0);
        let (waiting, of) = names.fold((0, 0), |(all, of), name| (all + name.waiters, of + 1));
        let pools = self.pools.iter().filter(|pool| pool.waiters > 0);
        let (slots, pool) =
            pools.fold((0, None), |(all, _), pool| (all + pool.waiters, Some(&pool.label)));
        let plural = if of == 1 { "name" } else { "names" };
        let names = (waiting > 0).then(|| format!("{waiting} for {of} {plural}"));
        let slots_said = pool.map(|label| format!("{slots} for a slot of {label}"));
        let said: Vec<_> = names.into_iter().chain(slots_said).collect();
        let why = if said.is_empty() { "nobody waits".into() } else { said.join(", ") };
        figure("waiting", "Waiting", grouped(count(waiting + slots)), why, Health::Ok)
    }

    fn oldest_wait(&self) -> Figure {
        let waits = self.names.iter().flat_map(|(name, judged)| {
            let all = name.waiting.iter().flatten();
            all.filter_map(move |waiter| Some((waiter.since_ms?, waiter, name, judged.health)))
        });
        let title = "Oldest wait";
        let Some((since_ms, waiter, name, health)) = waits.min_by_key(|(since_ms, ..)| *since_ms)
        else {
            return figure("oldest_wait", title, "–".into(), String::new(), Health::Ok);
        };
        let is_stuck = health == Health::Stuck && self.now_ms - since_ms > self.most.wait_ms;
        let limit = spoken(self.most.wait_ms);
        let why = format!("{} waits for {}; the limit is {limit}", who(waiter), name.name);
        let health = if is_stuck { Health::Stuck } else { Health::Ok };
        figure("oldest_wait", title, spoken(self.now_ms - since_ms), why, health)
    }

    fn oldest_item(&self) -> Figure {
        let title = match self.queues.len() {
            0 => "Oldest item".into(),
            1 => "Oldest item, 1 queue".into(),
            count => format!("Oldest item, {count} queues"),
        };
        // Paused queues are left out. Of a stuck one the age is the alarm, so it comes first.
        let moving = self.queues.iter().filter(|(_, judged)| judged.health != Health::Paused);
        let aged = moving.filter_map(|(queue, judged)| {
            Some((judged.health != Health::Stuck, queue.oldest_since_ms?, queue, judged))
        });
        let Some((is_moving, since_ms, queue, judged)) =
            aged.min_by_key(|(is_moving, since_ms, ..)| (*is_moving, *since_ms))
        else {
            let why = if self.queues.is_empty() { "no queue yet" } else { "nothing is visible" };
            return figure("oldest_item", &title, "–".into(), why.into(), Health::Ok);
        };
        let limit = spoken(self.most.item_ms);
        let age = spoken(self.now_ms - since_ms);
        let why = match (is_moving, judged.since_ms) {
            (false, Some(since_ms)) => {
                let quiet = spoken(self.now_ms - since_ms);
                format!("{}: no worker, and an item of {quiet}; the limit is {limit}", queue.queue)
            }
            _ => format!("{}; the limit is {limit}", queue.queue),
        };
        let health = if is_moving { Health::Ok } else { Health::Stuck };
        figure("oldest_item", &title, age, why, health)
    }

    fn dead(&self) -> Figure {
        let dead: i64 = self.queues.iter().map(|(queue, _)| queue.dead).sum();
        let dying: Vec<_> =
            self.queues.iter().filter(|(_, one)| one.health == Health::Late).collect();
        let with_dead = self.queues.iter().filter(|(queue, _)| queue.dead > 0);
        let why = match (&dying[..], with_dead.clone().next()) {
            ([(queue, judged), ..], _) => {
                format!("{}: {}", queue.queue, judged.why.trim_end_matches('.'))
            }
            (_, Some((queue, _))) if with_dead.count() == 1 => format!("all in {}", queue.queue),
            (_, Some(_)) => "none is new".into(),
            _ => String::new(),
        };
        let health = if dying.is_empty() { Health::Ok } else { Health::Late };
        figure("dead", "Dead items", grouped(dead), why, health)
    }

    fn late_ticks(&self) -> Figure {
        let late: Vec<_> =
            self.ticks.iter().filter(|(_, one)| one.health.needs_attention()).collect();
        let title = match self.ticks.len() {
            0 => "Late ticks".into(),
            count => format!("Late ticks, of {count}"),
        };
        let next = self.ticks.iter().filter_map(|(tick, _)| Some((tick.next_ms?, &tick.name)));
        let health = worst(late.iter().map(|(_, judged)| judged.health));
        let why = match (late.iter().find(|(_, one)| one.health == health), next.min()) {
            (Some((tick, judged)), _) => {
                format!("{}: {}", tick.name, judged.why.trim_end_matches('.'))
            }
            (None, Some((next_ms, name))) => {
                format!("next: {name} in {}", spoken(next_ms - self.now_ms))
            }
            (None, None) => "no schedule yet".into(),
        };
        figure("late_ticks", &title, grouped(count(late.len())), why, health)
    }

    /// Lists what an operator should look at: the worst first, then what has lasted longest.
    fn attention(&self) -> Vec<Attention> {
        let names = self.names.iter().filter(|(_, one)| one.health.needs_attention());
        let queues = self.queues.iter().filter(|(_, one)| one.health.needs_attention());
        let ticks = self.ticks.iter().filter(|(_, one)| one.health.needs_attention());
        let names = names.map(|(name, judged)| (self.of_name(name, judged), judged));
        let queues = queues.map(|(queue, judged)| (Self::of_queue(queue, judged), judged));
        let ticks = ticks.map(|(tick, judged)| {
            let row = Attention {
                act: "open".into(),
                kind: "tick".into(),
                name: tick.name.clone(),
                place: tick.owner.as_ref().map(|owner| format!("last: {owner}")),
                waits: "–".into(),
                who: "nobody".into(),
                ..blank(judged)
            };
            (row, judged)
        });
        let mut all: Vec<_> = names.chain(queues).chain(ticks).collect();
        all.sort_by_key(|(row, judged)| (judged.health, judged.since_ms, row.name.clone()));
        all.into_iter().map(|(row, _)| row).collect()
    }

    fn of_name(&self, name: &OverviewName, judged: &Judgement) -> Attention {
        let is_gone = name.process.as_deref() == Some("gone");
        let act = if judged.health == Health::Stuck || is_gone { "break" } else { "open" };
        Attention {
            act: act.into(),
            kind: "name".into(),
            name: name.name.clone(),
            place: place(name),
            waits: self.waits(name),
            who: name.owner.clone(),
            ..blank(judged)
        }
    }

    fn of_queue(queue: &OverviewQueue, judged: &Judgement) -> Attention {
        let is_paused = judged.health == Health::Paused;
        let who = match queue.leased {
            0 if is_paused => "nobody".into(),
            0 => "no worker".into(),
            1 => "1 item is worked on".into(),
            leased => format!("{} items are worked on", grouped(leased)),
        };
        let waits = match queue.visible {
            0 => "–".into(),
            1 => "1 item".into(),
            visible => format!("{} items", grouped(visible)),
        };
        Attention {
            act: if is_paused { "resume" } else { "open" }.into(),
            kind: "queue".into(),
            name: queue.queue.clone(),
            waits,
            who,
            ..blank(judged)
        }
    }

    /// Returns who waits for a name, in a few words.
    fn waits(&self, name: &OverviewName) -> String {
        let all = name.waiting.iter().flatten();
        let said = all.take(3).enumerate().map(|(place, waiter)| match waiter.since_ms {
            Some(since_ms) if place == 0 => {
                format!("{} {}", who(waiter), spoken(self.now_ms - since_ms))
            }
            _ => who(waiter),
        });
        let said = said.collect::<Vec<_>>().join(", ");
        match (name.waiters, &name.requester) {
            (0, Some(requester)) => format!("{requester} has asked for it"),
            (0, None) => "nobody".into(),
            (waiters, _) => format!("{waiters}: {said}"),
        }
    }
}

/// Returns the parts of a row that its judgement decides.
fn blank(judged: &Judgement) -> Attention {
    Attention {
        act: String::new(),
        health: judged.health.word().into(),
        kind: String::new(),
        name: String::new(),
        place: None,
        since_ms: judged.since_ms,
        waits: String::new(),
        who: String::new(),
        why: judged.why.clone(),
    }
}

fn figure(kind: &str, title: &str, value: String, why: String, health: Health) -> Figure {
    let (kind, title, health) = (kind.into(), title.into(), health.word().into());
    Figure { health, kind, title, value, why }
}

fn who(waiter: &OverviewWaiter) -> String {
    match (&waiter.owner, &waiter.host, waiter.pid) {
        (_, Some(host), Some(pid)) => format!("{host} pid {pid}"),
        (Some(owner), ..) => owner.clone(),
        _ => "a client".into(),
    }
}

/// Returns where the holder of a name runs, as far as it is known.
fn place(name: &OverviewName) -> Option<String> {
    let gone = if name.process.as_deref() == Some("gone") { ", gone" } else { "" };
    name.host.as_ref().zip(name.pid).map(|(host, pid)| format!("{host} pid {pid}{gone}"))
}

fn count(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
