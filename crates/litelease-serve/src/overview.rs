//! The overview of operators: what is read of a file, and what is said about it. The rule that says
//! what is stuck is `litelease_core::judge`.

mod compose;
mod holders;
mod processes;
mod rows;
mod summary;

use std::collections::HashMap;

use litelease_core::{Health, Judgement};
pub use litelease_wire::{Overview, OverviewName};
use litelease_wire::{OverviewChange, OverviewWaiter};

use crate::job::Id;

pub use self::compose::compose;
pub(crate) use self::holders::Holders;
pub use self::processes::Processes;
pub use self::rows::Rows;

/// The part that only the memory of a server has: who waits, and which process holds a name.
#[derive(Default)]
pub struct Memory {
    /// How many requests wait for a name or pool, and the first of them.
    pub(crate) waiting: HashMap<Id, (usize, Vec<OverviewWaiter>)>,
    /// User and command of a grant, as its client has told them.
    pub(crate) holders: HashMap<(String, i64), (Option<String>, Option<String>)>,
}

impl Memory {
    fn waiting_for(&self, id: Id) -> (usize, Vec<OverviewWaiter>) {
        self.waiting.get(&id).cloned().unwrap_or_default()
    }
}

/// Returns what has changed since the overview before.
pub(crate) fn change(now: &Overview, before: &Overview) -> OverviewChange {
    fn new<T: Clone + PartialEq>(now: &[T], before: &[T]) -> Option<Vec<T>> {
        (now != before).then(|| now.to_vec())
    }
    let known: HashMap<&str, &OverviewName> = by_name(before);
    let live: HashMap<&str, &OverviewName> = by_name(now);
    let is_new = |name: &&OverviewName| known.get(&*name.name).is_none_or(|one| one != name);
    OverviewChange {
        at_ms: now.at_ms,
        attention: new(&now.attention, &before.attention),
        figures: new(&now.figures, &before.figures),
        free: now.free,
        gone: known.keys().filter(|name| !live.contains_key(*name)).map(|&it| it.into()).collect(),
        health: now.health.clone(),
        names: now.names.iter().filter(is_new).cloned().collect(),
        pools: new(&now.pools, &before.pools),
        queues: new(&now.queues, &before.queues),
        sessions: new(&now.sessions, &before.sessions),
        shards: new(&now.shards, &before.shards),
        ticks: new(&now.ticks, &before.ticks),
        verdict: now.verdict.clone(),
    }
}

/// Checks whether two overviews differ only in the time at which they were read.
pub(crate) fn is_same(now: &Overview, before: &Overview) -> bool {
    let rest = |all: &Overview| (all.free, all.history, all.verdict.clone());
    now.names == before.names
        && (&now.attention, &now.figures) == (&before.attention, &before.figures)
        && (&now.queues, &now.pools, &now.ticks) == (&before.queues, &before.pools, &before.ticks)
        && (&now.sessions, &now.shards) == (&before.sessions, &before.shards)
        && rest(now) == rest(before)
}

fn by_name(overview: &Overview) -> HashMap<&str, &OverviewName> {
    overview.names.iter().map(|name| (name.name.as_str(), name)).collect()
}

/// Returns the word and the sentence of a judgement.
fn words(judged: &Judgement) -> (String, Option<String>) {
    let why = Some(judged.why.clone()).filter(|why| !why.is_empty());
    (judged.health.word().into(), why)
}

/// Returns the worst of some states.
fn worst(all: impl Iterator<Item = Health>) -> Health {
    all.min().unwrap_or(Health::Ok)
}
