//! The SQL statements of the verbs, each written once and compiled once per store, and the mapping
//! between columns and a lease state.
//!
//! All of them name `main`, so that a temporary or attached table of our name is never taken for
//! ours. The rules are elsewhere: one read, one update and one insertion serve all verbs.

use std::cell::RefCell;

use litelease_core::{Row, State};

use crate::limit::{LIMITS_OF, PROGRESS};
use crate::pool_rows::PoolStatements;
use crate::present::PRESENTING;
use crate::queue_rows::QueueStatements;
use crate::request::REQUEST_OF;
use crate::service_tables::ServiceStatements;
use crate::sqlite::{Connection, Statement, Value};
use crate::tick::{KEEP_TICK, TICK_OF};
use crate::{Error, Failure};

/// Reads a row.
const LOAD: &str = "SELECT owner, token, lease_expires_at_ms
FROM main.litelease_resources WHERE name = ?1";

/// Reads a row with when its newest grant began, for people.
const SHOW: &str = "SELECT owner, token, lease_expires_at_ms, created_at_ms
FROM main.litelease_resources WHERE name = ?1";

/// Lets the rule decide about an existing row, and stores the result: load, decide and save in one
/// statement, with the write lock held before the rule is called.
macro_rules! update {
    ($changes:literal, $floor:literal) => {
        concat!(
            "UPDATE main.litelease_resources SET ",
            $changes,
            ", updated_at_ms = litelease_rule(3)
WHERE name = ?1 AND litelease_rule(?2, owner, token, lease_expires_at_ms",
            $floor,
            ")"
        )
    };
    ($floor:literal) => {
        update!(
            "owner = litelease_rule(0), token = litelease_rule(1),
lease_expires_at_ms = litelease_rule(2), created_at_ms = ifnull(litelease_rule(4), created_at_ms)",
            $floor
        )
    };
}

/// Updates a row for verbs that change less: each call of the rule has its price.
const PROLONG: &str = update!("lease_expires_at_ms = litelease_rule(2)", "");
const FREE: &str = update!("owner = NULL, lease_expires_at_ms = NULL", "");

/// Inserts a row for a name that has none. It changes nothing if another connection was faster.
macro_rules! insert {
    ($floor:literal) => {
        concat!(
            "INSERT INTO main.litelease_resources
(name, owner, token, lease_expires_at_ms, created_at_ms, updated_at_ms)
SELECT ?1, litelease_rule(0), litelease_rule(1), litelease_rule(2),
litelease_rule(3), litelease_rule(3) WHERE litelease_rule(?2, NULL, NULL, NULL",
            $floor,
            ") ON CONFLICT (name) DO NOTHING"
        )
    };
}

/// The file's token floor, as a further argument of the rule, if the file's epoch is of this boot.
/// Otherwise it is NULL, and the epoch must be read.
macro_rules! with_epoch {
    ($statement:ident) => {
        $statement!(
            ", (SELECT token_floor FROM main.litelease_meta
WHERE id = 1 AND boot = litelease_boot AND format = 1)"
        )
    };
}

/// Stores what the rule has said about a row, where a statement cannot ask it.
const SAVE: &str = "UPDATE main.litelease_resources SET owner = ?2, token = ?3,
lease_expires_at_ms = ?4, updated_at_ms = ?5, created_at_ms = ifnull(?6, created_at_ms)
WHERE name = ?1";

/// Inserts the row for a name that has none.
pub(crate) const ADD: &str = "INSERT INTO main.litelease_resources
(name, owner, token, lease_expires_at_ms, created_at_ms, updated_at_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?5)";

/// Reads the epoch.
pub(crate) const EPOCH_RECORD: &str =
    "SELECT token_floor, boot FROM main.litelease_meta WHERE id = 1 AND format = 1";

/// Stores an epoch. The floor never sinks.
pub(crate) const KEEP_EPOCH: &str =
    "INSERT INTO main.litelease_meta (id, format, token_floor, boot) VALUES (1, ?1, ?2, ?3)
ON CONFLICT (id) DO UPDATE SET token_floor = max(token_floor, excluded.token_floor), boot = excluded.boot";

/// Makes room for an epoch that is larger or the same.
pub(crate) const FORGET_EPOCH: &str = "DELETE FROM main.litelease_meta";

/// Confirms an epoch, if it is still the one that was stored.
pub(crate) const CONFIRM_EPOCH: &str =
    "UPDATE main.litelease_meta SET boot = ?1 WHERE id = 1 AND boot = -?1 AND token_floor = ?2";

/// Answers the journal mode.
pub(crate) const JOURNAL_MODE: &str = "PRAGMA main.journal_mode";

/// Takes the write lock in a transaction of the caller's, and changes nothing.
pub(crate) const LOCK: &str = "UPDATE main.litelease_resources SET token = token WHERE FALSE";

/// The statements of one connection.
pub(crate) struct Statements {
    pub(crate) load: CachedStatement,
    pub(crate) show: CachedStatement,
    /// Loads a row for a caller that depends on guards, too.
    pub(crate) fenced: CachedStatement,
    pub(crate) presenting: CachedStatement,
    pub(crate) prolong: CachedStatement,
    pub(crate) free: CachedStatement,
    pub(crate) update: Granting,
    pub(crate) insert: Granting,
    pub(crate) save: CachedStatement,
    pub(crate) epoch: CachedStatement,
    pub(crate) lock: CachedStatement,
    pub(crate) begin: CachedStatement,
    /// The savepoint of a verb in the caller's transaction: opened, released and undone.
    pub(crate) outermost: [CachedStatement; 3],
    pub(crate) commit: CachedStatement,
    pub(crate) rollback: CachedStatement,
    pub(crate) limits: CachedStatement,
    pub(crate) progress: CachedStatement,
    pub(crate) request: CachedStatement,
    pub(crate) tick: CachedStatement,
    pub(crate) keep_tick: CachedStatement,
    pub(crate) pools: PoolStatements,
    pub(crate) service: ServiceStatements,
    pub(crate) queues: QueueStatements,
}

/// A statement that may store a new token, for files without and with an epoch.
pub(crate) struct Granting {
    plain: CachedStatement,
    with_epoch: CachedStatement,
}

/// A statement that is compiled at its first use and then kept.
pub(crate) struct CachedStatement {
    sql: &'static str,
    calls: Calls,
    kept: RefCell<Option<Statement>>,
}

/// The functions of ours that a statement calls.
#[derive(Clone, Copy)]
enum Calls {
    Nothing,
    TheRule,
    Presenting,
}

impl Statements {
    pub(crate) const fn new() -> Self {
        Statements {
            load: CachedStatement::new(LOAD),
            show: CachedStatement::new(SHOW),
            fenced: CachedStatement::new(LOAD),
            presenting: CachedStatement::calling(Calls::Presenting, PRESENTING),
            prolong: CachedStatement::asking(PROLONG),
            free: CachedStatement::asking(FREE),
            update: Granting {
                plain: CachedStatement::asking(update!("")),
                with_epoch: CachedStatement::asking(with_epoch!(update)),
            },
            insert: Granting {
                plain: CachedStatement::asking(insert!("")),
                with_epoch: CachedStatement::asking(with_epoch!(insert)),
            },
            save: CachedStatement::new(SAVE),
            epoch: CachedStatement::new(EPOCH_RECORD),
            lock: CachedStatement::new(LOCK),
            begin: CachedStatement::new("BEGIN IMMEDIATE"),
            outermost: [
                CachedStatement::new("SAVEPOINT litelease_savepoint_1"),
                CachedStatement::new("RELEASE litelease_savepoint_1"),
                CachedStatement::new("ROLLBACK TO litelease_savepoint_1"),
            ],
            commit: CachedStatement::new("COMMIT"),
            rollback: CachedStatement::new("ROLLBACK;"),
            limits: CachedStatement::new(LIMITS_OF),
            progress: CachedStatement::new(PROGRESS),
            request: CachedStatement::new(REQUEST_OF),
            tick: CachedStatement::new(TICK_OF),
            keep_tick: CachedStatement::new(KEEP_TICK),
            pools: PoolStatements::new(),
            service: ServiceStatements::new(),
            queues: QueueStatements::new(),
        }
    }
}

impl Statements {
    /// Checks whether a statement was compiled for which SQLite had to read the schema.
    pub(crate) fn know_schema(&self) -> bool {
        let Statements { load, fenced, prolong, free, update, insert, epoch, lock, .. } = self;
        let granting = [update, insert].map(|form| [&form.plain, &form.with_epoch]);
        let others = [load, fenced, prolong, free, epoch, lock];
        granting.as_flattened().iter().chain(&others).any(|held| held.is_compiled())
            || self.pools.know_schema()
            || self.queues.know_schema()
    }
}

impl Granting {
    /// Returns the form that also reads the file's epoch, or the one that does not.
    pub(crate) fn form(&self, reads_epoch: bool) -> &CachedStatement {
        if reads_epoch { &self.with_epoch } else { &self.plain }
    }
}

impl CachedStatement {
    pub(crate) const fn new(sql: &'static str) -> Self {
        CachedStatement::calling(Calls::Nothing, sql)
    }

    const fn asking(sql: &'static str) -> Self {
        CachedStatement::calling(Calls::TheRule, sql)
    }

    const fn calling(calls: Calls, sql: &'static str) -> Self {
        CachedStatement { sql, calls, kept: RefCell::new(None) }
    }

    /// Checks whether this is the statement of that text.
    pub(crate) fn is(&self, sql: &str) -> bool {
        self.sql == sql
    }

    pub(crate) fn is_compiled(&self) -> bool {
        self.kept.try_borrow().is_ok_and(|kept| kept.is_some())
    }

    fn prepare(&self, connection: Connection) -> Result<Statement, Failure> {
        match self.calls {
            Calls::Nothing => connection.prepare(self.sql),
            Calls::TheRule => connection.prepare_asking(self.sql),
            Calls::Presenting => {
                connection.prepare_calling(self.sql, || connection.register_presenting())
            }
        }
    }

    /// Lends the statement to `work`. A second use from inside the first one compiles a statement
    /// of its own instead of disturbing it.
    pub(crate) fn with<T>(
        &self,
        connection: Connection,
        work: impl FnOnce(&mut Statement) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Ok(mut kept) = self.kept.try_borrow_mut() else {
            return work(&mut self.prepare(connection)?);
        };
        match &mut *kept {
            Some(statement) => work(statement),
            none => work(none.insert(self.prepare(connection)?)),
        }
    }

    /// Runs the statement, which answers no rows, to its end.
    pub(crate) fn execute(&self, connection: Connection) -> Result<(), Error> {
        self.execute_with(connection, &[])
    }

    /// Runs the statement with these values.
    pub(crate) fn execute_with(
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
) -> Result<(), Error> {
    Ok(finish(&mut connection.prepare(sql)?, values)?)
}

fn finish(statement: &mut Statement, values: &[Value<'_>]) -> Result<(), Failure> {
    let mut run = statement.run(values)?;
    // A statement that is reset before its end never runs the automatic checkpoint.
    while run.step()? {}
    Ok(())
}

/// Returns the row of `name` with its stored values.
#[inline]
pub(crate) fn stored_row<'a>(name: &'a str, state: Option<State<'a>>) -> Result<Row<'a>, Error> {
    match state {
        Some(_) => Ok(Row::new(name, state)),
        None => Err(Error::InvalidLeaseRow(name.into())),
    }
}

/// Returns the state that owner, token and expiry mean, if they are of the right types and fit
/// together.
#[inline]
pub(crate) fn stored_state([owner, token, expiry]: [Option<Value<'_>>; 3]) -> Option<State<'_>> {
    let owner = match owner? {
        Value::Null => None,
        owner => Some(owner.text()?),
    };
    let expiry = match expiry? {
        Value::Null => None,
        expiry => Some(expiry.integer()?),
    };
    State::stored(token?.integer()?, owner, expiry)
}
