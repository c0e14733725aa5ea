//! Stored values: bodies of items, values on grants and checkpoints.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, Serializer};
use serde_json::{Value as Json, json};

use crate::answer::{Described, Schemas, define, object, reference};

/// A value of an item, a grant or a checkpoint: anything that SQLite stores.
///
/// On the wire, bytes are `{"base64":…}`, and everything else is as it is.
///
/// ```
/// # use litelease_wire::Value;
/// assert_eq!(Value::from("hello"), Value::Text("hello".into()));
/// assert_eq!(Value::from(vec![0xff]), Value::Blob(vec![0xff]));
/// assert_eq!(Value::from("hello").as_bytes(), Some(&b"hello"[..]));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// No value.
    Null,
    /// A whole number.
    Integer(i64),
    /// A number.
    Real(f64),
    /// A text.
    Text(String),
    /// Bytes.
    Blob(Vec<u8>),
}

impl Value {
    /// Returns the text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the bytes of a text or a blob.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Value::Text(text) => Some(text.as_bytes()),
            Value::Blob(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns how many bytes the value has, as far as a limit is concerned.
    pub(crate) fn len(&self) -> usize {
        self.as_bytes().map_or(8, <[u8]>::len)
    }

    /// Reads a value. `None` if it is none.
    pub(crate) fn from_json(json: Json) -> Option<Self> {
        match json {
            Json::Null => Some(Value::Null),
            Json::String(text) => Some(Value::Text(text)),
            Json::Number(number) if number.is_f64() => number.as_f64().map(Value::Real),
            Json::Number(number) => number.as_i64().map(Value::Integer),
            Json::Object(members) if members.len() == 1 => {
                STANDARD.decode(members.get("base64")?.as_str()?).ok().map(Value::Blob)
            }
            Json::Object(_) | Json::Bool(_) | Json::Array(_) => None,
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Null => to.serialize_unit(),
            Value::Integer(number) => to.serialize_i64(*number),
            Value::Real(number) => to.serialize_f64(*number),
            Value::Text(text) => to.serialize_str(text),
            Value::Blob(bytes) => to.collect_map([("base64", STANDARD.encode(bytes))]),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Value::from_json(Json::deserialize(from)?).ok_or_else(|| Error::custom("no value"))
    }
}

impl Described for Value {
    fn schema(schemas: &mut Schemas) -> Json {
        define(schemas, "Value", |_| stored());
        reference("Value")
    }
}

/// Describes a stored value.
pub(crate) fn stored() -> Json {
    let base64 = json!({
        "type": "string",
        "contentEncoding": "base64",
        "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$",
    });
    let bytes = object([("base64", true, base64)]);
    let integer = json!({ "type": "integer", "minimum": i64::MIN, "maximum": i64::MAX });
    json!({ "oneOf": [{ "type": "string" }, integer, { "type": "null" }, bytes] })
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(text)
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Value::Blob(bytes)
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Value::Blob(bytes.into())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Value::Integer(number)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Value::Real(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_survives_the_way_there_and_back() {
        let all: Vec<u8> = (0..=255).collect();
        let blobs = (0..=all.len()).map(|length| Value::from(&all[..length]));
        let integers = [i64::MIN, i64::MAX].map(Value::from);
        let others = [Value::Null, Value::from(0.5), Value::from("é\0\"")];
        for value in blobs.chain(integers).chain(others) {
            assert_eq!(Value::from_json(json!(value)), Some(value.clone()), "{value:?}");
        }
        assert_eq!(json!(Value::from(&b"lease"[..])), json!({ "base64": "bGVhc2U=" }));
    }

    #[test]
    fn what_sqlite_cannot_store_is_no_value() {
        for wrong in [
            json!(true),
            json!([]),
            json!({}),
            json!({ "base64": 7 }),
            json!({ "base64": "", "x": 1 }),
            json!(u64::MAX),
        ] {
            assert_eq!(Value::from_json(wrong.clone()), None, "{wrong}");
        }
        for wrong in ["b", "bGVh?AAA", "bGVhc", "bGVhc2U", "====", "bGV=c2U=", "bGVhc2V="] {
            assert_eq!(Value::from_json(json!({ "base64": wrong })), None, "{wrong}");
        }
    }
}
