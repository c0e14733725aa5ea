//! Grants that the service has made: the hash of the secret by which the client of each is known.
//!
//! A name has one row here, for its newest grant that was served, and the number of the row is part
//! of the secret: so the secret of an older grant leads to its name as well, and no index on hashes
//! is needed. The lease row alone says who has the name; a row here whose token is not that of the
//! lease means nothing.

use crate::schema::{Table, create, is_there, none_without_table};
use crate::sqlite::Value;
use crate::statements::{CachedStatement, execute_once};
use crate::{Error, Store};

/// The newest served grant of each name. It is made by the first one.
pub(crate) const SERVED: Table = Table {
    name: "litelease_served",
    definition: "(
  number INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  token INTEGER NOT NULL CHECK (token >= 1),
  hash BLOB,
  salt BLOB
)",
};

const BY_NUMBER: &str = "SELECT number, name, token, hash, salt FROM main.litelease_served
WHERE number = ?1";

const BY_NAME: &str = "SELECT number, name, token, hash, salt FROM main.litelease_served
WHERE name = ?1";

const NEXT_NUMBER: &str = "SELECT ifnull(max(number), 0) + 1 FROM main.litelease_served";

const INSERT: &str = "INSERT INTO main.litelease_served (number, name, token, hash, salt)
VALUES (?1, ?2, ?3, ?4, ?5)";

const UPDATE: &str = "UPDATE main.litelease_served SET token = ?2, hash = ?3, salt = ?4
WHERE number = ?1";

/// Deletes the rows of names that are no more.
const FORGET: &str = "DELETE FROM main.litelease_served
WHERE name NOT IN (SELECT name FROM main.litelease_resources)";

/// A served grant as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedRow {
    /// The number of the row, which stays the same while the name has one.
    pub number: i64,
    /// The name.
    pub name: String,
    /// The token of the grant.
    pub token: i64,
    /// The hash of its secret. `None` if its new owner has not fetched it yet.
    pub hash: Option<Vec<u8>>,
    /// What the secret was derived from, besides the idempotency key of its claim, if it was.
    pub salt: Option<Vec<u8>>,
}

/// The statements that are kept.
pub(crate) struct ServedStatements {
    by_number: CachedStatement,
    by_name: CachedStatement,
    update: CachedStatement,
}

impl ServedStatements {
    pub(crate) const fn new() -> Self {
        ServedStatements {
            by_number: CachedStatement::new(BY_NUMBER),
            by_name: CachedStatement::new(BY_NAME),
            update: CachedStatement::new(UPDATE),
        }
    }
}

impl Store {
    /// Returns the row with this number, if there is one.
    pub fn served(&self, number: i64) -> Result<Option<ServedRow>, Error> {
        self.with_context("look for a served grant", None, || {
            self.find_served(&self.statements.served.by_number, Value::Integer(number))
        })
    }

    /// Returns the token that the next grant of the name with this number will exceed: that of its
    /// last served grant, or the floor of the file, which a purge of the name has raised to it.
    pub fn served_token(&self, number: i64) -> Result<i64, Error> {
        let token = self.served(number)?.map_or(0, |served| served.token);
        self.with_context("look at the floor", None, || Ok(token.max(self.epoch_record()?.floor)))
    }

    /// Returns the row of this name, if there is one.
    pub fn served_by_name(&self, name: &str) -> Result<Option<ServedRow>, Error> {
        self.with_context("look for the served grant of", Some(name), || {
            self.find_served(&self.statements.served.by_name, Value::Text(name))
        })
    }

    /// Stores what `secret` makes for a name: hash and salt. Its argument is the number of the row:
    /// the one that [`served_by_name`](Store::served_by_name) found, or a new one.
    pub fn serve<T>(
        &self,
        name: &str,
        found: Option<i64>,
        token: i64,
        secret: impl FnOnce(i64) -> Secret<T>,
    ) -> Result<T, Error> {
        self.with_context("store the served grant of", Some(name), || {
            let number = found.map_or_else(|| self.next_number(), Ok)?;
            let Secret { hash, salt, made } = secret(number);
            let hash = hash.as_deref().map_or(Value::Null, Value::Blob);
            let salt = salt.as_deref().map_or(Value::Null, Value::Blob);
            let (number, token) = (Value::Integer(number), Value::Integer(token));
            match found {
                Some(_) => {
                    let values = [number, token, hash, salt];
                    self.statements.served.update.execute_with(self.connection, &values)?;
                }
                None => {
                    let values = [number, Value::Text(name), token, hash, salt];
                    let insert = || execute_once(self.connection, INSERT, &values);
                    self.connection.keeping_last_insert_rowid(insert)?;
                }
            }
            match self.connection.changes() {
                1 => Ok(made),
                changed => Err(Error::unexpected_change(name, changed)),
            }
        })
    }

    /// Deletes the rows of names that are no more.
    pub(crate) fn forget_served(&self) -> Result<(), Error> {
        match is_there(self.connection, &SERVED)? {
            true => execute_once(self.connection, FORGET, &[]),
            false => Ok(()),
        }
    }

    fn next_number(&self) -> Result<i64, Error> {
        if !is_there(self.connection, &SERVED)? {
            create(self.connection, &SERVED)?;
        }
        let mut statement = self.connection.prepare(NEXT_NUMBER)?;
        let mut run = statement.run(&[])?;
        run.step()?;
        run.column(0).and_then(Value::integer).ok_or_else(damaged)
    }

    fn find_served(
        &self,
        statement: &CachedStatement,
        value: Value<'_>,
    ) -> Result<Option<ServedRow>, Error> {
        let found = statement.with(self.connection, |statement| {
            let mut run = statement.run(&[value])?;
            let has_row = run.step()?;
            if run.is_unverified() {
                is_there(self.connection, &SERVED)?;
                run.mark_verified();
            }
            if !has_row {
                return Ok(None);
            }
            let row = match [0, 1, 2, 3, 4].map(|index| run.column(index)) {
                [
                    Some(Value::Integer(number)),
                    Some(Value::Text(name)),
                    Some(Value::Integer(token)),
                    Some(hash @ (Value::Blob(_) | Value::Null)),
                    Some(salt @ (Value::Blob(_) | Value::Null)),
                ] => ServedRow {
                    number,
                    name: name.into(),
                    token,
                    hash: bytes(hash),
                    salt: bytes(salt),
                },
                _ => return Err(damaged()),
            };
            Ok(Some(row))
        });
        none_without_table(found, || is_there(self.connection, &SERVED))
    }
}

/// What to store for a secret, and what its maker keeps of it.
pub struct Secret<T> {
    /// The hash; `None` for a grant that waits to be fetched by its new owner.
    pub hash: Option<Vec<u8>>,
    /// What the secret is derived from, if it is.
    pub salt: Option<Vec<u8>>,
    /// For the caller.
    pub made: T,
}

fn bytes(value: Value<'_>) -> Option<Vec<u8>> {
    match value {
        Value::Blob(bytes) => Some(bytes.into()),
        _ => None,
    }
}

fn damaged() -> Error {
    SERVED.mismatch("one of its rows is damaged".into())
}
