//! Stored values as JSON: bodies of items, values on grants and checkpoints.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use litelease::rusqlite::types::Value;
use litelease_store::Value as Stored;
use serde_json::{Value as Json, json};

/// Writes a value as JSON: bytes as `{"base64":…}`, everything else as it is.
pub(crate) fn to_json(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Integer(number) => json!(number),
        Value::Real(number) => json!(number),
        Value::Text(text) => json!(text),
        Value::Blob(bytes) => json!({ "base64": encode(bytes) }),
    }
}

/// Copies a value out of a row.
pub(crate) fn owned(value: Stored<'_>) -> Value {
    match value {
        Stored::Null => Value::Null,
        Stored::Integer(number) => Value::Integer(number),
        Stored::Real(number) => Value::Real(number),
        Stored::Text(text) => Value::Text(text.into()),
        Stored::Blob(bytes) => Value::Blob(bytes.into()),
    }
}

/// Reads a value that a client has sent. `None` if it is none.
pub(crate) fn of_json(json: Json) -> Option<Value> {
    match json {
        Json::Null => Some(Value::Null),
        Json::String(text) => Some(Value::Text(text)),
        Json::Number(number) if number.is_f64() => number.as_f64().map(Value::Real),
        Json::Number(number) => number.as_i64().map(Value::Integer),
        Json::Object(members) if members.len() == 1 => {
            members.get("base64").and_then(Json::as_str).and_then(decode).map(Value::Blob)
        }
        Json::Object(_) | Json::Bool(_) | Json::Array(_) => None,
    }
}

/// Returns how many bytes a value has, as far as a limit is concerned.
pub(crate) fn len(value: &Value) -> usize {
    match value {
        Value::Text(text) => text.len(),
        Value::Blob(bytes) => bytes.len(),
        Value::Null | Value::Integer(_) | Value::Real(_) => 8,
    }
}

fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Decodes a text with its padding, exactly as it is encoded.
fn decode(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_survives_the_way_there_and_back() {
        let all: Vec<u8> = (0..=255).collect();
        let blobs = (0..=all.len()).filter_map(|length| all.get(..length));
        let blobs = blobs.map(|bytes| Value::Blob(bytes.into()));
        let others = [
            Value::Null,
            Value::Integer(i64::MIN),
            Value::Integer(i64::MAX),
            Value::Real(0.5),
            Value::Text("é\0\"".into()),
        ];
        for value in blobs.chain(others) {
            assert_eq!(of_json(to_json(&value)), Some(value.clone()), "{value:?}");
        }
        assert_eq!(encode(b"lease"), "bGVhc2U=");
        for wrong in ["b", "bGVh?AAA", "bGVhc", "bGVhc2U", "====", "bGV=c2U=", "bGVhc2V="] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
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
            assert_eq!(of_json(wrong.clone()), None, "{wrong}");
        }
    }
}
