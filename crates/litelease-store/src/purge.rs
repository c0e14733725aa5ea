//! Deleting rows of names that nobody uses any more, without ever giving a number of theirs again.

use litelease_core::{CommitContext, has_ended, purge_limit};

use crate::sqlite::Value;
use crate::statements::{execute_once, stored_state};
use crate::{Error, Store, When};

/// `litelease_core::has_ended` as a condition of SQL, with the limit as `?1`.
pub(crate) const ENDED: &str = "coalesce(lease_expires_at_ms, updated_at_ms) <= ?1";

/// The rows that a purge is about to delete.
#[derive(Default)]
struct Ended {
    rows: i64,
    largest_token: i64,
}

impl Store {
    /// Deletes the rows of names that have not been live since `before_ms`, and answers how many.
    /// Readers that have ended go with them. Items of queues stay, also dead ones: only `discard`
    /// deletes those.
    ///
    /// The same commit raises the file's token floor to the largest token deleted, so that a name
    /// which comes back gets a larger one.
    pub fn purge(&self, before_ms: i64, when: When) -> Result<u64, Error> {
        self.with_context("purge", None, || {
            self.durably(self.boundary()?, |context| {
                self.verify()?;
                let limit_ms = purge_limit(before_ms, when.now_ms());
                self.all_or_nothing(|| self.delete_ended(context, limit_ms))
            })
        })
    }

    fn delete_ended(&self, context: CommitContext, limit_ms: i64) -> Result<u64, Error> {
        self.purge_readers(limit_ms)?;
        self.forget_answers(limit_ms)?;
        let ended = self.ended(limit_ms)?;
        if ended.rows == 0 {
            return self.purge_side_tables().map(|()| 0);
        }
        self.raise_floor(context, ended.largest_token)?;
        execute_once(
            self.connection,
            &format!("DELETE FROM main.litelease_resources WHERE {ENDED}"),
            &[Value::Integer(limit_ms)],
        )?;
        match self.connection.changes() {
            rows if rows == ended.rows => {
                self.purge_side_tables()?;
                self.forget_served()?;
                Ok(rows.unsigned_abs())
            }
            changed => Err(Error::UnexpectedChange {
                what: "the rows to purge".into(),
                expected: ended.rows,
                changed,
            }),
        }
    }

    /// Reads what would be deleted, and has the rule confirm it. A row that is not valid is
    /// reported and left alone.
    fn ended(&self, limit_ms: i64) -> Result<Ended, Error> {
        let sql = format!(
            "SELECT name, owner, token, lease_expires_at_ms, updated_at_ms
             FROM main.litelease_resources WHERE {ENDED}"
        );
        let mut statement = self.connection.prepare(&sql)?;
        let mut run = statement.run(&[Value::Integer(limit_ms)])?;
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
        }
        Ok(ended)
    }
}
