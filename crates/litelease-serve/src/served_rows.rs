//! Grants that the service has made: the hash of the secret that identifies the client of each.
//!
//! A name has one row, for its newest grant that was served, and the number of the row is part
//! of the secret: so the secret of an older grant leads to its name as well, and no index on hashes
//! is needed. The lease row alone says who has the name; a row here whose token is not that of the
//! lease means nothing.

use litelease::{Error, Litelease};
use litelease_store::{Run, SERVED, ServiceStatement, Value};

const BY_NUMBER: ServiceStatement = ServiceStatement {
    place: 0,
    table: &SERVED,
    verb: "look for a served grant",
    sql: "SELECT number, name, token, hash, salt FROM main.litelease_served WHERE number = ?1",
};

const BY_NAME: ServiceStatement = ServiceStatement {
    place: 1,
    table: &SERVED,
    verb: "look for the served grant of",
    sql: "SELECT number, name, token, hash, salt FROM main.litelease_served WHERE name = ?1",
};

const NEXT_NUMBER: ServiceStatement = ServiceStatement {
    place: 2,
    table: &SERVED,
    verb: "store the served grant of",
    sql: "SELECT ifnull(max(number), 0) + 1 FROM main.litelease_served",
};

const INSERT: ServiceStatement = ServiceStatement {
    place: 3,
    table: &SERVED,
    verb: "store the served grant of",
    sql: "INSERT INTO main.litelease_served (number, name, token, hash, salt)
VALUES (?1, ?2, ?3, ?4, ?5)",
};

const UPDATE: ServiceStatement = ServiceStatement {
    place: 4,
    table: &SERVED,
    verb: "store the served grant of",
    sql: "UPDATE main.litelease_served SET token = ?2, hash = ?3, salt = ?4 WHERE number = ?1",
};

/// A served grant as it is stored.
pub(crate) struct ServedRow {
    /// The number of the row, which stays the same while the name has one.
    pub(crate) number: i64,
    pub(crate) name: String,
    pub(crate) token: i64,
    /// The hash of its secret. `None` if its new owner has not fetched it yet.
    pub(crate) hash: Option<Vec<u8>>,
    /// The salt from which the secret was derived, together with the idempotency key of its claim.
    pub(crate) salt: Option<Vec<u8>>,
}

/// The parts of a new secret that are stored, and the rest, which its maker keeps.
pub(crate) struct Secret<T> {
    /// The hash; `None` for a grant that waits to be fetched by its new owner.
    pub(crate) hash: Option<Vec<u8>>,
    /// The salt from which the secret is derived, if it is derived.
    pub(crate) salt: Option<Vec<u8>>,
    pub(crate) made: T,
}

/// Returns the row with this number, if there is one.
pub(crate) fn by_number(db: &Litelease, number: i64) -> Result<Option<ServedRow>, Error> {
    let values = [Value::Integer(number)];
    db.with_store(|store| store.service_row(&BY_NUMBER, None, &values, served_row))
}

/// Returns the row of this name, if there is one.
pub(crate) fn by_name(db: &Litelease, name: &str) -> Result<Option<ServedRow>, Error> {
    let values = [Value::Text(name)];
    db.with_store(|store| store.service_row(&BY_NAME, Some(name), &values, served_row))
}

/// Returns the token that the next grant of the name with this number will exceed: that of its last
/// served grant, or the floor of the file, which a purge of the name has raised to it.
pub(crate) fn newest_token(db: &Litelease, number: i64) -> Result<i64, Error> {
    let token = by_number(db, number)?.map_or(0, |served| served.token);
    db.with_store(|store| Ok(token.max(store.token_floor()?)))
}

/// Stores the result of `secret` for a name: hash and salt. Its argument is the number of the row:
/// the one that [`by_name`] found in this transaction, or a new one.
pub(crate) fn store<T>(
    db: &Litelease,
    name: &str,
    found: Option<i64>,
    token: i64,
    secret: impl FnOnce(i64) -> Secret<T>,
) -> Result<T, Error> {
    db.with_store(|store| {
        let first = |row: &Run<'_, '_>| row.column(0).and_then(Value::integer);
        let number = match found {
            Some(number) => number,
            None => store.service_row(&NEXT_NUMBER, Some(name), &[], first)?.unwrap_or(1),
        };
        let Secret { hash, salt, made } = secret(number);
        let hash = hash.as_deref().map_or(Value::Null, Value::Blob);
        let salt = salt.as_deref().map_or(Value::Null, Value::Blob);
        let (number, token) = (Value::Integer(number), Value::Integer(token));
        match found {
            Some(_) => {
                store.service_write_row(&UPDATE, Some(name), &[number, token, hash, salt])?;
            }
            None => {
                let values = [number, Value::Text(name), token, hash, salt];
                store.service_write_row(&INSERT, Some(name), &values)?;
            }
        }
        Ok(made)
    })
}

/// Reads a row, unless it is damaged.
fn served_row(row: &Run<'_, '_>) -> Option<ServedRow> {
    match [0, 1, 2, 3, 4].map(|index| row.column(index)) {
        [
            Some(Value::Integer(number)),
            Some(Value::Text(name)),
            Some(Value::Integer(token)),
            Some(hash @ (Value::Blob(_) | Value::Null)),
            Some(salt @ (Value::Blob(_) | Value::Null)),
        ] => Some(ServedRow {
            number,
            name: name.into(),
            token,
            hash: bytes(hash),
            salt: bytes(salt),
        }),
        _ => None,
    }
}

fn bytes(value: Value<'_>) -> Option<Vec<u8>> {
    match value {
        Value::Blob(bytes) => Some(bytes.into()),
        _ => None,
    }
}
