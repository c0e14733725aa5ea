//! Every SQL statement that a verb runs, each written once and compiled once per store.
//!
//! All of them name `main`, so that a temporary or attached table of our name is never taken for ours.
//! What they must mean is decided elsewhere: one load and one save serve all verbs.

use std::cell::Cell;

use crate::sqlite::{Connection, Statement, Value};
use crate::{Error, Failure};

/// Loads a row where the file keeps no token floor.
const LOAD: &str = "SELECT rowid, owner, token, lease_expires_at_ms
FROM main.litelease_resources WHERE name = ?1";

/// Loads a row and the file's token floor in one look. A constant in the condition (`m.id = 1`) would make
/// SQLite compile the statement anew for every name, to see whether the name equals that constant.
const LOAD_WITH_FLOOR: &str = "SELECT r.rowid, r.owner, r.token, r.lease_expires_at_ms,
m.token_floor, m.format
FROM main.litelease_meta AS m LEFT JOIN main.litelease_resources AS r ON r.name = ?1";

/// Stores the first state of a name.
const INSERT: &str = "INSERT INTO main.litelease_resources
(name, owner, token, lease_expires_at_ms, created_at_ms, updated_at_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?5)";

/// Stores a later state. The row was found by name in the same transaction, so its rowid still means it.
const UPDATE: &str = "UPDATE main.litelease_resources
SET owner = ?2, token = ?3, lease_expires_at_ms = ?4, updated_at_ms = ?5 WHERE rowid = ?1";

/// Takes the write lock in a transaction that somebody else began, and changes nothing.
const LOCK: &str = "UPDATE main.litelease_resources SET token = token WHERE FALSE";

/// The statements of one connection.
pub(crate) struct Statements {
    pub(crate) load: Held,
    pub(crate) load_with_floor: Held,
    pub(crate) insert: Held,
    pub(crate) update: Held,
    pub(crate) lock: Held,
    pub(crate) begin: Held,
    pub(crate) commit: Held,
    pub(crate) rollback: Held,
}

/// A statement that is compiled at its first use and then kept.
pub(crate) struct Held {
    sql: &'static str,
    idle: Cell<Option<Statement>>,
}

impl Statements {
    pub(crate) const fn new() -> Self {
        Statements {
            load: Held::new(LOAD),
            load_with_floor: Held::new(LOAD_WITH_FLOOR),
            insert: Held::new(INSERT),
            update: Held::new(UPDATE),
            lock: Held::new(LOCK),
            begin: Held::new("BEGIN IMMEDIATE"),
            commit: Held::new("COMMIT"),
            rollback: Held::new("ROLLBACK"),
        }
    }
}

impl Held {
    const fn new(sql: &'static str) -> Self {
        Held { sql, idle: Cell::new(None) }
    }

    /// Lends the statement to `work`. It is taken out meanwhile, so a second use from inside the first one
    /// compiles a statement of its own instead of disturbing it.
    pub(crate) fn with<T>(
        &self,
        connection: Connection,
        work: impl FnOnce(&mut Statement) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut statement = match self.idle.take() {
            Some(statement) => statement,
            None => connection.prepare(self.sql)?,
        };
        let done = work(&mut statement);
        self.idle.set(Some(statement));
        done
    }

    /// Runs the statement, which answers no rows, to its end.
    pub(crate) fn execute(
        &self,
        connection: Connection,
        values: &[Value<'_>],
    ) -> Result<(), Error> {
        self.with(connection, |statement| Ok(finish(statement, values)?))
    }
}

/// Runs a statement that is needed too rarely to be kept.
pub(crate) fn execute_once(
    connection: Connection,
    sql: &str,
    values: &[Value<'_>],
) -> Result<(), Failure> {
    finish(&mut connection.prepare(sql)?, values)
}

fn finish(statement: &mut Statement, values: &[Value<'_>]) -> Result<(), Failure> {
    let mut run = statement.run(values)?;
    // A statement that is reset before its end never runs the automatic checkpoint.
    while run.step()? {}
    Ok(())
}
