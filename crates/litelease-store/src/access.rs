//! The access keys of the service: their hashes, and what each may do. The keys themselves are
//! never stored.

use crate::schema::{Table, create, is_there};
use crate::sqlite::Value;
use crate::statements::execute_once;
use crate::{Error, Store, When};

/// The access keys. It is made by the first one.
pub(crate) const ACCESS: Table = Table {
    name: "litelease_access",
    definition: "(
  name TEXT PRIMARY KEY,
  hash BLOB NOT NULL UNIQUE,
  allow TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL,
  expires_at_ms INTEGER
)",
};

/// Stores a key, unless there is one of this name.
const ADD: &str = "INSERT INTO main.litelease_access
(name, hash, allow, created_at_ms, expires_at_ms) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (name) DO NOTHING";

const LIST: &str = "SELECT name, hash, allow, created_at_ms, expires_at_ms
FROM main.litelease_access ORDER BY name";

const REMOVE: &str = "DELETE FROM main.litelease_access WHERE name = ?1";

/// An access key as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRow {
    /// The name that operators gave it.
    pub name: String,
    /// The SHA-256 of the key.
    pub hash: Vec<u8>,
    /// Its permissions, one per line.
    pub allow: String,
    /// When it was made, as Unix time in milliseconds.
    pub created_at_ms: i64,
    /// The first millisecond at which it is no longer valid, if it expires.
    pub expires_at_ms: Option<i64>,
}

impl Store {
    /// Stores the hash of a key under a name. False if there is a key of that name already: it
    /// stays as it is.
    pub fn add_access(
        &self,
        name: &str,
        hash: &[u8],
        allow: &str,
        expires_at_ms: Option<i64>,
        when: When,
    ) -> Result<bool, Error> {
        let values = [
            Value::Text(name),
            Value::Blob(hash),
            Value::Text(allow),
            Value::Integer(when.now_ms()),
            expires_at_ms.map_or(Value::Null, Value::Integer),
        ];
        self.with_context("add the access key", Some(name), || {
            self.within(self.boundary()?, || {
                self.all_or_nothing(|| {
                    if !is_there(self.connection, &ACCESS)? {
                        create(self.connection, &ACCESS)?;
                    }
                    let save = || execute_once(self.connection, ADD, &values);
                    self.connection.keeping_last_insert_rowid(save)?;
                    Ok(self.connection.changes() == 1)
                })
            })
        })
    }

    /// Lists all keys, in the order of their names. `None` if there was never one.
    pub fn access(&self) -> Result<Option<Vec<AccessRow>>, Error> {
        self.with_context("list access keys", None, || {
            self.settle()?;
            if !is_there(self.connection, &ACCESS)? {
                return Ok(None);
            }
            let mut statement = self.connection.prepare(LIST)?;
            let mut run = statement.run(&[])?;
            let mut rows = Vec::new();
            while run.step()? {
                let row = match [0, 1, 2, 3, 4].map(|index| run.column(index)) {
                    [
                        Some(Value::Text(name)),
                        Some(Value::Blob(hash)),
                        Some(Value::Text(allow)),
                        Some(Value::Integer(created_at_ms)),
                        Some(expires @ (Value::Integer(_) | Value::Null)),
                    ] => AccessRow {
                        name: name.into(),
                        hash: hash.into(),
                        allow: allow.into(),
                        created_at_ms,
                        expires_at_ms: expires.integer(),
                    },
                    // A key whose expiry cannot be read must not be taken for one that never
                    // expires.
                    _ => return Err(ACCESS.mismatch("one of its rows is damaged".into())),
                };
                rows.push(row);
            }
            Ok(Some(rows))
        })
    }

    /// Removes a key. False if there is none of that name.
    pub fn remove_access(&self, name: &str) -> Result<bool, Error> {
        self.with_context("remove the access key", Some(name), || {
            self.within(self.boundary()?, || {
                if !is_there(self.connection, &ACCESS)? {
                    return Ok(false);
                }
                execute_once(self.connection, REMOVE, &[Value::Text(name)])?;
                Ok(self.connection.changes() == 1)
            })
        })
    }
}
