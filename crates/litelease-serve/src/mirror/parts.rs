//! The names of a commit: which rows of the engine it is about, and storing them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use litelease_cluster::engine::{Change, Commit, Committed, Loaded, Part, Stored, TokenFloor};

use super::names::{Copied, Now, is_same};
use super::{Mirror, RowChange, journal};
use crate::failure::Failure;
use crate::replica::WRITER_LEASE;

/// The most bytes of the rows in one request, and how many of them may be the service's own.
const MOST_BYTES: usize = 1_000_000;
const MOST_OWN_BYTES: usize = 200_000;

/// Collects what a commit stores about each name.
#[derive(Default)]
pub(super) struct Wanted(BTreeMap<String, WantedName>);

#[derive(Default)]
struct WantedName {
    /// Its copy, if that was changed.
    copied: Option<Copied>,
    /// The table and number of each row that belongs to it, and the rows.
    rows: Vec<(String, i64)>,
    changes: Vec<RowChange>,
    /// It is decided again with the next commit.
    is_put_off: bool,
}

/// A name that others have changed, or that another transaction has locked.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) name: String,
    /// The rows in memory that belong to it, and were stored nowhere: the table and number of each.
    pub(super) rows: Vec<(String, i64)>,
}

impl Wanted {
    /// Begins with the names that are to be the same, whatever else is done to them.
    pub(super) fn from_names(answered: &BTreeSet<Arc<str>>) -> Self {
        Wanted(answered.iter().map(|name| (name.to_string(), WantedName::default())).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks whether rows of the service are among it.
    pub(super) fn has_rows(&self) -> bool {
        self.0.values().any(|wanted| !wanted.changes.is_empty())
    }

    /// Adds a name whose copy was changed.
    pub(super) fn write(&mut self, copied: Copied) {
        let wanted = self.0.entry(copied.name.clone()).or_default();
        wanted.copied = Some(copied);
    }

    /// Adds a row of the service that belongs to a name.
    pub(super) fn add(&mut self, name: String, place: (String, i64), change: RowChange) {
        let wanted = self.0.entry(name).or_default();
        wanted.rows.push(place);
        wanted.changes.push(change);
    }

    /// Leaves a name, with a row in memory, to the next commit.
    pub(super) fn put_off(&mut self, name: String, place: (String, i64)) {
        let wanted = self.0.entry(name).or_default();
        wanted.rows.push(place);
        wanted.is_put_off = true;
    }
}

impl Mirror {
    /// Stores names, each for itself, and the other rows. Returns the names that were refused.
    pub(super) fn store(
        &mut self,
        wanted: Wanted,
        rows: &[RowChange],
    ) -> Result<Vec<Refused>, Failure> {
        let (now, attempt) = (self.now(), self.cluster.host().random_id());
        let (mut parts, mut refused) = (Vec::new(), Vec::new());
        let mut largest = 0;
        for (name, WantedName { copied, rows, changes, is_put_off }) in wanted.0 {
            largest = largest.max(copied.as_ref().map_or(0, Copied::token));
            match self.names.part(&name, copied.as_ref(), changes, (attempt, now)) {
                Some(part) if !is_put_off => parts.push((part, rows)),
                _ => refused.push(Refused { name, rows }),
            }
        }
        let is_plain = |(part, _): &PartOf| part.row.is_none() && part.rows.is_empty();
        if rows.is_empty() && parts.iter().all(is_plain) {
            self.compare(parts, &mut refused)?;
            return Ok(refused);
        }
        let is_floor_right = self.raise_floor(largest)?;
        let bytes: usize = rows.iter().map(size).sum();
        let most = self
            .engine
            .most_parts(parts.iter().map(|(part, _)| part.rows.len()).max().unwrap_or(0));
        let mut own = rows;
        if parts.is_empty() || !is_floor_right || rows.len() * 2 > most || bytes > MOST_OWN_BYTES {
            // As it was before there were names in it.
            if !rows.is_empty() {
                journal::store(self.destination(), rows)?;
            }
            own = &[];
        }
        if !is_floor_right {
            return Ok(refuse(parts, refused));
        }
        while !parts.is_empty() {
            let count = fitting(&parts, most.saturating_sub(own.len()).max(1));
            let rest = parts.split_off(count);
            let some = std::mem::replace(&mut parts, rest);
            match self.send(some, own, now)? {
                Sent::Stored(others) => refused.extend(others),
                Sent::FloorChanged(others) => {
                    if !own.is_empty() {
                        journal::store(self.destination(), own)?;
                    }
                    return Ok(refuse(parts, refuse(others, refused)));
                }
            }
            own = &[];
        }
        Ok(refused)
    }

    /// Checks that names are the same, where nothing is to be stored.
    fn compare(&mut self, parts: Vec<PartOf>, refused: &mut Vec<Refused>) -> Result<(), Failure> {
        if parts.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = parts.iter().map(|(part, _)| part.name()).collect();
        let loaded = self.engine.load(&names)?;
        let is_floor_right = loaded.floor == self.names.floor;
        for ((part, rows), found) in parts.into_iter().zip(&loaded.rows) {
            if !is_floor_right || !is_same(&part.before, found) {
                refused.push(Refused { name: part.before.name, rows });
            }
        }
        Ok(())
    }

    /// Stores a floor whose epoch is that of the largest token, before the token is. Returns false
    /// if others have changed the floor.
    fn raise_floor(&mut self, largest: i64) -> Result<bool, Failure> {
        let floor = self.names.floor;
        let seen = Loaded { floor, incarnation: self.boot, server_ms: None, rows: Vec::new() };
        let Some(epoch) = seen.floor_for(largest)? else { return Ok(true) };
        let change = Change { floor: Some(epoch), ..Change::default() };
        match self.engine.store(&seen, &change)? {
            Stored::Done { version } | Stored::DoneAt { version, .. } => {
                self.names.floor = TokenFloor { epoch, version };
                Ok(true)
            }
            Stored::Conflict => Ok(false),
        }
    }

    fn send(&mut self, parts: Vec<PartOf>, rows: &[RowChange], now: Now) -> Result<Sent, Failure> {
        let (parts, places): (Vec<Part>, Vec<_>) = parts.into_iter().unzip();
        let commit = Commit {
            writer: (WRITER_LEASE, self.lease.token()),
            floor_version: self.names.floor.version,
            incarnation: self.boot,
            parts: &parts,
            rows,
        };
        let stored = match self.engine.commit_parts(&commit)? {
            Committed::Parts(stored) => stored,
            Committed::FloorChanged => {
                return Ok(Sent::FloorChanged(parts.into_iter().zip(places).collect()));
            }
            Committed::Replaced => {
                self.lease.give_up();
                let text = "another server has taken over, and nothing was stored here";
                return Err(Failure::NotWriter(text.into()));
            }
        };
        let mut refused = Vec::new();
        for ((part, rows), stored) in parts.into_iter().zip(places).zip(stored) {
            match stored {
                Stored::Conflict => refused.push(Refused { name: part.before.name, rows }),
                stored => self.names.stored(&part, stored, now),
            }
        }
        Ok(Sent::Stored(refused))
    }
}

/// A part, and the rows in memory that belong to it.
type PartOf = (Part, Vec<(String, i64)>);

enum Sent {
    /// All but these are stored.
    Stored(Vec<Refused>),
    /// Nothing of it is stored.
    FloorChanged(Vec<PartOf>),
}

fn refuse(parts: Vec<PartOf>, mut refused: Vec<Refused>) -> Vec<Refused> {
    let all = parts.into_iter();
    refused.extend(all.map(|(part, rows)| Refused { name: part.before.name, rows }));
    refused
}

/// Returns how many parts fit into one request: at least one.
fn fitting(parts: &[PartOf], most: usize) -> usize {
    let mut bytes = 0;
    let fits = |(part, _): &&PartOf| {
        // A name is in four keys on etcd: two that are compared, and two that are put.
        let tenure = part.row.as_ref().and_then(|row| row.tenure.as_ref());
        let texts = part.name().len() * 4 + tenure.map_or(0, |tenure| tenure.owner.len());
        bytes += texts + part.rows.iter().map(size).sum::<usize>();
        bytes <= MOST_BYTES
    };
    parts.iter().take(most).take_while(fits).count().max(1)
}

fn size((key, value): &RowChange) -> usize {
    key.len() + value.as_ref().map_or(0, Vec::len)
}

#[cfg(test)]
mod tests {
    use litelease_cluster::engine::{Condition, LoadedRow};

    use super::*;

    /// etcd takes requests of 1.5 MiB, and counts the keys, too.
    #[test]
    fn parts_with_long_names_and_values_are_sent_in_several_requests() {
        let part = |bytes: usize| {
            let before = LoadedRow::absent(&"n".repeat(1_024));
            let rows = vec![(Vec::new(), Some(vec![0; bytes]))];
            (Part { before, row: None, condition: Condition::None, rows }, Vec::new())
        };
        let parts = |bytes| (0..124).map(|_| part(bytes)).collect::<Vec<_>>();
        assert_eq!(fitting(&parts(0), 124), 124);
        assert_eq!(fitting(&parts(0), 50), 50);
        assert_eq!(fitting(&parts(8_000), 124), 1_000_000 / (4 * 1_024 + 8_000));
        assert_eq!(fitting(&parts(2_000_000), 124), 1, "one at least");
    }
}
