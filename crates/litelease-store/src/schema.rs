//! The tables: their definition, their creation, and the strict check that they are ours.

use crate::definition::difference;
use crate::history;
use crate::sqlite::{Connection, TxnState, Value, code};
use crate::statements::execute_once;
use crate::transaction::Boundary;
use crate::{Error, Store};

/// A table of ours: its name and its definition, word for word.
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// The text after the name in `CREATE TABLE`.
    pub definition: &'static str,
}

impl Table {
    /// Returns the statement that makes it.
    pub(crate) fn create(&self) -> String {
        format!("CREATE TABLE main.{} {}", self.name, self.definition)
    }

    /// Returns the error for a table that is not as it should be.
    pub(crate) fn mismatch(&self, reason: String) -> Error {
        Error::SchemaMismatch { table: self.name, reason }
    }

    /// Returns the first difference between an entry in the schema and the right one. `text` is the
    /// entry's SQL, or the name of a foreign trigger or index on the table.
    pub(crate) fn difference(&self, kind: &str, text: &str) -> Option<String> {
        match kind {
            "table" => difference(text, &format!("CREATE TABLE {} {}", self.name, self.definition)),
            "trigger" => Some(format!(
                "it has a trigger that is not ours, {text:?}: drop it, and record changes in the \
                 transactions that make them"
            )),
            "index" => Some(format!("it has a unique index that is not ours, {text:?}: drop it")),
            _ => Some("it is a view".into()),
        }
    }
}

/// The leases. This is also the file format.
pub(crate) const RESOURCES: Table = Table {
    name: "litelease_resources",
    definition: "(
  name TEXT PRIMARY KEY,
  owner TEXT,
  token INTEGER NOT NULL CHECK (token >= 1),
  lease_expires_at_ms INTEGER,
  created_at_ms INTEGER NOT NULL,
  updated_at_ms INTEGER NOT NULL,
  CHECK (
    (owner IS NULL AND lease_expires_at_ms IS NULL)
    OR (owner IS NOT NULL AND lease_expires_at_ms IS NOT NULL)
  )
)",
};

/// The table for the file as a whole, with one row: the epoch, as `litelease_core::Epoch` has it.
/// The first call that needs it makes it; a file without it has floor 0 and no boot.
pub(crate) const META: Table = Table {
    name: "litelease_meta",
    definition: "(
  id INTEGER PRIMARY KEY CHECK (id = 1),
  format INTEGER NOT NULL,
  token_floor INTEGER NOT NULL CHECK (token_floor >= 0),
  epoch INTEGER AS (token_floor >> 32),
  boot INTEGER NOT NULL
)",
};

/// The format number of files written by this version.
pub(crate) const FORMAT: i64 = 1;

/// A table's entry in the schema.
pub(crate) const ENTRY: &str = "SELECT type, sql FROM main.sqlite_schema
WHERE name = ?1 COLLATE NOCASE AND type IN ('table', 'view')";

/// Finds foreign objects on a table that could change the meaning of a write: triggers, temporary
/// ones too, for they fire on this connection all the same, and unique indexes. Other indexes
/// change no answer. (SQLite does not show whether a temporary trigger is on our table or on
/// another of its name, so both count.)
pub(crate) const INTRUDERS: &str = "SELECT type, name, sql FROM main.sqlite_schema
WHERE tbl_name = ?1 COLLATE NOCASE
AND (type = 'trigger' OR (type = 'index' AND sql LIKE 'CREATE UNIQUE %'))
UNION ALL SELECT type, name, NULL FROM temp.sqlite_schema
WHERE tbl_name = ?1 COLLATE NOCASE AND type = 'trigger'";

/// The newest format that a file has, whatever else it has.
pub(crate) const FORMAT_OF_FILE: &str = "SELECT max(format) FROM main.litelease_meta";

/// 1 if the row of the file is as it must be.
pub(crate) const META_IS_RIGHT: &str = "SELECT count(*) = 1 AND max(id) = 1 AND max(format) = 1
AND typeof(max(token_floor)) = 'integer' AND max(token_floor) >= 0 AND typeof(max(boot)) = 'integer'
FROM main.litelease_meta";

impl Store {
    /// Creates the lease table if it is missing, and checks it if it is there.
    ///
    /// On a database that has the right table this changes nothing and needs no write lock, with
    /// one exception: outside a transaction it records the present boot durably, if that was not
    /// done yet. It does so on a connection that loses no commits, too, because one that does may
    /// join later, with grants inside its transactions.
    pub fn bootstrap(&self) -> Result<(), Error> {
        self.with_context("bootstrap", None, || {
            let boundary = self.boundary()?;
            if boundary == Boundary::Joined(TxnState::None) {
                return self.bootstrap_before_reading();
            }
            match self.verify() {
                Ok(()) if boundary == Boundary::Own => self.record_boot(),
                Err(Error::NotBootstrapped) => match boundary {
                    Boundary::Joined(_) => create(self.connection, &RESOURCES),
                    Boundary::Own => self.recorded(boundary, |context| {
                        self.create_if_missing()?;
                        self.keep_recording(context)
                    }),
                },
                done => done,
            }
        })
    }

    fn create_if_missing(&self) -> Result<(), Error> {
        match self.verify() {
            Err(Error::NotBootstrapped) => create(self.connection, &RESOURCES),
            // Another connection was faster.
            done => done,
        }
    }

    /// Bootstraps in a transaction that has not read yet. It takes the write lock before it reads,
    /// so that the caller's busy timeout applies; if it cannot have the lock, as on a read-only
    /// file, it only reads.
    fn bootstrap_before_reading(&self) -> Result<(), Error> {
        match self.statements.lock.execute(self.connection) {
            Err(Error::Sqlite(failure)) if failure.code & 0xff == code::ERROR => {
                // This connection sees no such table: creating it takes the write lock too.
                let created = create(self.connection, &RESOURCES);
                match self.verify() {
                    Err(Error::NotBootstrapped) => created,
                    // Another connection was faster, or the table is not ours.
                    verified => verified,
                }
            }
            Err(Error::Sqlite(failure)) if failure.code & 0xff == code::READONLY => self.verify(),
            Err(error) => Err(error),
            Ok(()) => self.verify(),
        }
    }

    /// Makes sure that the tables are ours, and finds out whether the file keeps an epoch.
    ///
    /// A newer format is reported before any other check, because it may have changed any of the
    /// tables.
    pub(crate) fn verify(&self) -> Result<(), Error> {
        let format = format_of_file(self.connection)?;
        if let Some(found) = format.filter(|found| *found > FORMAT) {
            return Err(Error::NewerFormat { found, known: FORMAT });
        }
        if !is_there(self.connection, &RESOURCES)? {
            return Err(Error::NotBootstrapped);
        }
        let has_epoch = is_there(self.connection, &META)?;
        if has_epoch && !self.connection.answers_one(META_IS_RIGHT)? {
            return Err(damaged_meta());
        }
        self.epoch_state.has_epoch.set(has_epoch);
        self.check_side_tables_again();
        self.epoch_state.boot.set(self.connection.boot());
        Ok(())
    }
}

pub(crate) fn damaged_meta() -> Error {
    META.mismatch(format!("its row is missing or is not one of format {FORMAT}"))
}

/// Returns the format number of the file, if it has one.
fn format_of_file(connection: Connection) -> Result<Option<i64>, Error> {
    let format = connection.prepare(FORMAT_OF_FILE).and_then(|mut statement| {
        let mut run = statement.run(&[])?;
        run.step()?;
        Ok(run.column(0).and_then(Value::integer))
    });
    match format {
        // There is no such table, or it has no format.
        Err(failure) if failure.code & 0xff == code::ERROR => Ok(None),
        format => Ok(format?),
    }
}

pub(crate) fn create(connection: Connection, table: &Table) -> Result<(), Error> {
    execute_once(connection, &table.create(), &[])
}

/// Checks whether the table exists. One that is there but is not ours is an error.
pub(crate) fn is_there(connection: Connection, table: &Table) -> Result<bool, Error> {
    if !entry_is_ours(connection, table)? {
        return Ok(false);
    }
    let mut statement = connection.prepare(INTRUDERS)?;
    let mut run = statement.run(&[Value::Text(table.name)])?;
    while run.step()? {
        let kind = run.column(0).and_then(Value::text).unwrap_or_default();
        let name = run.column(1).and_then(Value::text).unwrap_or("?");
        let sql = run.column(2).and_then(Value::text).unwrap_or_default();
        if kind == "trigger" && table.name == RESOURCES.name && history::is_our_trigger(name, sql) {
            continue;
        }
        if let Some(reason) = table.difference(kind, name) {
            return Err(table.mismatch(reason));
        }
    }
    Ok(true)
}

/// Checks whether tables that are made together are there: all of them or none.
///
/// Another program may make them between two of these reads, which then see only some. They are
/// made in one commit, so a second round sees all of them.
pub(crate) fn are_there(connection: Connection, tables: &[&Table]) -> Result<bool, Error> {
    let mut missing = None;
    for _round in 0..2 {
        let mut found = false;
        missing = None;
        for table in tables {
            match is_there(connection, table)? {
                true => found = true,
                false => missing = missing.or(Some(table)),
            }
        }
        if !found || missing.is_none() {
            return Ok(found);
        }
    }
    missing.map_or(Ok(true), |table| Err(table.mismatch("it is missing".into())))
}

/// Answers a query that found no table: no row. If the table is there by now, another connection
/// made it after the query.
pub(crate) fn none_without_table<T>(
    found: Result<Option<T>, Error>,
    is_there: impl FnOnce() -> Result<bool, Error>,
) -> Result<Option<T>, Error> {
    match found {
        Err(Error::Sqlite(failure)) if failure.code & 0xff == code::ERROR => {
            let was_missing = failure.message.starts_with("no such table");
            match is_there()? && !was_missing {
                true => Err(Error::Sqlite(failure)),
                false => Ok(None),
            }
        }
        found => found,
    }
}

fn entry_is_ours(connection: Connection, table: &Table) -> Result<bool, Error> {
    let mut statement = connection.prepare(ENTRY)?;
    let mut run = statement.run(&[Value::Text(table.name)])?;
    if !run.step()? {
        return Ok(false);
    }
    let kind = run.column(0).and_then(Value::text).unwrap_or_default();
    let sql = run.column(1).and_then(Value::text).unwrap_or_default();
    match table.difference(kind, sql) {
        Some(reason) => Err(table.mismatch(reason)),
        None => Ok(true),
    }
}
