//! The processes that hold names, as their clients have told them. They are in memory only.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use super::Memory;

/// How many are kept.
const MOST: usize = 50_000;

/// User and command of each grant, by its name and token.
#[derive(Default)]
pub(crate) struct Holders(Mutex<HashMap<(String, i64), Holder>>);

type Holder = (Option<String>, Option<String>);

impl Holders {
    /// Keeps what a client has told with its claim.
    pub(crate) fn add(&self, name: String, token: i64, holder: Holder) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST {
            known.clear();
        }
        known.insert((name, token), holder);
    }

    /// Adds the holders of live grants to the memory of an overview. Those of grants that have
    /// ended stay here until there are too many, and then all are forgotten.
    pub(crate) fn add_to(&self, memory: &mut Memory, live: impl Iterator<Item = (String, i64)>) {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let live: HashSet<(String, i64)> = live.collect();
        let found = known.iter().filter(|(grant, _)| live.contains(*grant));
        memory.holders.extend(found.map(|(grant, holder)| (grant.clone(), holder.clone())));
    }
}
