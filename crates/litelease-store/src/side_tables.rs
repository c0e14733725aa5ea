//! The side tables of grants (values, limits, requests): which of them a file has, and how `purge`
//! cleans them.
//!
//! Each is made by its first use. A row in it belongs to the grant of its name and token, and means
//! nothing once that has ended: so no other verb ever has to delete one. Ticks are the exception:
//! they outlive their grants.

use std::cell::Cell;

use crate::checkpoint::CHECKPOINTS;
use crate::history::HISTORY;
use crate::keep::KEPT_SLOTS;
use crate::limit::LIMITS;
use crate::read::READERS;
use crate::request::REQUESTS;
use crate::schema::{Table, create, is_there};
use crate::session::SESSIONS;
use crate::sqlite::Value;
use crate::statements::execute_once;
use crate::tick::TICKS;
use crate::value::VALUES;
use crate::{Error, Store, When};

/// A side table of grants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Values,
    Limits,
    Requests,
    Sessions,
    Ticks,
}

/// All of them, with their tables.
const ALL: [(Side, &Table); 5] = [
    (Side::Values, &VALUES),
    (Side::Limits, &LIMITS),
    (Side::Requests, &REQUESTS),
    (Side::Sessions, &SESSIONS),
    (Side::Ticks, &TICKS),
];

/// Records for each table whether the file has it, by the schema that was checked last; `None` if
/// it was not needed yet.
#[derive(Default)]
pub(crate) struct SideTables([Cell<Option<bool>>; ALL.len()]);

/// The state of a side table, for `doctor`.
///
/// ```
/// # use litelease_store::SideTableInfo;
/// let info = SideTableInfo { table: "litelease_values", rows: 3, ended: 1, damaged: 0, fault: None };
/// assert!(info.ended <= info.rows);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideTableInfo {
    /// The name of the table.
    pub table: &'static str,
    /// How many rows it has.
    pub rows: i64,
    /// How many of them have no meaning any more: `purge` deletes them.
    pub ended: i64,
    /// How many of them cannot be read.
    pub damaged: i64,
    /// The reason why the table is not ours, if it is not. Then nothing was counted.
    pub fault: Option<String>,
}

impl Side {
    /// Returns the rows with a value of another type.
    fn damaged(self) -> &'static str {
        match self {
            Side::Values => "typeof(token) <> 'integer'",
            Side::Limits => {
                "typeof(token) <> 'integer' OR typeof(progress_at_ms) <> 'integer'
OR typeof(progress_within_ms) NOT IN ('integer', 'null')
OR typeof(not_after_ms) NOT IN ('integer', 'null')"
            }
            Side::Requests => {
                "typeof(token) <> 'integer' OR typeof(requester) <> 'text'
OR typeof(until_ms) <> 'integer' OR typeof(repeated_at_ms) <> 'integer'"
            }
            Side::Sessions => {
                "typeof(token) <> 'integer' OR typeof(session_token) <> 'integer'
OR typeof(identity) <> 'text'"
            }
            Side::Ticks => {
                "typeof(tick_ms) <> 'integer' OR typeof(token) <> 'integer'
OR typeof(attempt) <> 'integer' OR typeof(attempts) <> 'integer'
OR typeof(began_ms) <> 'integer' OR typeof(ended_ms) NOT IN ('integer', 'null')
OR typeof(previous_ms) NOT IN ('integer', 'null') OR typeof(skipped_ms) NOT IN ('integer', 'null')
OR typeof(owner) NOT IN ('text', 'null') OR typeof(schedule) NOT IN ('text', 'null')"
            }
        }
    }

    fn table(self) -> &'static Table {
        ALL[self as usize].1
    }

    /// Returns the rows whose grant has ended for good.
    fn ended(self) -> &'static str {
        match self {
            Side::Values | Side::Limits | Side::Sessions => {
                "NOT EXISTS (SELECT 1 FROM main.litelease_resources AS lease
WHERE lease.name = side.name AND lease.token = side.token AND lease.owner IS NOT NULL)"
            }
            // Without its tick, a schedule would run it again.
            Side::Ticks => "0",
            // A lease that was handed to a requester is accepted by the rest of its request.
            Side::Requests => {
                "NOT EXISTS (SELECT 1 FROM main.litelease_resources AS lease
WHERE lease.name = side.name AND lease.owner IS NOT NULL
AND (lease.token = side.token OR lease.owner = side.requester))"
            }
        }
    }
}

impl Store {
    /// Checks whether the file has a side table. One that is there but is not ours is an error.
    ///
    /// The schema must have been checked in the snapshot that is read, as every statement on leases
    /// does: then this reads only memory until the schema changes.
    #[inline]
    pub(crate) fn has(&self, side: Side) -> Result<bool, Error> {
        let known = &self.side_tables.0[side as usize];
        if let Some(has) = known.get() {
            return Ok(has);
        }
        let has = is_there(self.connection, side.table())?;
        known.set(Some(has));
        Ok(has)
    }

    /// Checks again for the tables that were needed, because the schema may be another one now. A
    /// table that is not ours is an error only for verbs that need it.
    pub(crate) fn check_side_tables_again(&self) {
        for (side, table) in ALL {
            let known = &self.side_tables.0[side as usize];
            if known.get().is_some() {
                known.set(is_there(self.connection, table).ok());
            }
        }
    }

    /// Writes to a side table, inside a transaction, and makes the table if it is not there yet.
    pub(crate) fn write_side(
        &self,
        side: Side,
        sql: &str,
        values: &[Value<'_>],
    ) -> Result<(), Error> {
        self.all_or_nothing(|| {
            if !is_there(self.connection, side.table())? {
                create(self.connection, side.table())?;
            }
            let write = || execute_once(self.connection, sql, values);
            self.connection.keeping_last_insert_rowid(write)
        })
    }

    /// Checks every side table that the file has, and the readers. Needs no write lock.
    pub fn side_tables(&self, when: When) -> Result<Vec<SideTableInfo>, Error> {
        self.with_context("look at the side tables", None, || {
            self.verify()?;
            let expired = format!("expires_at_ms <= {}", when.now_ms());
            let readers = (&READERS, "typeof(expires_at_ms) <> 'integer'", &*expired);
            let sides = ALL.iter().map(|(side, table)| (*table, side.damaged(), side.ended()));
            let others = [&CHECKPOINTS, &KEPT_SLOTS, &HISTORY].map(|table| (table, "0", "0"));
            let mut found = Vec::new();
            for (table, damaged, ended) in sides.chain([readers]).chain(others) {
                let empty =
                    SideTableInfo { table: table.name, rows: 0, ended: 0, damaged: 0, fault: None };
                match is_there(self.connection, table) {
                    Ok(true) => found.push(self.count_side(empty, damaged, ended)?),
                    Ok(false) => {}
                    Err(Error::SchemaMismatch { reason, .. }) => {
                        found.push(SideTableInfo { fault: Some(reason), ..empty });
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok(found)
        })
    }

    fn count_side(
        &self,
        empty: SideTableInfo,
        damaged: &str,
        ended: &str,
    ) -> Result<SideTableInfo, Error> {
        let sql = format!(
            "SELECT count(*), count(*) FILTER (WHERE {ended}), count(*) FILTER (WHERE {damaged})
FROM main.{} AS side",
            empty.table
        );
        let mut statement = self.connection.prepare(&sql)?;
        let mut run = statement.run(&[])?;
        run.step()?;
        let number = |index| run.column(index).and_then(Value::integer).unwrap_or(0);
        Ok(SideTableInfo { rows: number(0), ended: number(1), damaged: number(2), ..empty })
    }

    /// Deletes what rode on grants that have ended for good.
    pub(crate) fn purge_side_tables(&self) -> Result<(), Error> {
        for (side, table) in ALL {
            if self.has(side)? {
                let sql = format!("DELETE FROM main.{} AS side WHERE {}", table.name, side.ended());
                execute_once(self.connection, &sql, &[])?;
            }
        }
        Ok(())
    }
}
