//! Deletes rows of names that are not used any more, without ever granting a token of theirs again.

use litelease_core::{CommitContext, has_ended, purge_limit};

use crate::sqlite::Value;
use crate::statements::{execute_once, stored_state};
use crate::transaction::Boundary;
use crate::{Error, SLICE, Store, When};

/// `litelease_core::has_ended` as a condition of SQL, with the limit as `?1`.
pub(crate) const ENDED: &str = "coalesce(lease_expires_at_ms, updated_at_ms) <= ?1";

/// The rows that a slice of a purge is about to delete.
#[derive(Default)]
struct Ended {
    rows: i64,
    largest_token: i64,
    /// The last name in order.
    last: String,
}

impl Store {
    /// Deletes the rows of names that have not been live since `before_ms`, and answers how many.
    /// Readers that have ended go with them. Items of queues stay, also dead ones: only `discard`
    /// deletes those.
    ///
    /// The commit that deletes a row raises the file's token floor to the largest token deleted, so
    /// that a name which comes back gets a larger one. Outside a transaction of the caller's, each
    /// slice of the names is a commit, and other connections write between them.
    pub fn purge(&self, before_ms: i64, when: When) -> Result<u64, Error> {
        self.with_context("purge", None, || {
            let limit_ms = purge_limit(before_ms, when.now_ms());
            match self.boundary()? {
                // All of it or nothing, in the caller's transaction.
                joined @ Boundary::Joined(_) => self.durably(joined, |context| {
                    self.verify()?;
                    let delete = |first: &str| self.delete_ended(context, limit_ms, first);
                    self.all_or_nothing(|| in_slices(delete, || self.forget_answers(limit_ms)))
                }),
                own => {
                    let delete = |first: &str| {
                        self.durably(own, |context| {
                            self.verify()?;
                            self.delete_ended(context, limit_ms, first)
                        })
                    };
                    in_slices(delete, || self.within(own, || self.forget_answers(limit_ms)))
                }
            }
        })
    }

    /// Deletes a slice of the rows that have ended, from the name `first` on. Answers how many, and
    /// the last name. The last slice also deletes what such rows leave in other tables.
    fn delete_ended(
        &self,
        context: CommitContext,
        limit_ms: i64,
        first: &str,
    ) -> Result<(i64, String), Error> {
        let Ended { rows, largest_token, last } = self.ended(limit_ms, first)?;
        if rows > 0 {
            self.raise_floor(context, largest_token)?;
            let values = [Value::Integer(limit_ms), Value::Text(first), Value::Text(&last)];
            execute_once(
                self.connection,
                &format!(
                    "DELETE FROM main.litelease_resources WHERE {ENDED} AND name BETWEEN ?2 AND ?3"
                ),
                &values,
            )?;
            self.changed(rows, "the rows to purge")?;
        }
        if rows < SLICE {
            self.purge_readers(limit_ms)?;
            self.purge_side_tables()?;
            self.forget_served()?;
        }
        Ok((rows, last))
    }

    /// Reads what a slice would delete, and has the rule confirm it. A row that is not valid is
    /// reported and left alone.
    fn ended(&self, limit_ms: i64, first: &str) -> Result<Ended, Error> {
        let sql = format!(
            "SELECT name, owner, token, lease_expires_at_ms, updated_at_ms
             FROM main.litelease_resources WHERE {ENDED} AND name >= ?2 ORDER BY name LIMIT ?3"
        );
        let mut statement = self.connection.prepare(&sql)?;
        let values = [Value::Integer(limit_ms), Value::Text(first), Value::Integer(SLICE)];
        let mut run = statement.run(&values)?;
        let mut ended = Ended::default();
        while run.step()? {
            let name = run.column(0).and_then(Value::text);
            let name = name.ok_or_else(|| Error::InvalidLeaseRow(String::new()))?;
            let columns = [run.column(1), run.column(2), run.column(3)];
            // A time that is no integer matters only where the row was released.
            let updated_at_ms = run.column(4).and_then(Value::integer).unwrap_or(i64::MAX);
            let state = stored_state(columns)
                .filter(|state| has_ended(*state, updated_at_ms, limit_ms))
                .ok_or_else(|| Error::InvalidLeaseRow(name.into()))?;
            ended.rows += 1;
            ended.largest_token = ended.largest_token.max(state.token());
            ended.last = name.into();
        }
        Ok(ended)
    }
}

/// Deletes slice after slice, from the first name on, and then forgets answers. Returns how many
/// rows were deleted.
fn in_slices(
    delete: impl Fn(&str) -> Result<(i64, String), Error>,
    forget: impl Fn() -> Result<bool, Error>,
) -> Result<u64, Error> {
    let (mut count, mut next) = (0, Some(String::new()));
    while let Some(first) = next {
        let (rows, last) = delete(&first)?;
        count += rows.unsigned_abs();
        // The name that follows it in the order of bytes.
        next = (rows == SLICE).then(|| last + "\0");
    }
    while forget()? {}
    Ok(count)
}
