//! Limits of a grant: what a renewal of it depends on besides its row. They end with the grant.

use litelease_core::{self as rule, Conditions, GrantResult, Limits};

use crate::schema::Table;
use crate::side_tables::Side;
use crate::sqlite::Value;
use crate::{Error, Store, When};

/// The limits of each name, with the grant that they are for. It is made by the first ones.
pub(crate) const LIMITS: Table = Table {
    name: "litelease_limits",
    definition: "(
  name TEXT PRIMARY KEY,
  token INTEGER NOT NULL CHECK (token >= 1),
  progress_within_ms INTEGER,
  progress_at_ms INTEGER NOT NULL,
  not_after_ms INTEGER
)",
};

/// Stores limits, and replaces those before.
pub(crate) const LIMIT: &str = "INSERT INTO main.litelease_limits
(name, token, progress_within_ms, progress_at_ms, not_after_ms) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (name) DO UPDATE SET token = excluded.token,
progress_within_ms = excluded.progress_within_ms, progress_at_ms = excluded.progress_at_ms,
not_after_ms = excluded.not_after_ms";

/// Stores progress. Changes nothing if the grant has no limits.
pub(crate) const PROGRESS: &str = "UPDATE main.litelease_limits SET progress_at_ms = ?3
WHERE name = ?1 AND token = ?2";

/// Reads limits, whichever grant they are for.
pub(crate) const LIMITS_OF: &str = "SELECT token, progress_within_ms, progress_at_ms, not_after_ms
FROM main.litelease_limits WHERE name = ?1";

impl Store {
    /// Limits a live grant, and replaces its limits before. Setting them counts as progress, and
    /// changes no expiry. They end with the grant.
    pub fn limit(
        &self,
        name: &str,
        token: i64,
        progress_within_ms: Option<i64>,
        not_after_ms: Option<i64>,
        when: When,
    ) -> Result<GrantResult, Error> {
        self.with_context("limit", Some(name), || {
            self.within(self.boundary()?, || {
                let now_ms = when.now_ms();
                let limits = Limits::new(token, progress_within_ms, not_after_ms, now_ms);
                let limits = limits.map_err(|refusal| Error::refused(name, refusal))?;
                let answer = self.read_row(name, |row| Ok(rule::limit(row, token, now_ms)))?;
                if answer.is_done() {
                    let number = |number: Option<i64>| number.map_or(Value::Null, Value::Integer);
                    let values = [
                        Value::Text(name),
                        Value::Integer(token),
                        number(limits.progress_within_ms),
                        Value::Integer(limits.progress_at_ms),
                        number(limits.not_after_ms),
                    ];
                    self.write_side(Side::Limits, LIMIT, &values)?;
                }
                Ok(answer)
            })
        })
    }

    /// Records that the holder of a live grant has made progress, which its limits may demand.
    pub fn progress(&self, name: &str, token: i64, when: When) -> Result<GrantResult, Error> {
        self.with_context("note progress of", Some(name), || {
            self.within(self.boundary()?, || {
                let now_ms = when.now_ms();
                let answer = self.read_row(name, |row| Ok(rule::progress(row, token, now_ms)))?;
                if answer.is_done() {
                    self.note_progress(name, token, now_ms)?;
                }
                Ok(answer)
            })
        })
    }

    /// Stores progress under a token that was found to be the newest, in the open transaction.
    pub(crate) fn note_progress(&self, name: &str, token: i64, now_ms: i64) -> Result<(), Error> {
        if !self.has(Side::Limits)? {
            return Ok(());
        }
        let values = [Value::Text(name), Value::Integer(token), Value::Integer(now_ms)];
        self.statements.progress.execute_with(self.connection, &values)
    }

    /// Reads what a renewal of `name` depends on besides its row, in the snapshot of a statement on
    /// that row.
    ///
    /// In a file without such tables this only reads memory.
    #[inline]
    pub(crate) fn conditions(&self, name: &str) -> Result<Conditions, Error> {
        let limits = if self.has(Side::Limits)? { self.limits_of(name)? } else { None };
        let request = if self.has(Side::Requests)? { self.request_of(name)? } else { None };
        Ok(Conditions { limits, request: request.map(|(_, request)| request) })
    }

    fn limits_of(&self, name: &str) -> Result<Option<Limits>, Error> {
        self.statements.limits.with(self.connection, |statement| {
            let mut run = statement.run(&[Value::Text(name)])?;
            if !run.step()? {
                return Ok(None);
            }
            let number = |index| run.column(index).and_then(Value::integer);
            let optional = |index| match run.column(index) {
                Some(Value::Null) => Some(None),
                value => value.and_then(Value::integer).map(Some),
            };
            match (number(0), optional(1), number(2), optional(3)) {
                (
                    Some(token),
                    Some(progress_within_ms),
                    Some(progress_at_ms),
                    Some(not_after_ms),
                ) => Ok(Some(Limits { token, progress_within_ms, progress_at_ms, not_after_ms })),
                _ => Err(LIMITS.mismatch(format!("the row of {name:?} is damaged"))),
            }
        })
    }
}
