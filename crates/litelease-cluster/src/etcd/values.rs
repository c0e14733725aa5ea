//! Keys and values: the form of a row in etcd.

use litelease_core::Epoch;
use serde_json::{Map, Value, json};

use crate::engine::{
    Error, FORMAT, LoadedRow, Result, SideKind, SideRow, StoredRow, StoredTenure, TokenFloor,
    first_behind,
};
use crate::etcd::messages::KeyValue;

/// The prefix of keys if the URL has none.
const DEFAULT_PREFIX: &str = "litelease";

/// The keys below one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    base: String,
}

impl Keys {
    pub(crate) fn below(prefix: &str) -> Self {
        let prefix = if prefix.is_empty() { DEFAULT_PREFIX } else { prefix };
        Keys { base: format!("{prefix}/") }
    }

    pub(crate) fn floor(&self) -> Vec<u8> {
        format!("{}m", self.base).into()
    }

    pub(crate) fn row(&self, name: &str) -> Vec<u8> {
        format!("{}r/{name}", self.base).into()
    }

    pub(crate) fn token(&self, name: &str) -> Vec<u8> {
        format!("{}t/{name}", self.base).into()
    }

    /// Returns the key of what is beside a row.
    pub(crate) fn side(&self, kind: SideKind, name: &str) -> Vec<u8> {
        format!("{}{}/{name}", self.base, kind.letter()).into()
    }

    /// Returns the first key of all that is beside rows, and the first behind it.
    pub(crate) fn sides(&self, kind: SideKind) -> (Vec<u8>, Vec<u8>) {
        (self.side(kind, ""), format!("{}{}0", self.base, kind.letter()).into())
    }

    /// Returns the first key of all rows and what is beside them, and the first behind them.
    pub(crate) fn rows_and_sides(&self) -> (Vec<u8>, Vec<u8>) {
        (self.sides(SideKind::Payload).0, self.rows().1)
    }

    pub(crate) fn service(&self, key: &[u8]) -> Vec<u8> {
        [format!("{}s/", self.base).as_bytes(), key].concat()
    }

    /// Checks whether a key is for what is stored here.
    pub(crate) fn is_ours(&self, key: &[u8]) -> bool {
        key.starts_with(self.base.as_bytes())
    }

    /// Returns the first key of all rows, and the first behind them.
    pub(crate) fn rows(&self) -> (Vec<u8>, Vec<u8>) {
        (self.row(""), format!("{}r0", self.base).into())
    }

    /// Returns the first key of the service's rows that begin with `prefix`, and the first behind
    /// them.
    pub(crate) fn services(&self, prefix: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let first = self.service(prefix);
        let end = first_behind(&first).unwrap_or_default();
        (first, end)
    }

    /// Reads a row with its name.
    pub(crate) fn read_row(&self, pair: &KeyValue) -> Result<LoadedRow> {
        let name = pair.key.get(self.row("").len()..).unwrap_or_default();
        let name = std::str::from_utf8(name).map_err(|_| Error::InvalidLeaseRow {
            name: String::from_utf8_lossy(name).into_owned(),
            reason: "the name is no UTF-8".into(),
        })?;
        let row = read_row(&pair.value);
        let row = row.map_err(|reason| Error::InvalidLeaseRow { name: name.into(), reason })?;
        let (version, row) = (pair.mod_revision, Some(row));
        Ok(LoadedRow { version, row, ..LoadedRow::absent(name) })
    }

    /// Reads what is beside a row.
    pub(crate) fn read_side(&self, name: &str, kind: SideKind, pair: &KeyValue) -> Result<SideRow> {
        let read = || {
            let mut fields = fields(&pair.value)?;
            let token = integer(&mut fields, "token")?;
            let attempt = attempt_id(&mut fields, "attempt")?;
            let text = Value::Object(fields).to_string();
            Ok(SideRow { kind, version: pair.mod_revision, token, attempt, text })
        };
        read().map_err(|reason: String| Error::InvalidLeaseRow {
            name: name.into(),
            reason: format!("what is stored beside it: {reason}"),
        })
    }

    /// Reads the token that was left of a row that was deleted when etcd was full. The version is
    /// that of no row.
    pub(crate) fn read_token(&self, name: &str, pair: &KeyValue) -> Result<LoadedRow> {
        let token = std::str::from_utf8(&pair.value).ok().and_then(|text| text.parse().ok());
        let Some(token @ 1..) = token else {
            let reason = "its token is no positive number".into();
            return Err(Error::InvalidLeaseRow { name: name.into(), reason });
        };
        let row = StoredRow { token, tenure: None, since_ms: 0, at_ms: 0, attempt: 0, ended: 0 };
        Ok(LoadedRow { row: Some(row), ..LoadedRow::absent(name) })
    }

    /// Reads the floor.
    pub(crate) fn read_floor(&self, pair: &KeyValue) -> Result<TokenFloor> {
        let mismatch = |reason: String| Error::SchemaMismatch {
            table: String::from_utf8_lossy(&self.floor()).into_owned(),
            reason,
        };
        let mut fields = fields(&pair.value).map_err(mismatch)?;
        let format = integer(&mut fields, "format").map_err(mismatch)?;
        if format > FORMAT {
            return Err(Error::NewerFormat { found: format, known: FORMAT });
        }
        let floor = integer(&mut fields, "floor").map_err(mismatch)?;
        let boot = integer(&mut fields, "boot").map_err(mismatch)?;
        if format < 1 || floor < 0 || boot < 0 {
            return Err(mismatch("a number is too small".into()));
        }
        no_more(&fields).map_err(mismatch)?;
        Ok(TokenFloor { epoch: Epoch { floor, boot }, version: pair.mod_revision })
    }
}

pub(crate) fn write_floor(epoch: Epoch) -> Vec<u8> {
    json!({ "format": FORMAT, "floor": epoch.floor, "boot": epoch.boot }).to_string().into()
}

pub(crate) fn write_row(row: &StoredRow) -> Vec<u8> {
    // As text: not every reader of JSON has 64-bit integers.
    let attempt = format!("{:x}", row.attempt);
    let mut value = match &row.tenure {
        Some(StoredTenure { owner, until_ms, ttl_ms }) => json!({
            "token": row.token, "owner": owner, "since": row.since_ms, "until": until_ms,
            "at": row.at_ms, "ttl": ttl_ms, "attempt": attempt
        }),
        None => json!({ "token": row.token, "at": row.at_ms, "attempt": attempt }),
    };
    if let (Some(fields), true) = (value.as_object_mut(), row.ended != 0) {
        fields.insert("ended".into(), format!("{:x}", row.ended).into());
    }
    value.to_string().into()
}

fn read_row(value: &[u8]) -> Result<StoredRow, String> {
    let mut fields = fields(value)?;
    let token = integer(&mut fields, "token")?;
    let at_ms = integer(&mut fields, "at")?;
    let attempt = attempt_id(&mut fields, "attempt")?;
    let ended = match fields.contains_key("ended") {
        false => 0,
        true => attempt_id(&mut fields, "ended")?,
    };
    let (tenure, since_ms) = match fields.contains_key("owner") {
        false => (None, 0),
        true => {
            let owner = text(&mut fields, "owner")?;
            let until_ms = integer(&mut fields, "until")?;
            let ttl_ms = integer(&mut fields, "ttl")?;
            let since_ms = integer(&mut fields, "since")?;
            (Some(StoredTenure { owner, until_ms, ttl_ms }), since_ms)
        }
    };
    no_more(&fields)?;
    if token < 1 {
        return Err("token is less than 1".into());
    }
    Ok(StoredRow { token, tenure, since_ms, at_ms, attempt, ended })
}

/// Writes what is beside a row: its fields, with the token and the attempt.
pub(crate) fn write_side(side: &SideRow) -> Vec<u8> {
    let mut fields = fields(side.text.as_bytes()).unwrap_or_default();
    fields.insert("token".into(), side.token.into());
    fields.insert("attempt".into(), format!("{:x}", side.attempt).into());
    Value::Object(fields).to_string().into()
}

type Fields = Map<String, Value>;

fn fields(value: &[u8]) -> Result<Fields, String> {
    match serde_json::from_slice(value) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err("the value is no JSON object".into()),
        Err(error) => Err(format!("the value is no JSON: {error}")),
    }
}

fn integer(fields: &mut Fields, name: &str) -> Result<i64, String> {
    match fields.remove(name) {
        Some(value) => value.as_i64().ok_or_else(|| format!("{name} is no integer")),
        None => Err(format!("{name} is missing")),
    }
}

fn text(fields: &mut Fields, name: &str) -> Result<String, String> {
    match fields.remove(name) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(format!("{name} is no text")),
        None => Err(format!("{name} is missing")),
    }
}

fn attempt_id(fields: &mut Fields, name: &str) -> Result<i64, String> {
    let attempt = text(fields, name)?;
    i64::from_str_radix(&attempt, 16).map_err(|_| format!("{name} is no number"))
}

fn no_more(fields: &Fields) -> Result<(), String> {
    match fields.keys().next() {
        Some(name) => Err(format!("{name} is no field of ours, or goes with others")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_as_it_was_written() {
        let tenure = StoredTenure { owner: "a \"b\"\0🦀".into(), until_ms: -1, ttl_ms: i64::MAX };
        for (tenure, since_ms, ended) in [(None, 0, 0), (Some(tenure), -2, 7)] {
            let (token, at_ms, attempt) = (i64::MAX, i64::MIN, i64::MAX);
            let row = StoredRow { token, tenure, since_ms, at_ms, attempt, ended };
            assert_eq!(read_row(&write_row(&row)), Ok(row));
        }
    }

    #[test]
    fn rows_of_another_form_are_refused_and_the_field_is_named() {
        for (value, named) in [
            ("", "no JSON"),
            ("nonsense", "no JSON"),
            ("[]", "no JSON object"),
            ("{}", "token is missing"),
            (r#"{"token":"1","at":1,"attempt":"1"}"#, "token is no integer"),
            (r#"{"token":1.5,"at":1,"attempt":"1"}"#, "token is no integer"),
            (r#"{"token":0,"at":1,"attempt":"1"}"#, "token is less than 1"),
            (r#"{"token":9223372036854775808,"at":1,"attempt":"1"}"#, "token is no integer"),
            (r#"{"token":1,"attempt":"1"}"#, "at is missing"),
            (r#"{"token":1,"at":1}"#, "attempt is missing"),
            (r#"{"token":1,"at":1,"attempt":1}"#, "attempt is no text"),
            (r#"{"token":1,"at":1,"attempt":"x"}"#, "attempt is no number"),
            (r#"{"token":1,"at":1,"attempt":"1","owner":"a"}"#, "until is missing"),
            (
                r#"{"token":1,"at":1,"attempt":"1","owner":null,"until":1,"ttl":1}"#,
                "owner is no text",
            ),
            (
                r#"{"token":1,"at":1,"attempt":"1","owner":"a","until":1,"ttl":1}"#,
                "since is missing",
            ),
            (r#"{"token":1,"at":1,"attempt":"1","until":1}"#, "until is no field"),
            (r#"{"token":1,"at":1,"attempt":"1","color":1}"#, "color is no field"),
            (r#"{"token":1,"at":1,"attempt":"1","ended":1}"#, "ended is no text"),
        ] {
            let refused = read_row(value.as_bytes()).err().unwrap_or_default();
            assert!(refused.contains(named), "{value}: {refused}");
        }
    }

    #[test]
    fn marks_of_another_form_are_refused() {
        let keys = Keys::below("");
        let read = |value: &str| {
            let value = value.as_bytes().to_vec();
            keys.read_floor(&KeyValue { key: keys.floor(), mod_revision: 7, value })
        };
        let epoch = Epoch { floor: 1 << 40, boot: 3 };
        let value = String::from_utf8(write_floor(epoch)).unwrap_or_default();
        assert_eq!(read(&value), Ok(TokenFloor { epoch, version: 7 }));
        for (value, kind) in [
            (r#"{"format":2,"floors":[]}"#, "NewerFormat"),
            (r#"{"format":1,"floor":-1,"boot":1}"#, "SchemaMismatch"),
            (r#"{"format":0,"floor":1,"boot":1}"#, "SchemaMismatch"),
            (r#"{"format":1,"floor":1,"boot":1,"more":1}"#, "SchemaMismatch"),
            (r#"{"floor":1,"boot":1}"#, "SchemaMismatch"),
            ("7", "SchemaMismatch"),
        ] {
            assert_eq!(read(value).err().map(|error| error.kind()), Some(kind), "{value}");
        }
    }
}
