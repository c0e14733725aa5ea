//! Shared reads: which readers may answer from memory, and whether a writer may write.
//!
//! The rules live in `litelease-core`. A reader is a row of its own, so a plain claim or renewal
//! costs no more.

use litelease_core::{self as rule, Lease, MAX_READ_TTL_MS, read_term};

use crate::grant::check_arrival;
use crate::schema::{Table, create, is_there};
use crate::sqlite::Value;
use crate::statements::execute_once;
use crate::{Error, Store, When};

/// The readers. The first one makes the table. A row without a name stands for readers of every
/// name that the file may have forgotten: `restore_fence` leaves one.
pub(crate) const READERS: Table = Table {
    name: "litelease_reads",
    definition: "(
  name TEXT,
  reader TEXT NOT NULL,
  expires_at_ms INTEGER NOT NULL,
  UNIQUE (name, reader)
)",
};

/// The reader text of the row that `restore_fence` leaves.
const FORGOTTEN: &str = "forgotten by restore_fence";

const BEFORE: &str =
    "SELECT expires_at_ms FROM main.litelease_reads WHERE name = ?1 AND reader = ?2";

const SAVE: &str = "INSERT INTO main.litelease_reads (name, reader, expires_at_ms)
VALUES (?1, ?2, ?3) ON CONFLICT (name, reader) DO UPDATE SET expires_at_ms = excluded.expires_at_ms";

const UNREAD: &str = "DELETE FROM main.litelease_reads WHERE name = ?1 AND reader = ?2";

const LAST: &str = "SELECT max(
ifnull((SELECT max(expires_at_ms) FROM main.litelease_reads WHERE name = ?1), -9223372036854775808),
ifnull((SELECT max(expires_at_ms) FROM main.litelease_reads WHERE name IS NULL), -9223372036854775808))";

const LIST: &str = "SELECT reader, expires_at_ms FROM main.litelease_reads
WHERE (name = ?1 OR name IS NULL) AND expires_at_ms > ?2 ORDER BY reader";

const FORGET_NAME: &str = "DELETE FROM main.litelease_reads WHERE name = ?1";

const FORGET_ENDED: &str = "DELETE FROM main.litelease_reads WHERE expires_at_ms <= ?1";

const FORGET_ALL: &str = "DELETE FROM main.litelease_reads";

const AFTER_RESTORE: &str =
    "INSERT INTO main.litelease_reads (name, reader, expires_at_ms) VALUES (NULL, ?1, ?2)";

/// A reader that may answer from memory.
///
/// ```
/// # use litelease_store::Reader;
/// let reader = Reader { reader: "web-1".into(), expires_at_ms: 150 };
/// assert_eq!(reader.reader, "web-1");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reader {
    /// The text of the reader.
    pub reader: String,
    /// The first millisecond (Unix time) at which a writer no longer waits for it.
    pub expires_at_ms: i64,
}

impl Store {
    /// Grants or prolongs a read of `name`, and answers its version. None while a writer has the
    /// name, which is answered without the write lock where that is possible.
    pub fn read(
        &self,
        name: &str,
        reader: &str,
        ttl_ms: i64,
        when: When,
    ) -> Result<Option<i64>, Error> {
        self.with_context("read", Some(name), || {
            let boundary = self.boundary()?;
            let is_written = || {
                self.read_row(name, |row| {
                    Ok(row.live(read_term(ttl_ms, when.now_ms())?.now_ms()).is_some())
                })
            };
            if boundary.may_look_first() && is_written()? {
                return Ok(None);
            }
            let granted = self.within(boundary, || {
                let before = self.reader_before(name, reader)?;
                // Verifies the tables before it reads the floor, and reads the clock under the
                // write lock.
                let term = self.read_row(name, |_| Ok(read_term(ttl_ms, when.now_ms())?))?;
                let floor = self.epoch_record()?.floor;
                let granted =
                    self.read_row(name, |row| Ok(rule::read(row, before, term, floor)))?;
                if let Some(read) = granted {
                    self.all_or_nothing(|| self.save_reader(name, reader, read.expires_at_ms))?;
                }
                Ok(granted)
            })?;
            let Some(read) = granted else { return Ok(None) };
            let rule::Read { version: token, expires_at_ms } = read;
            check_arrival(when, Lease { name, owner: reader, token, expires_at_ms })?;
            Ok(Some(read.version))
        })
    }

    /// Gives a read up. Answers whether there was one, live or not.
    pub fn unread(&self, name: &str, reader: &str) -> Result<bool, Error> {
        self.with_context("give up a read of", Some(name), || {
            let boundary = self.boundary()?;
            if boundary.may_look_first() && self.reader_before(name, reader)?.is_none() {
                return Ok(false);
            }
            self.within(boundary, || {
                if !self.has_readers()? {
                    return Ok(false);
                }
                execute_once(self.connection, UNREAD, &[Value::Text(name), Value::Text(reader)])?;
                Ok(self.connection.changes() > 0)
            })
        })
    }

    /// Returns the live readers of `name`. Needs no write lock.
    pub fn readers(&self, name: &str, when: When) -> Result<Vec<Reader>, Error> {
        self.with_context("list the readers of", Some(name), || {
            let mut readers = Vec::new();
            if !self.has_readers()? {
                return Ok(readers);
            }
            let mut statement = self.connection.prepare(LIST)?;
            let mut run = statement.run(&[Value::Text(name), Value::Integer(when.now_ms())])?;
            while run.step()? {
                let reader = run.column(0).and_then(Value::text).ok_or_else(damaged)?.into();
                let expires_at_ms = run.column(1).and_then(Value::integer).ok_or_else(damaged)?;
                readers.push(Reader { reader, expires_at_ms });
            }
            Ok(readers)
        })
    }

    /// Checks whether the writer with this token may write: it has the newest token, its lease is
    /// live, and no reader is.
    ///
    /// The answer holds as long as the transaction that read it has the write lock.
    pub fn drained(&self, name: &str, token: i64, when: When) -> Result<bool, Error> {
        self.with_context("look for the readers of", Some(name), || {
            let last = self.last_reader(name)?;
            self.read_row(name, |row| Ok(rule::drained(row, token, when.now_ms(), last)))
        })
    }

    /// Deletes the rows of all readers of `name`, after a writer has waited for them.
    pub fn forget_readers(&self, name: &str) -> Result<(), Error> {
        self.with_context("forget the readers of", Some(name), || {
            self.within(self.boundary()?, || match self.has_readers()? {
                true => execute_once(self.connection, FORGET_NAME, &[Value::Text(name)]),
                false => Ok(()),
            })
        })
    }

    /// Deletes the rows of readers that have ended, as part of a purge.
    pub(crate) fn purge_readers(&self, limit_ms: i64) -> Result<(), Error> {
        match is_there(self.connection, &READERS)? {
            true => execute_once(self.connection, FORGET_ENDED, &[Value::Integer(limit_ms)]),
            false => Ok(()),
        }
    }

    /// Makes writers wait for the longest time that a reader may have been granted since the backup
    /// of a file that is being restored: the file does not know such readers.
    pub(crate) fn distrust_readers(&self, now_ms: i64) -> Result<(), Error> {
        match is_there(self.connection, &READERS)? {
            true => execute_once(self.connection, FORGET_ALL, &[])?,
            false => create(self.connection, &READERS)?,
        }
        let until_ms = now_ms.saturating_add(MAX_READ_TTL_MS);
        let values = [Value::Text(FORGOTTEN), Value::Integer(until_ms)];
        let insert = || execute_once(self.connection, AFTER_RESTORE, &values);
        self.connection.keeping_last_insert_rowid(insert)
    }

    fn has_readers(&self) -> Result<bool, Error> {
        self.verify()?;
        is_there(self.connection, &READERS)
    }

    fn reader_before(&self, name: &str, reader: &str) -> Result<Option<i64>, Error> {
        if !self.has_readers()? {
            return Ok(None);
        }
        let mut statement = self.connection.prepare(BEFORE)?;
        let mut run = statement.run(&[Value::Text(name), Value::Text(reader)])?;
        match run.step()? {
            true => run.column(0).and_then(Value::integer).ok_or_else(damaged).map(Some),
            false => Ok(None),
        }
    }

    fn last_reader(&self, name: &str) -> Result<Option<i64>, Error> {
        if !self.has_readers()? {
            return Ok(None);
        }
        let mut statement = self.connection.prepare(LAST)?;
        let mut run = statement.run(&[Value::Text(name)])?;
        run.step()?;
        run.column(0).and_then(Value::integer).ok_or_else(damaged).map(Some)
    }

    fn save_reader(&self, name: &str, reader: &str, expires_at_ms: i64) -> Result<(), Error> {
        if !is_there(self.connection, &READERS)? {
            create(self.connection, &READERS)?;
        }
        let values = [Value::Text(name), Value::Text(reader), Value::Integer(expires_at_ms)];
        let save = || execute_once(self.connection, SAVE, &values);
        self.connection.keeping_last_insert_rowid(save)?;
        self.changed(1, "a reader")
    }
}

fn damaged() -> Error {
    READERS.mismatch("a row is damaged".into())
}
