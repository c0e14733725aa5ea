//! The form of rows on the engine: keys, values and moments, as bytes.
//!
//! | key | value |
//! |---|---|
//! | `a` NAME | an access key |
//! | `j` | the journal is complete, and has so many parts |
//! | `j` PART | a part of the journal |
//! | `m` | the format, and the service time of the last commit |
//! | `r` TABLE 0 NUMBER | a row: its columns, each with its type; leases are the engine's own rows |
//! | `s` TABLE | the definition of a table |

use crate::failure::Failure;
use litelease::rusqlite::types::{Value, ValueRef};
use litelease_store::AccessRow;

use super::RowChange;

pub(crate) const ACCESS: &[u8] = b"a";
pub(super) const JOURNAL: &[u8] = b"j";
pub(super) const META: &[u8] = b"m";
const ROW: &[u8] = b"r";
pub(super) const SCHEMA: &[u8] = b"s";

/// The format of the rows. Another number is refused. In format 1, names were rows of the service.
const FORMAT: u8 = 2;

/// The format of access keys.
const ACCESS_FORMAT: u8 = 1;

/// The shift of moments between service time and this machine's clock.
#[derive(Clone, Copy)]
pub(super) struct Shift(i64);

impl Shift {
    pub(super) fn by(ms: i64) -> Self {
        Shift(ms)
    }

    /// The largest number is not a moment: it stands for "kept until it is returned".
    fn apply(self, number: i64) -> i64 {
        match number {
            i64::MAX => i64::MAX,
            moment if self.0 != 0 => moment.saturating_add(self.0).min(i64::MAX - 1),
            moment => moment,
        }
    }
}

/// The row for the service as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    /// The service time of the last commit.
    pub(super) at_ms: i64,
}

impl Meta {
    pub(super) fn write(self) -> Vec<u8> {
        [&[FORMAT][..], &self.at_ms.to_be_bytes()].concat()
    }

    pub(super) fn read(mut bytes: &[u8]) -> Result<Self, Failure> {
        match take::<1>(&mut bytes)? {
            [FORMAT] => Ok(Meta { at_ms: i64::from_be_bytes(take(&mut bytes)?) }),
            [format] if format < FORMAT => Err(Failure::DamagedRow(
                "an earlier build of litelease has served this engine, with names of its own: \
                 begin with another prefix or schema"
                    .into(),
            )),
            [format] => Err(Failure::DamagedRow(format!(
                "a newer litelease has written the rows of this service (format {format}, this one \
                 knows {FORMAT}): update this server"
            ))),
        }
    }
}

/// Returns the start of the keys of a table's rows.
pub(super) fn row_prefix(table: &str) -> Vec<u8> {
    [ROW, table.as_bytes(), &[0]].concat()
}

/// Returns the key of a row. Keys are in the order of the numbers.
pub(super) fn row_key(table: &str, number: i64) -> Vec<u8> {
    let ordered = number.cast_unsigned() ^ (1 << 63);
    [&row_prefix(table)[..], &ordered.to_be_bytes()].concat()
}

/// Returns the number of a row.
pub(super) fn row_number(key: &[u8], prefix: &[u8]) -> Result<i64, Failure> {
    let mut rest = key.get(prefix.len()..).unwrap_or_default();
    Ok((u64::from_be_bytes(take(&mut rest)?) ^ (1 << 63)).cast_signed())
}

/// Appends a value.
pub(super) fn write_value(value: ValueRef<'_>, shift: Shift, bytes: &mut Vec<u8>) {
    match value {
        ValueRef::Null => bytes.push(0),
        ValueRef::Integer(number) => {
            bytes.push(1);
            bytes.extend(shift.apply(number).to_be_bytes());
        }
        ValueRef::Real(number) => {
            bytes.push(2);
            bytes.extend(number.to_be_bytes());
        }
        ValueRef::Text(text) => {
            bytes.push(3);
            write_bytes(text, bytes);
        }
        ValueRef::Blob(blob) => {
            bytes.push(4);
            write_bytes(blob, bytes);
        }
    }
}

/// Takes a value off the front.
pub(super) fn read_value(bytes: &mut &[u8], shift: Shift) -> Result<Value, Failure> {
    Ok(match take::<1>(bytes)? {
        [0] => Value::Null,
        [1] => Value::Integer(shift.apply(i64::from_be_bytes(take(bytes)?))),
        [2] => Value::Real(f64::from_be_bytes(take(bytes)?)),
        [3] => Value::Text(text(read_bytes(bytes)?)?),
        [4] => Value::Blob(read_bytes(bytes)?.to_vec()),
        _ => return Err(damaged()),
    })
}

/// Appends changes of rows, for the journal.
pub(super) fn write_changes(rows: &[RowChange]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, value) in rows {
        write_bytes(key, &mut bytes);
        bytes.push(u8::from(value.is_some()));
        if let Some(value) = value {
            write_bytes(value, &mut bytes);
        }
    }
    bytes
}

/// Reads changes of rows.
pub(super) fn read_changes(mut bytes: &[u8]) -> Result<Vec<RowChange>, Failure> {
    let mut rows = Vec::new();
    while !bytes.is_empty() {
        let key = read_bytes(&mut bytes)?.to_vec();
        let value = match take::<1>(&mut bytes)? {
            [0] => None,
            _ => Some(read_bytes(&mut bytes)?.to_vec()),
        };
        rows.push((key, value));
    }
    Ok(rows)
}

/// Returns the key of an access key.
pub(crate) fn access_key(name: &str) -> Vec<u8> {
    [ACCESS, name.as_bytes()].concat()
}

/// Checks whether this is the key of an access key.
pub(crate) fn is_access(key: &[u8]) -> bool {
    key.starts_with(ACCESS)
}

/// Writes an access key.
pub(crate) fn write_access(row: &AccessRow) -> Vec<u8> {
    let mut bytes = vec![ACCESS_FORMAT];
    for part in [row.name.as_bytes(), &row.hash, row.allow.as_bytes()] {
        write_bytes(part, &mut bytes);
    }
    bytes.extend(row.created_at_ms.to_be_bytes());
    bytes.extend(row.expires_at_ms.unwrap_or(i64::MAX).to_be_bytes());
    bytes
}

/// Reads an access key, which is stored under `key`.
pub(crate) fn read_access(key: &[u8], bytes: &[u8]) -> Result<AccessRow, Failure> {
    read_access_row(bytes).map_err(at(key))
}

fn read_access_row(mut bytes: &[u8]) -> Result<AccessRow, Failure> {
    let bytes = &mut bytes;
    if take::<1>(bytes)? != [ACCESS_FORMAT] {
        return Err(damaged());
    }
    let name = text(read_bytes(bytes)?)?;
    let hash = read_bytes(bytes)?.to_vec();
    let allow = text(read_bytes(bytes)?)?;
    let created_at_ms = i64::from_be_bytes(take(bytes)?);
    let expires_at_ms = match i64::from_be_bytes(take(bytes)?) {
        i64::MAX => None,
        at_ms => Some(at_ms),
    };
    Ok(AccessRow { name, hash, allow, created_at_ms, expires_at_ms })
}

/// Reads text.
pub(super) fn text(bytes: &[u8]) -> Result<String, Failure> {
    String::from_utf8(bytes.to_vec()).map_err(|_| damaged())
}

fn write_bytes(value: &[u8], bytes: &mut Vec<u8>) {
    // SQLite's values are shorter than 2³¹ bytes.
    bytes.extend(u32::try_from(value.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend(value);
}

fn read_bytes<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], Failure> {
    let length = usize::try_from(u32::from_be_bytes(take(bytes)?)).unwrap_or(usize::MAX);
    let (value, rest) = bytes.split_at_checked(length).ok_or_else(damaged)?;
    *bytes = rest;
    Ok(value)
}

pub(super) fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Failure> {
    let (first, rest) = bytes.split_first_chunk::<N>().ok_or_else(damaged)?;
    *bytes = rest;
    Ok(*first)
}

/// Adds to an error which row it is about.
pub(super) fn at(key: &[u8]) -> impl Fn(Failure) -> Failure {
    let text = format!(
        "the row {} of this service on the engine is not valid, and is never repaired or used",
        key.escape_ascii()
    );
    move |_| Failure::DamagedRow(text.clone())
}

pub(super) fn damaged() -> Failure {
    Failure::DamagedRow(
        "a row of this service on the engine is not valid, and is never repaired or used".into(),
    )
}
