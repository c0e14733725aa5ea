//! Answers that the service has given to requests with an idempotency key, kept for a day.
//!
//! Rows are in the order of time, so the oldest are the first: each new answer deletes two that are
//! too old.

use crate::schema::{Table, create, is_there, none_without_table};
use crate::sqlite::Value;
use crate::statements::{CachedStatement, execute_once};
use crate::{Error, SLICE, Store};

/// The answers. The table is made by the first one.
pub(crate) const ANSWERED: Table = Table {
    name: "litelease_answered",
    definition: "(
  number INTEGER PRIMARY KEY,
  request BLOB NOT NULL UNIQUE,
  at_ms INTEGER NOT NULL,
  answer TEXT NOT NULL
)",
};

const FIND: &str = "SELECT answer FROM main.litelease_answered WHERE request = ?1 AND at_ms > ?2";

// An older answer to the same request goes, so that the rows stay in the order of time.
const REMEMBER: &str = "INSERT OR REPLACE INTO main.litelease_answered (request, at_ms, answer)
VALUES (?1, ?2, ?3)";

const TRIM: &str = "DELETE FROM main.litelease_answered
WHERE number IN (SELECT number FROM main.litelease_answered ORDER BY number LIMIT 2) AND at_ms <= ?1";

/// The statements that are kept.
pub(crate) struct AnsweredStatements {
    find: CachedStatement,
    remember: CachedStatement,
    trim: CachedStatement,
}

impl AnsweredStatements {
    pub(crate) const fn new() -> Self {
        AnsweredStatements {
            find: CachedStatement::new(FIND),
            remember: CachedStatement::new(REMEMBER),
            trim: CachedStatement::new(TRIM),
        }
    }
}

impl Store {
    /// Returns the answer that was given to a request after `since_ms`, if there is one.
    pub fn answered(&self, request: &[u8], since_ms: i64) -> Result<Option<String>, Error> {
        self.with_context("look for an answer", None, || {
            let values = [Value::Blob(request), Value::Integer(since_ms)];
            let found = self.statements.answered.find.with(self.connection, |statement| {
                let mut run = statement.run(&values)?;
                let has_row = run.step()?;
                if run.is_unverified() {
                    is_there(self.connection, &ANSWERED)?;
                    run.mark_verified();
                }
                let answer = run.column(0).filter(|_| has_row);
                answer
                    .map(|answer| answer.text().map(str::to_owned).ok_or_else(damaged))
                    .transpose()
            });
            none_without_table(found, || is_there(self.connection, &ANSWERED))
        })
    }

    /// Stores the answer to a request, and deletes two that were given before `since_ms`. Call it
    /// in a transaction, after [`answered`](Store::answered).
    pub fn remember_answer(
        &self,
        request: &[u8],
        answer: &str,
        now_ms: i64,
        since_ms: i64,
    ) -> Result<(), Error> {
        self.with_context("store an answer", None, || {
            if !is_there(self.connection, &ANSWERED)? {
                create(self.connection, &ANSWERED)?;
            }
            let statements = &self.statements.answered;
            statements.trim.execute_with(self.connection, &[Value::Integer(since_ms)])?;
            let values = [Value::Blob(request), Value::Integer(now_ms), Value::Text(answer)];
            let remember = || statements.remember.execute_with(self.connection, &values);
            self.connection.keeping_last_insert_rowid(remember)?;
            match self.connection.changes() {
                1 => Ok(()),
                changed => Err(Error::unexpected_change("an answer", changed)),
            }
        })
    }

    /// Deletes a slice of the answers that were given before `limit_ms`. Answers whether there may
    /// be more.
    pub(crate) fn forget_answers(&self, limit_ms: i64) -> Result<bool, Error> {
        // Rows are in the order of time.
        const FORGET: &str = "DELETE FROM main.litelease_answered WHERE number IN
(SELECT number FROM main.litelease_answered ORDER BY number LIMIT ?2) AND at_ms <= ?1";
        if !is_there(self.connection, &ANSWERED)? {
            return Ok(false);
        }
        execute_once(self.connection, FORGET, &[limit_ms, SLICE].map(Value::Integer))?;
        Ok(self.connection.changes() == SLICE)
    }
}

fn damaged() -> Error {
    ANSWERED.mismatch("one of its rows is damaged".into())
}
