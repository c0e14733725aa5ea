//! Values as they are stored: bodies of items, values on grants and checkpoints.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value as Json, json};

/// What an item, a grant or a checkpoint carries: any value that SQLite stores.
///
/// ```
/// # use litelease_client::Value;
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

    /// Writes the value as the service takes it.
    pub(crate) fn to_json(&self) -> Json {
        match self {
            Value::Null => Json::Null,
            Value::Integer(number) => json!(number),
            Value::Real(number) => json!(number),
            Value::Text(text) => json!(text),
            Value::Blob(bytes) => json!({ "base64": encode(bytes) }),
        }
    }

    /// Reads a value of an answer. `None` if it is none.
    pub(crate) fn of_json(json: &Json) -> Option<Self> {
        match json {
            Json::Null => Some(Value::Null),
            Json::String(text) => Some(Value::Text(text.clone())),
            Json::Number(number) => match number.as_i64() {
                Some(number) => Some(Value::Integer(number)),
                None => number.as_f64().map(Value::Real),
            },
            Json::Object(_) => decode(json["base64"].as_str()?).map(Value::Blob),
            Json::Bool(_) | Json::Array(_) => None,
        }
    }
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

fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn decode(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_survives_the_way_there_and_back() {
        let all: Vec<u8> = (0..=255).collect();
        let blobs = (0..=all.len()).map(|length| Value::from(&all[..length]));
        let others = [Value::Null, Value::from(i64::MIN), Value::from(0.5), Value::from("é\0\"")];
        for value in blobs.chain(others) {
            assert_eq!(Value::of_json(&value.to_json()), Some(value.clone()), "{value:?}");
        }
        assert_eq!(encode(b"lease"), "bGVhc2U=");
        assert_eq!(decode("bGVhc2U="), Some(b"lease".to_vec()));
        for wrong in ["b", "bGVh?", "bGVhc"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
