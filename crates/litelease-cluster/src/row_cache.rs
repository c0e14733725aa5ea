//! The cache of a handle between verbs: since when it has seen each row, and the rows that it wrote
//! last.
//!
//! Forgetting any of it is always safe: a lease then seems to end later, or a verb loads once more.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::engine::Loaded;

/// How many names are remembered. Beyond that all are forgotten.
const MOST: usize = 100_000;

/// Caches what a handle knows of rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RowCache {
    first_seen: BTreeMap<String, FirstSeen>,
    known: BTreeMap<String, Known>,
}

/// The version of a row, and the incarnation of the engine that it is from.
pub(crate) type Version = (i64, i64);

/// The first sight of a row in its present version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FirstSeen {
    version: Version,
    /// After the answer that showed it first, on the clock that counts suspend.
    pub(crate) since: Duration,
    /// A moment before this handle has written it, if it has: then it knows the age of the row
    /// without a wall clock.
    pub(crate) written: Option<Duration>,
}

/// A row that this handle has written, as it would load it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Known {
    pub(crate) loaded: Loaded,
    /// A moment before the engine's clock was read.
    pub(crate) at: Duration,
}

impl RowCache {
    /// Returns since when a row is seen in this version; from now on if it was not.
    pub(crate) fn first_seen(&mut self, name: &str, version: Version, now: Duration) -> FirstSeen {
        match self.first_seen.get(name) {
            Some(first) if first.version == version => *first,
            _ => self.begin(name, version, now, None),
        }
    }

    /// Begins to count anew.
    pub(crate) fn begin(
        &mut self,
        name: &str,
        version: Version,
        now: Duration,
        written: Option<Duration>,
    ) -> FirstSeen {
        if self.first_seen.len() >= MOST {
            self.first_seen.clear();
        }
        let first = FirstSeen { version, since: now, written };
        self.first_seen.insert(name.to_owned(), first);
        first
    }

    /// Returns the row that this handle wrote last, if it is remembered.
    pub(crate) fn known(&self, name: &str) -> Option<&Known> {
        self.known.get(name)
    }

    /// Remembers a row that this handle has just written.
    pub(crate) fn wrote(&mut self, name: &str, known: Known) {
        if self.known.len() >= MOST {
            self.known.clear();
        }
        self.known.insert(name.to_owned(), known);
    }

    /// Forgets the row that this handle wrote last: another client has changed it since.
    pub(crate) fn forget_known(&mut self, name: &str) {
        self.known.remove(name);
    }

    /// Forgets a name that is free.
    pub(crate) fn forget(&mut self, name: &str) {
        self.known.remove(name);
        self.first_seen.remove(name);
    }
}
