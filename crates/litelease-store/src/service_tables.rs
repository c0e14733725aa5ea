//! Tables that the service keeps in the file. Its crate has the SQL and the meaning of the rows.
//! The store checks that a table is ours, makes it at its first write, keeps the compiled
//! statements, and cleans the tables in a purge.

use std::cell::OnceCell;

use crate::schema::{Table, create, is_there, none_without_table};
use crate::sqlite::{Run, Value, code};
use crate::statements::{CachedStatement, execute_once};
use crate::{Error, SLICE, Store};

/// The newest served grant of each name. Its number is part of the secret of the grant.
pub const SERVED: Table = Table {
    name: "litelease_served",
    definition: "(
  number INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  token INTEGER NOT NULL CHECK (token >= 1),
  hash BLOB,
  salt BLOB
)",
};

/// Answers to requests with an idempotency key, in the order of time.
pub const ANSWERED: Table = Table {
    name: "litelease_answered",
    definition: "(
  number INTEGER PRIMARY KEY,
  request BLOB NOT NULL UNIQUE,
  at_ms INTEGER NOT NULL,
  answer TEXT NOT NULL
)",
};

/// The request that finished the newest finished tick of each name, so that it can be repeated.
pub const FINISHED: Table = Table {
    name: "litelease_finished",
    definition: "(
  name TEXT PRIMARY KEY,
  request BLOB NOT NULL,
  answer TEXT NOT NULL
)",
};

/// Deletes the rows of names that are no more.
const FORGET_SERVED: &str = "DELETE FROM main.litelease_served
WHERE name NOT IN (SELECT name FROM main.litelease_resources)";

/// Deletes a slice of old answers. Rows are in the order of time.
const FORGET_ANSWERS: &str = "DELETE FROM main.litelease_answered WHERE number IN
(SELECT number FROM main.litelease_answered ORDER BY number LIMIT ?2) AND at_ms <= ?1";

/// A statement on a table of another crate. A store compiles it once.
pub struct ServiceStatement {
    /// The index of the compiled statement in the store. Each statement has its own.
    pub place: usize,
    /// The table that it reads or writes.
    pub table: &'static Table,
    /// The verb, as the words after "cannot" in an error.
    pub verb: &'static str,
    /// Its text, which names `main`.
    pub sql: &'static str,
}

/// How many such statements a store has room for.
const PLACES: usize = 10;

/// The statements that are kept.
pub(crate) struct ServiceStatements([OnceCell<CachedStatement>; PLACES]);

impl ServiceStatements {
    pub(crate) const fn new() -> Self {
        ServiceStatements([const { OnceCell::new() }; PLACES])
    }

    fn get(&self, statement: &ServiceStatement) -> &CachedStatement {
        let kept = self.0[statement.place].get_or_init(|| CachedStatement::new(statement.sql));
        debug_assert!(kept.is(statement.sql), "two statements have one place");
        kept
    }
}

impl Store {
    /// Reads one row at most. There is none if there is no such table. `read` returns `None` if the
    /// row is damaged. Errors name `name`, if there is one.
    pub fn service_row<T>(
        &self,
        statement: &ServiceStatement,
        name: Option<&str>,
        values: &[Value<'_>],
        read: impl FnOnce(&Run<'_, '_>) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let is_ours = || is_there(self.connection, statement.table);
        self.with_context(statement.verb, name, || {
            let cached = self.statements.service.get(statement);
            let found = cached.with(self.connection, |compiled| {
                let mut run = compiled.run(values)?;
                let has_row = run.step()?;
                if run.is_unverified() {
                    is_ours()?;
                    run.mark_verified();
                }
                let damaged = || statement.table.mismatch("one of its rows is damaged".into());
                has_row.then(|| read(&run).ok_or_else(damaged)).transpose()
            });
            none_without_table(found, is_ours)
        })
    }

    /// Writes, and makes the table if it is missing. Call it in a transaction, after a read of the
    /// same table, which checks that the table is ours, and on a connection of your own: an insert
    /// changes its `last_insert_rowid()`.
    pub fn service_write(
        &self,
        statement: &ServiceStatement,
        name: Option<&str>,
        values: &[Value<'_>],
    ) -> Result<(), Error> {
        let write = || self.statements.service.get(statement).execute_with(self.connection, values);
        self.with_context(statement.verb, name, || match write() {
            Err(Error::Sqlite(failure))
                if failure.code & 0xff == code::ERROR
                    && failure.message.starts_with("no such table") =>
            {
                create(self.connection, statement.table)?;
                write()
            }
            written => written,
        })
    }

    /// Like [`service_write`](Store::service_write), for a statement that must change one row.
    pub fn service_write_row(
        &self,
        statement: &ServiceStatement,
        name: Option<&str>,
        values: &[Value<'_>],
    ) -> Result<(), Error> {
        self.service_write(statement, name, values)?;
        match self.connection.changes() {
            1 => Ok(()),
            changed => Err(Error::unexpected_change(statement.table.name, changed)),
        }
    }

    /// Deletes the served grants of names that are no more.
    pub(crate) fn forget_served(&self) -> Result<(), Error> {
        match is_there(self.connection, &SERVED)? {
            true => execute_once(self.connection, FORGET_SERVED, &[]),
            false => Ok(()),
        }
    }

    /// Deletes a slice of the answers that were given before `limit_ms`. Answers whether there may
    /// be more.
    pub(crate) fn forget_answers(&self, limit_ms: i64) -> Result<bool, Error> {
        if !is_there(self.connection, &ANSWERED)? {
            return Ok(false);
        }
        execute_once(self.connection, FORGET_ANSWERS, &[limit_ms, SLICE].map(Value::Integer))?;
        Ok(self.connection.changes() == SLICE)
    }
}
