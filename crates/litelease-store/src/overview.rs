//! Reads of whole side tables, for an overview of the file.

use litelease_core::{Limits, Request};

use crate::side_tables::Side;
use crate::sqlite::{Run, Value};
use crate::{Error, Store};

const LIMITS: &str = "SELECT name, token, progress_within_ms, progress_at_ms, not_after_ms
FROM main.litelease_limits";

const REQUESTS: &str =
    "SELECT name, token, requester, until_ms, repeated_at_ms FROM main.litelease_requests";

/// The identity of each session that still has a row, with the names that are claimed in it.
const SESSIONS: &str = "SELECT side.identity, side.session_token, count(lease.owner)
FROM main.litelease_sessions AS side LEFT JOIN main.litelease_resources AS lease
ON lease.name = side.name AND lease.token = side.token
GROUP BY side.identity, side.session_token";

impl Store {
    /// Returns the limits of all grants, also of some that have ended, each with its name.
    pub fn all_limits(&self) -> Result<Vec<(String, Limits)>, Error> {
        self.all_of(Side::Limits, LIMITS, |row| {
            let limits = Limits {
                token: number(row, 1)?,
                progress_within_ms: number(row, 2),
                progress_at_ms: number(row, 3)?,
                not_after_ms: number(row, 4),
            };
            Some((text(row, 0)?, limits))
        })
    }

    /// Returns the requests for all grants, also for some that have ended, each with the name and
    /// the requester.
    pub fn all_requests(&self) -> Result<Vec<(String, String, Request)>, Error> {
        self.all_of(Side::Requests, REQUESTS, |row| {
            let (token, until_ms) = (number(row, 1)?, number(row, 3)?);
            let request = Request { token, until_ms, repeated_at_ms: number(row, 4)? };
            Some((text(row, 0)?, text(row, 2)?, request))
        })
    }

    /// Returns the identity of each session, its token, and how many names it has.
    pub fn all_sessions(&self) -> Result<Vec<(String, i64, i64)>, Error> {
        self.all_of(Side::Sessions, SESSIONS, |row| {
            Some((text(row, 0)?, number(row, 1)?, number(row, 2)?))
        })
    }

    /// Reads a side table, without its damaged rows. Needs no write lock.
    fn all_of<T>(
        &self,
        side: Side,
        sql: &str,
        read: impl Fn(&Run<'_, '_>) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        self.with_context("list the side tables", None, || {
            self.verify()?;
            let mut found = Vec::new();
            if self.has(side)? {
                let mut statement = self.connection.prepare(sql)?;
                let mut run = statement.run(&[])?;
                while run.step()? {
                    found.extend(read(&run));
                }
            }
            Ok(found)
        })
    }
}

fn text(row: &Run<'_, '_>, index: i32) -> Option<String> {
    row.column(index).and_then(Value::text).map(str::to_owned)
}

fn number(row: &Run<'_, '_>, index: i32) -> Option<i64> {
    row.column(index).and_then(Value::integer)
}
