//! What a handle remembers between verbs: since when it has seen each row, and the rows it wrote
//! last.
//!
//! Forgetting any of it is always safe: a lease then seems to end later, or a verb loads once more.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::engine::Loaded;

/// How many names are remembered. Beyond that all are forgotten.
const MOST: usize = 100_000;

/// What a handle remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Recall {
    sightings: BTreeMap<String, Sighting>,
    known: BTreeMap<String, Known>,
}

/// Since when a row was seen unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sighting {
    version: i64,
    boot: i64,
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

impl Recall {
    /// Returns since when a row is seen in this version; from now on if it was not.
    pub(crate) fn sight(&mut self, name: &str, version: i64, boot: i64, now: Duration) -> Sighting {
        match self.sightings.get(name) {
            Some(sighting) if sighting.version == version && sighting.boot == boot => *sighting,
            _ => self.begin(name, version, boot, now, None),
        }
    }

    /// Begins to count anew.
    pub(crate) fn begin(
        &mut self,
        name: &str,
        version: i64,
        boot: i64,
        now: Duration,
        written: Option<Duration>,
    ) -> Sighting {
        if self.sightings.len() >= MOST {
            self.sightings.clear();
        }
        let sighting = Sighting { version, boot, since: now, written };
        self.sightings.insert(name.to_owned(), sighting);
        sighting
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

    /// Forgets the row that this handle wrote last: somebody has changed it since.
    pub(crate) fn forget_known(&mut self, name: &str) {
        self.known.remove(name);
    }

    /// Forgets a name that nobody has.
    pub(crate) fn forget(&mut self, name: &str) {
        self.known.remove(name);
        self.sightings.remove(name);
    }
}
