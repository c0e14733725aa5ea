//! The verbs that stop an old owner: guards, tokens that a connection presents, checkpoints and
//! gates.

use litelease_core::is_from_predecessor;
use litelease_store::Value;
use rusqlite::ToSql;
use rusqlite::types::{self, ToSqlOutput, ValueRef};

use crate::error::failure;
use crate::{AdmitResult, CheckpointResult, GrantRef, Guard, GuardInfo, Leases, Result};

/// The latest checkpoint of a name.
///
/// ```
/// # litelease_doctest::memory!(db);
/// let lease = db.claim("import", "a", Duration::from_secs(30))?.acquired().unwrap();
/// let stored = db.checkpoint(&lease, "row 4711")?;
/// let last: Checkpoint = db.last_checkpoint("import")?.unwrap();
/// assert_eq!(last.token, 1);
/// assert_eq!(last.value, rusqlite::types::Value::Text("row 4711".into()));
/// # Ok::<(), litelease::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Checkpoint {
    /// The grant under which it was stored.
    pub token: i64,
    /// The value that was stored.
    pub value: types::Value,
    /// When it was stored, as Unix time in milliseconds.
    pub updated_at_ms: i64,
}

impl Checkpoint {
    /// Checks whether the grant right before that of the token `own` has stored it. If not, grants
    /// in between may have made more progress.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let ttl = Duration::from_secs(30);
    /// let old = db.claim("import", "a", ttl)?.acquired().unwrap();
    /// let _ = db.checkpoint(&old, "page 3")?;
    /// let new = db.transfer(&old, "b", ttl)?.transferred().unwrap();
    /// assert!(db.last_checkpoint("import")?.unwrap().is_from_predecessor(new.token));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn is_from_predecessor(&self, own: i64) -> bool {
        is_from_predecessor(self.token, own)
    }
}

/// The verbs that stop an old owner.
impl Leases {
    /// Guards a table: from now on, a write to it must present the newest token of `name`. The
    /// database itself refuses all other writes, with `stale fencing token` in the message: see
    /// [`is_stale`](crate::is_stale).
    ///
    /// A name that was never claimed closes the table until its first grant. If several names guard
    /// one table, a write must present a token for each. Guarding again in the same way changes
    /// nothing, or restores triggers that a rebuild of the table has dropped. While a table is
    /// guarded, none of its columns can be dropped.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// db.conn().execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, text)")?;
    /// db.guard("orders", "order-writer", &Guard::by_connection())?;
    /// # db.present(("order-writer", 1))?;
    /// let write = db.conn().execute("INSERT INTO orders (text) VALUES ('a')", []);
    /// assert!(is_stale(&write.unwrap_err()), "the name was never granted");
    ///
    /// let lease = db.claim("order-writer", "a", Duration::from_secs(30))?.acquired().unwrap();
    /// db.present(&lease)?;
    /// db.conn().execute("INSERT INTO orders (text) VALUES ('a')", [])?;
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn guard(&self, table: &str, name: &str, guard: &Guard) -> Result<()> {
        self.run(|store| store.guard(table, name, guard))
    }

    /// Removes the guard by `name` from a table, or all its guards. Returns how many there were.
    pub fn unguard(&self, table: &str, name: Option<&str>) -> Result<u64> {
        self.run(|store| store.unguard(table, name))
    }

    /// Lists all guards, and whether their triggers are intact.
    pub fn guards(&self) -> Result<Vec<GuardInfo>> {
        self.run(|store| store.guards())
    }

    /// Presents a token for the writes of this connection to tables that `name` guards by
    /// connection. Returns whether it is the newest one; if not, the guards will refuse it.
    ///
    /// Presenting once is enough until the name is granted again. The token is kept in memory, with
    /// the connection, and a rollback does not undo that: present a token after the commit of its
    /// claim, or [`withdraw`](Leases::withdraw) it when the transaction is rolled back.
    ///
    /// Fails with [`Error::GuardMissing`](crate::Error::GuardMissing) if a guard of the name was
    /// dropped since.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let lease = db.claim("order-writer", "a", Duration::from_secs(30))?.acquired().unwrap();
    /// assert!(db.present(&lease)?);
    ///
    /// let _ = db.transfer(&lease, "b", Duration::from_secs(30))?;
    /// assert!(!db.present(&lease)?);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn present<'g>(&self, grant: impl Into<GrantRef<'g>>) -> Result<bool> {
        let GrantRef { name, token, .. } = grant.into();
        self.run(|store| store.present(name, token))
    }

    /// Withdraws the token presented for `name`, for a connection that goes back to a pool.
    pub fn withdraw(&self, name: &str) -> Result<()> {
        self.run(|store| store.withdraw(name))
    }

    /// Stores a value as the progress made under a grant, if that is still the newest one of
    /// `name`. For an old token it returns `Stale` and stores nothing.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let old = db.claim("import", "a", Duration::from_secs(30))?.acquired().unwrap();
    /// let new = db.transfer(&old, "b", Duration::from_secs(30))?.transferred().unwrap();
    /// assert_eq!(db.checkpoint(&new, 4711)?, CheckpointResult::Stored);
    /// let late = db.checkpoint(&old, 17)?;
    /// assert_eq!(late, CheckpointResult::Stale { newest: Some(2) });
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn checkpoint<'g>(
        &self,
        grant: impl Into<GrantRef<'g>>,
        value: impl ToSql,
    ) -> Result<CheckpointResult> {
        let (GrantRef { name, token, .. }, output) = (grant.into(), value.to_sql()?);
        let value = as_value(&output, "a checkpoint")?;
        self.run(|store| store.checkpoint(name, token, value, self.when()))
    }

    /// Returns the latest checkpoint of `name`, from which a successor continues.
    pub fn last_checkpoint(&self, name: &str) -> Result<Option<Checkpoint>> {
        let read = |token, value: Value<'_>, updated_at_ms| Checkpoint {
            token,
            value: owned(value),
            updated_at_ms,
        };
        self.run(|store| store.last_checkpoint(name, read))
    }

    /// Admits a token unless a larger one was admitted for `name` before, and remembers it in this
    /// file.
    ///
    /// Use it for a target whose leases are in another file, where the target is changed: in a
    /// transaction of the target's own file, or with a [`Gate`](crate::Gate). It needs no
    /// `bootstrap`.
    ///
    /// ```
    /// # use litelease::*;
    /// # let mut target = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # target.conn().execute_batch("CREATE TABLE results (text)")?;
    /// # let (token, result) = (7, "done");
    /// let tx = target.transaction()?;
    /// if tx.admit("import", token)? == AdmitResult::Admitted {
    ///     tx.conn().execute("INSERT INTO results VALUES (?1)", [result])?;
    ///     tx.commit()?;
    /// }
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn admit(&self, name: &str, token: i64) -> Result<AdmitResult> {
        self.run(|store| store.admit(name, token))
    }
}

/// Checks whether a guard refused a write because its connection or row did not present the newest
/// token.
///
/// ```
/// # litelease_doctest::memory!(db);
/// # db.conn().execute_batch("CREATE TABLE orders (text, lease_token INTEGER)")?;
/// db.guard("orders", "order-writer", &Guard::by_column("lease_token"))?;
/// match db.conn().execute("INSERT INTO orders VALUES ('a', 7)", []) {
///     Err(error) if is_stale(&error) => println!("another process is the writer now"),
///     Err(error) => return Err(error.into()),
///     Ok(_) => unreachable!(),
/// }
/// # Ok::<(), litelease::Error>(())
/// ```
pub fn is_stale(error: &rusqlite::Error) -> bool {
    match error {
        rusqlite::Error::SqliteFailure(code, Some(message)) => {
            code.extended_code == rusqlite::ffi::SQLITE_CONSTRAINT_TRIGGER
                && message.contains("stale fencing token")
        }
        _ => false,
    }
}

/// Copies a value that was read.
pub(crate) fn owned(value: Value<'_>) -> types::Value {
    match value {
        Value::Null => types::Value::Null,
        Value::Integer(number) => types::Value::Integer(number),
        Value::Real(number) => types::Value::Real(number),
        Value::Text(text) => types::Value::Text(text.into()),
        Value::Blob(bytes) => types::Value::Blob(bytes.into()),
    }
}

/// Converts a value that is to be stored. `what` names it in an error.
pub(crate) fn as_value<'a>(output: &'a ToSqlOutput<'a>, what: &str) -> Result<Value<'a>> {
    let value = match output {
        ToSqlOutput::Borrowed(value) => *value,
        ToSqlOutput::Owned(value) => ValueRef::from(value),
        _ => return Err(failure(&format!("{what} is NULL, a number, text or a blob"))),
    };
    Ok(match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Integer(number),
        ValueRef::Real(number) => Value::Real(number),
        ValueRef::Text(text) => match str::from_utf8(text) {
            Ok(text) => Value::Text(text),
            Err(_) => return Err(failure(&format!("the text of {what} must be UTF-8"))),
        },
        ValueRef::Blob(bytes) => Value::Blob(bytes),
    })
}
