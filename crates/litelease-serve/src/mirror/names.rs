//! The names in memory: a cache of the rows that programs claim beside the service.
//!
//! A name has one row on the engine. What is decided here about the copy of it is stored only if
//! that row is still the same, so the cache may be old at any time. It must never say that a lease
//! is over which is not: the engine's clock decides that, or a row that was seen unchanged for a
//! whole ttl.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use litelease::Lease;
use litelease::rusqlite::{Connection, OptionalExtension, params};
use litelease_cluster::engine::{
    Condition, Loaded, LoadedRow, Part, RowChange, Stored, StoredRow, StoredTenure, TokenFloor,
};
use litelease_cluster::{Options, is_of_service};

use crate::failure::Failure;
use crate::planted::Planted;

/// The table of the copies.
pub(super) const TABLE: &str = "litelease_resources";

const READ: &str = "SELECT name, token, owner, lease_expires_at_ms, updated_at_ms, created_at_ms
FROM main.litelease_resources WHERE rowid = ?1";

const WRITE: &str = "INSERT INTO main.litelease_resources
(name, token, owner, lease_expires_at_ms, created_at_ms, updated_at_ms)
VALUES (?1, ?2, ?3, ?4, ?6, ?5)
ON CONFLICT (name) DO UPDATE SET token = excluded.token, owner = excluded.owner,
lease_expires_at_ms = excluded.lease_expires_at_ms, created_at_ms = excluded.created_at_ms,
updated_at_ms = excluded.updated_at_ms";

const FORGET: &str = "DELETE FROM main.litelease_resources WHERE name = ?1";

/// The most that a decision can be older than the commit that stores it.
const LONGEST_BATCH_MS: i64 = 1_000;

/// The clocks of this machine at one moment: that of the service, and one that is never set.
#[derive(Clone, Copy)]
pub(super) struct Now {
    pub(super) at_ms: i64,
    pub(super) monotonic: Duration,
}

#[derive(Default)]
pub(super) struct Names {
    /// The times of the engine are those of the service's clock: tests set both.
    is_one_clock: bool,
    pub(super) floor: TokenFloor,
    /// The engine has a clock of its own.
    has_clock: bool,
    rows: HashMap<String, Known>,
}

/// A row of the engine as it was seen last.
struct Known {
    seen: LoadedRow,
    /// Since when it is unchanged, on the clock that is never set.
    since: Duration,
    /// This server has written it, so the wall clock has no say about it.
    is_ours: bool,
    /// The end of its lease by the clock of the service.
    until_ms: i64,
}

/// A copy in memory.
pub(super) struct Copied {
    pub(super) name: String,
    token: i64,
    tenure: Option<(String, i64)>,
    /// When it was decided on last, and when its grant began.
    at_ms: i64,
    since_ms: i64,
}

impl Names {
    pub(super) fn new(is_one_clock: bool) -> Self {
        Names { is_one_clock, ..Names::default() }
    }

    /// Returns what a server that takes over begins with.
    pub(super) fn emptied(&self) -> Self {
        Names::new(self.is_one_clock)
    }

    pub(super) fn is_one_clock(&self) -> bool {
        self.is_one_clock
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn has_clock(&self) -> bool {
        self.has_clock
    }

    /// Takes in what was loaded: these rows or, with `are_all`, all that there are. Returns the
    /// names whose row is another one now.
    pub(super) fn take_in(&mut self, loaded: Loaded, now: Now, are_all: bool) -> Vec<String> {
        self.has_clock = loaded.server_ms.is_some();
        self.floor = loaded.floor;
        let mut changed = Vec::new();
        if are_all {
            let found: HashSet<&str> = loaded.rows.iter().map(|row| row.name.as_str()).collect();
            changed.extend(self.rows.keys().filter(|name| !found.contains(name.as_str())).cloned());
            changed.iter().for_each(|name| _ = self.rows.remove(name));
        }
        for seen in loaded.rows {
            if are_all && is_of_service(&seen.name) {
                continue;
            }
            // A client that asks for names that are not there must not fill the memory.
            if seen.version == 0 && seen.row.is_none() {
                changed.extend(self.rows.remove(&seen.name).map(|_| seen.name));
                continue;
            }
            let known = self.rows.get(&seen.name);
            let is_same = known.is_some_and(|known| is_same(&known.seen, &seen));
            let known = known.filter(|_| is_same || Planted::CountsOn.is_there());
            let (since, is_ours) =
                known.map_or((now.monotonic, false), |known| (known.since, known.is_ours));
            if !is_same {
                changed.push(seen.name.clone());
            }
            let until_ms = self.end(&seen, (since, is_ours), loaded.server_ms, now);
            self.rows.insert(seen.name.clone(), Known { seen, since, is_ours, until_ms });
        }
        changed
    }

    /// Moves the ends of all leases: the clock of the service was set.
    pub(super) fn shift(&mut self, connection: &Connection, by_ms: i64) -> Result<(), Failure> {
        for known in self.rows.values_mut() {
            known.until_ms = known.until_ms.saturating_add(by_ms);
        }
        self.copy(connection, self.rows.keys().map(String::as_str))
    }

    /// Returns when the lease of a row ends, by the clock of the service.
    fn end(
        &self,
        seen: &LoadedRow,
        (since, is_ours): (Duration, bool),
        server_ms: Option<i64>,
        now: Now,
    ) -> i64 {
        let tenure = seen.row.as_ref().and_then(|row| row.tenure.as_ref());
        let Some(tenure) = tenure else { return i64::MIN };
        match server_ms {
            _ if self.is_one_clock => tenure.until_ms,
            // The answer was on its way, so it seems to end a little later than it does.
            Some(server_ms) => now.at_ms.saturating_add(tenure.until_ms.saturating_sub(server_ms)),
            None if !is_ours && ended_long_ago(tenure, now) => tenure.until_ms,
            None => now.at_ms.saturating_add(tenure.ttl_ms).saturating_sub(age_ms(since, now)),
        }
    }

    /// Checks whether a transfer by a program has stored the row of this lease.
    pub(super) fn was_handed_over(&self, lease: &Lease) -> bool {
        let row = self.rows.get(&lease.name).and_then(|known| known.seen.row.as_ref());
        row.is_some_and(|row| {
            row.token == lease.token
                && (row.was_handed_over() || Planted::AnyIsHandedOver.is_there())
        })
    }

    /// Returns the row of a name as it was seen last.
    pub(super) fn seen(&self, name: &str) -> LoadedRow {
        let absent = || LoadedRow::absent(name);
        self.rows.get(name).map_or_else(absent, |known| known.seen.clone())
    }

    /// Writes the copies of rows.
    pub(super) fn copy<'n>(
        &self,
        connection: &Connection,
        names: impl Iterator<Item = &'n str>,
    ) -> Result<(), Failure> {
        let (mut write, mut forget) = (connection.prepare(WRITE)?, connection.prepare(FORGET)?);
        for name in names {
            let known = self.rows.get(name);
            match known.and_then(|known| Some((known, known.seen.row.as_ref()?))) {
                None => _ = forget.execute([name])?,
                Some((known, row)) => {
                    let owner = row.tenure.as_ref().map(|tenure| tenure.owner.as_str());
                    let until_ms = owner.map(|_| known.until_ms);
                    let (at_ms, since_ms) = (row.at_ms, owner.map_or(row.at_ms, |_| row.since_ms));
                    let values = params![name, row.token, owner, until_ms, at_ms, since_ms];
                    _ = write.execute(values)?;
                }
            }
        }
        Ok(())
    }

    /// Decides what to store for a name whose copy was changed, or for one that was only looked at.
    /// Returns `None` if the lease before is not over, as the copy has it: then the caller reads
    /// the row again.
    pub(super) fn part(
        &self,
        name: &str,
        copied: Option<&Copied>,
        rows: Vec<RowChange>,
        (attempt, now): (i64, Now),
    ) -> Option<Part> {
        let before = self.seen(name);
        let Some(copied) = copied else {
            return Some(Part { before, row: None, condition: Condition::None, rows });
        };
        let old = before.row.as_ref();
        let held = old.and_then(|row| row.tenure.as_ref());
        let is_new = old.is_none_or(|row| row.token != copied.token);
        // Whatever was done to the name in this commit: if all of it was done before the lease
        // ended, none of it was a takeover.
        let until_ms = self.rows.get(name).map_or(i64::MIN, |known| known.until_ms);
        let takes_over = held.is_some() && is_new && copied.at_ms >= until_ms;
        let condition = match held {
            _ if self.is_one_clock => Condition::None,
            Some(_) if !takes_over => Condition::Live,
            _ => Condition::Ended,
        };
        if let (Condition::Ended, Some(held), false) = (condition, held, self.has_clock) {
            // The clock of the service may have been set.
            let known = self.rows.get(name)?;
            let is_long_ago = !known.is_ours && ended_long_ago(held, now);
            if age_ms(known.since, now) < held.ttl_ms && !is_long_ago {
                return None;
            }
        }
        let tenure = copied.tenure.as_ref().map(|(owner, until_ms)| StoredTenure {
            owner: owner.clone(),
            until_ms: *until_ms,
            ttl_ms: until_ms.saturating_sub(copied.at_ms),
        });
        let ends = held.is_some() && (tenure.is_none() || is_new && !takes_over);
        let ended = if ends { attempt } else { old.map_or(0, |row| row.ended) };
        let (token, at_ms) = (copied.token, copied.at_ms);
        let since_ms = match old {
            Some(old) if !is_new => old.since_ms,
            _ => copied.since_ms,
        };
        let row = Some(StoredRow { token, tenure, since_ms, at_ms, attempt, ended });
        Some(Part { before, row, condition, rows })
    }

    /// Takes note of a part that was stored.
    pub(super) fn stored(&mut self, part: &Part, stored: Stored, now: Now) {
        let Some(row) = &part.row else { return };
        let (version, row) = match stored {
            Stored::Done { version } => (version, row.clone()),
            Stored::DoneAt { version, server_ms } => {
                (version, part.row_at(server_ms).unwrap_or_else(|| row.clone()))
            }
            Stored::Conflict => return,
        };
        let decided_at_ms = part.row.as_ref().map_or(now.at_ms, |row| row.at_ms);
        let age_ms = now.at_ms.saturating_sub(decided_at_ms).clamp(0, LONGEST_BATCH_MS);
        // Those that it was granted to count from before the decision.
        let since = now.monotonic.saturating_sub(Duration::from_millis(age_ms.unsigned_abs()));
        let tenure = part.row.as_ref().and_then(|row| row.tenure.as_ref());
        let until_ms = tenure.map_or(i64::MIN, |tenure| tenure.until_ms);
        let name = part.before.name.clone();
        let seen = LoadedRow { version, row: Some(row), ..LoadedRow::absent(&name) };
        self.rows.insert(name, Known { seen, since, is_ours: true, until_ms });
    }
}

/// Reads copies, as far as they are still there.
pub(super) fn read(
    connection: &Connection,
    numbers: &BTreeSet<i64>,
) -> Result<Vec<Copied>, Failure> {
    let mut statement = connection.prepare(READ)?;
    let copied = numbers.iter().filter_map(|number| {
        let copied = statement.query_row([*number], |row| {
            let (owner, until_ms): (Option<String>, Option<i64>) = (row.get(2)?, row.get(3)?);
            let tenure = owner.zip(until_ms);
            let (at_ms, since_ms) = (row.get(4)?, row.get(5)?);
            Ok(Copied { name: row.get(0)?, token: row.get(1)?, tenure, at_ms, since_ms })
        });
        copied.optional().transpose()
    });
    Ok(copied.collect::<Result<_, _>>()?)
}

impl Copied {
    pub(super) fn token(&self) -> i64 {
        self.token
    }
}

/// Checks whether two rows of a name are the same one. One that was deleted leaves its token.
pub(super) fn is_same(one: &LoadedRow, other: &LoadedRow) -> bool {
    let token = |row: &LoadedRow| row.row.as_ref().map(|row| row.token);
    one.version == other.version && token(one) == token(other)
}

fn age_ms(since: Duration, now: Now) -> i64 {
    i64::try_from(now.monotonic.saturating_sub(since).as_millis()).unwrap_or(i64::MAX)
}

/// Checks whether every clock that is not wrong by more than it may be agrees that a lease is over.
fn ended_long_ago(tenure: &StoredTenure, now: Now) -> bool {
    let skew_ms = i64::try_from(Options::default().max_skew.as_millis()).unwrap_or(i64::MAX);
    tenure.until_ms.saturating_add(skew_ms.saturating_mul(2)) <= now.at_ms
}
