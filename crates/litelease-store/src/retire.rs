//! Retires a file whose leases go on elsewhere: it grants nothing any more, and its live leases go
//! on to their end.
//!
//! A retired file has the largest number as its floor, so that verbs need no check of their own. A
//! table keeps what this floor hides: the number above which tokens go on, and the place.

use crate::checkpoint;
use crate::pool_rows::{FREE_POOLS, FREE_SLOTS};
use crate::schema::{Table, create, is_there};
use crate::side_tables::Side;
use crate::sqlite::Value;
use crate::statements::execute_once;
use crate::tick::COUNT;
use crate::{Error, GuardInfo, Store, When};

/// Where the leases went, in one row. It is made by `retire`.
pub(crate) const RETIRED: Table = Table {
    name: "litelease_retired",
    definition: "(
  id INTEGER PRIMARY KEY CHECK (id = 1),
  floor INTEGER NOT NULL CHECK (floor >= 0),
  moved_to TEXT NOT NULL
)",
};

const RETIRE: &str =
    "INSERT OR REPLACE INTO main.litelease_retired (id, floor, moved_to) VALUES (1, ?1, ?2)";

const RETIREMENT: &str = "SELECT floor, moved_to FROM main.litelease_retired";

const ITEMS: &str = "SELECT count(*) FROM main.litelease_queue_items";

/// Slots that are lent out after a time. Kept slots have no end.
const LIVE_SLOTS: &str = "SELECT count(*) FROM main.litelease_pool_slots WHERE expires_at_ms > ?1";

const KEPT_SLOTS: &str =
    "SELECT count(*) FROM main.litelease_pool_slots WHERE expires_at_ms = 9223372036854775807";

const CHECKPOINTS: &str = "SELECT count(*) FROM main.litelease_checkpoints";

const POOLS: &str = "SELECT count(*) FROM main.litelease_pools";

/// The counts of rows that a file has besides leases, and that are not moved to an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftBehind {
    /// Checkpoints of names.
    pub checkpoints: i64,
    /// Pools of slots.
    pub pools: i64,
}

/// Where the leases of a retired file went.
///
/// ```
/// # use litelease_store::Retirement;
/// let retirement = Retirement { floor: 1 << 32, moved_to: "etcd://10.0.0.1:2379/jobs".into() };
/// assert!(retirement.floor > 41);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retirement {
    /// No token of the file is larger, and every token there is.
    pub floor: i64,
    /// Where they went, as it was given.
    pub moved_to: String,
}

/// The outcome of a retirement.
///
/// ```
/// # use litelease_store::RetireResult;
/// let answer = RetireResult::TooLow { newest: 41 };
/// assert!(!matches!(answer, RetireResult::Retired(_)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the file may not be retired"]
pub enum RetireResult {
    /// The file is retired, now or since an earlier call, which is the one that counts.
    Retired(Retirement),
    /// The file has a larger token than the floor that was given. Nothing was written.
    TooLow {
        /// The largest token, or the file's own floor.
        newest: i64,
    },
    /// The file has what cannot go on in a file that grants nothing. Nothing was written.
    InUse {
        /// Items of queues.
        items: i64,
        /// Slots that are kept until they are returned.
        kept: i64,
        /// Names with ticks, which would run again elsewhere.
        ticks: i64,
    },
    /// The file has a guarded table, whose guard would accept its last holder for ever. Nothing was
    /// written.
    Guarded {
        /// The first guarded table.
        table: String,
        /// The name that guards it.
        name: String,
    },
}

impl Store {
    /// Retires the file: no token is ever granted here again, but live leases may be renewed and
    /// released. `floor` must not be smaller than any token of the file; tokens go on above it, at
    /// `moved_to`.
    ///
    /// Repeating it is harmless.
    pub fn retire(&self, floor: i64, moved_to: &str) -> Result<RetireResult, Error> {
        self.with_context("retire", None, || {
            self.durably(self.boundary()?, |context| {
                self.verify()?;
                if let Some(retirement) = self.stored_retirement()? {
                    return Ok(RetireResult::Retired(retirement));
                }
                let newest = self.newest()?;
                if newest > floor {
                    return Ok(RetireResult::TooLow { newest });
                }
                let items = if self.verify_queues()? { self.number(ITEMS, &[])? } else { 0 };
                let kept = if self.verify_pools()? { self.number(KEPT_SLOTS, &[])? } else { 0 };
                let ticks = if self.has(Side::Ticks)? { self.number(COUNT, &[])? } else { 0 };
                if items > 0 || kept > 0 || ticks > 0 {
                    return Ok(RetireResult::InUse { items, kept, ticks });
                }
                if let Some(GuardInfo { table, name, .. }) = self.guards()?.into_iter().next() {
                    return Ok(RetireResult::Guarded { table, name });
                }
                self.all_or_nothing(|| {
                    if !is_there(self.connection, &RETIRED)? {
                        create(self.connection, &RETIRED)?;
                    }
                    let values = [Value::Integer(floor), Value::Text(moved_to)];
                    self.connection.keeping_last_insert_rowid(|| {
                        execute_once(self.connection, RETIRE, &values)
                    })?;
                    self.retire_floor(context)
                })?;
                Ok(RetireResult::Retired(Retirement { floor, moved_to: moved_to.into() }))
            })
        })
    }

    /// Returns where the leases of this file went, if it is retired.
    pub fn retirement(&self) -> Result<Option<Retirement>, Error> {
        self.with_context("look for a retirement", None, || {
            self.verify()?;
            self.stored_retirement()
        })
    }

    /// Returns what stays in the file when its leases go on elsewhere.
    pub fn left_behind(&self) -> Result<LeftBehind, Error> {
        self.with_context("count what stays behind", None, || {
            let has_checkpoints = is_there(self.connection, &checkpoint::CHECKPOINTS)?;
            Ok(LeftBehind {
                checkpoints: if has_checkpoints { self.number(CHECKPOINTS, &[])? } else { 0 },
                pools: if self.verify_pools()? { self.number(POOLS, &[])? } else { 0 },
            })
        })
    }

    fn stored_retirement(&self) -> Result<Option<Retirement>, Error> {
        // The floor decides: a file may have been restored from a backup, table by table.
        if !self.epoch_record()?.is_retired() || !is_there(self.connection, &RETIRED)? {
            return Ok(None);
        }
        let mut statement = self.connection.prepare(RETIREMENT)?;
        let mut run = statement.run(&[])?;
        let found = run.step()?;
        let floor = run.column(0).and_then(Value::integer);
        let moved_to = run.column(1).and_then(Value::text);
        match (floor, moved_to) {
            (Some(floor), Some(moved_to)) if found => {
                Ok(Some(Retirement { floor, moved_to: moved_to.into() }))
            }
            _ => Err(RETIRED.mismatch("its row is missing or damaged".into())),
        }
    }

    /// Returns how many slots of all pools are lent out.
    pub fn slots_in_use(&self, when: When) -> Result<i64, Error> {
        self.with_context("count the slots", None, || match self.verify_pools()? {
            true => self.number(LIVE_SLOTS, &[Value::Integer(when.now_ms())]),
            false => Ok(0),
        })
    }

    /// Ends every lease on a slot that is not kept.
    pub fn free_slots(&self) -> Result<(), Error> {
        self.with_context("free the slots", None, || {
            self.within(self.boundary()?, || {
                if self.verify_pools()? {
                    execute_once(self.connection, FREE_SLOTS, &[])?;
                    execute_once(self.connection, FREE_POOLS, &[])?;
                }
                Ok(())
            })
        })
    }

    fn number(&self, sql: &str, values: &[Value<'_>]) -> Result<i64, Error> {
        let mut statement = self.connection.prepare(sql)?;
        let mut run = statement.run(values)?;
        run.step()?;
        Ok(run.column(0).and_then(Value::integer).unwrap_or(0))
    }
}
