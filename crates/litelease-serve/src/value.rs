//! Conversions between the values of SQLite and those of the wire.

use litelease::rusqlite::types;
use litelease_store::Value as Stored;
use litelease_wire::Value;

/// Copies a value out of a row.
pub(crate) fn from_row(value: Stored<'_>) -> Value {
    match value {
        Stored::Null => Value::Null,
        Stored::Integer(number) => Value::Integer(number),
        Stored::Real(number) => Value::Real(number),
        Stored::Text(text) => Value::Text(text.into()),
        Stored::Blob(bytes) => Value::Blob(bytes.into()),
    }
}

/// Returns a value that was read as the wire has it.
pub(crate) fn from_stored(value: types::Value) -> Value {
    match value {
        types::Value::Null => Value::Null,
        types::Value::Integer(number) => Value::Integer(number),
        types::Value::Real(number) => Value::Real(number),
        types::Value::Text(text) => Value::Text(text),
        types::Value::Blob(bytes) => Value::Blob(bytes),
    }
}

/// Returns a value that a client has sent as SQLite has it.
pub(crate) fn to_stored(value: Value) -> types::Value {
    match value {
        Value::Null => types::Value::Null,
        Value::Integer(number) => types::Value::Integer(number),
        Value::Real(number) => types::Value::Real(number),
        Value::Text(text) => types::Value::Text(text),
        Value::Blob(bytes) => types::Value::Blob(bytes),
    }
}
