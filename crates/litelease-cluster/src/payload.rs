//! The payload of a grant: its value, its limits and the request for it, stored beside the row.

use litelease_core::{Conditions, Limits, Request};
use serde_json::{Map, Number, Value as Json, json};

use crate::change::{Decision, Kind, Operation, RowAtNow};
use crate::cluster::Cluster;
use crate::engine::{Error, Result, SideKind, SideRow};
use crate::value::Value;

/// Everything that a grant carries. A plain one carries nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Payload {
    /// The value.
    pub value: Value,
    /// The limits.
    pub limits: Option<Limits>,
    /// The latest request, and its requester.
    pub request: Option<(String, Request)>,
}

impl Payload {
    /// Reads what is beside the row of a name. Where there is nothing, the payload is empty.
    pub fn read(name: &str, side: Option<&SideRow>) -> Result<Self> {
        side.map_or(Ok(Payload::default()), |side| {
            Payload::parse(side).map_err(|reason| Error::InvalidLeaseRow {
                name: name.into(),
                reason: format!("what is stored beside it: {reason}"),
            })
        })
    }

    fn parse(side: &SideRow) -> std::result::Result<Self, String> {
        let fields: Map<String, Json> =
            serde_json::from_str(&side.text).map_err(|error| error.to_string())?;
        let number = |field: &str| match fields.get(field) {
            None => Ok(None),
            Some(number) => {
                number.as_i64().map(Some).ok_or_else(|| format!("{field} is no integer"))
            }
        };
        let requester = match fields.get("requester") {
            None => None,
            Some(Json::String(requester)) => Some(requester.clone()),
            Some(_) => return Err("requester is no text".into()),
        };
        let (progress_within_ms, not_after_ms) = (number("within")?, number("not_after")?);
        let token = side.token;
        let limits = number("progress_at")?.map(|progress_at_ms| Limits {
            token,
            progress_within_ms,
            progress_at_ms,
            not_after_ms,
        });
        let times = number("until")?.zip(number("repeated_at")?);
        let request = requester.zip(times).map(|(requester, (until_ms, repeated_at_ms))| {
            (requester, Request { token, until_ms, repeated_at_ms })
        });
        Ok(Payload { value: read_value(fields.get("value"))?, limits, request })
    }

    /// Returns what is stored beside a row under this token.
    pub fn to_side(&self, token: i64, attempt: i64) -> SideRow {
        let mut fields = Map::new();
        let mut add = |field: &str, number: Option<i64>| {
            if let Some(number) = number {
                fields.insert(field.into(), number.into());
            }
        };
        if let Some(limits) = &self.limits {
            add("within", limits.progress_within_ms);
            add("progress_at", Some(limits.progress_at_ms));
            add("not_after", limits.not_after_ms);
        }
        if let Some((_, request)) = &self.request {
            add("until", Some(request.until_ms));
            add("repeated_at", Some(request.repeated_at_ms));
        }
        if let Some((requester, _)) = &self.request {
            fields.insert("requester".into(), requester.as_str().into());
        }
        if self.value != Value::Null {
            fields.insert("value".into(), written_value(&self.value));
        }
        let text = Json::Object(fields).to_string();
        SideRow { kind: SideKind::Payload, version: 0, token, attempt, text }
    }

    /// Returns what a renewal depends on besides its row.
    pub(crate) fn conditions(&self) -> Conditions {
        Conditions {
            limits: self.limits,
            request: self.request.as_ref().map(|(_, request)| *request),
        }
    }
}

impl Cluster {
    /// Checks whether the grant carried something when this handle wrote the row last.
    pub(crate) fn has_payload(&self, name: &str) -> bool {
        let cache = self.cache();
        let row = cache.known(name).and_then(|known| known.loaded.rows.first());
        row.is_some_and(|row| row.side(SideKind::Payload).is_some())
    }

    /// Does a verb on a name that changes the payload of its grant alone. `kind` tells whether the
    /// grant must be live.
    pub(crate) fn change_payload<A: Clone>(
        &self,
        name: &str,
        kind: Kind,
        decide: impl Fn(&RowAtNow, Payload) -> Result<(Option<Payload>, A)>,
    ) -> Result<A> {
        self.check_name_to_hold(name)?;
        let decide = |at_now: &RowAtNow, _| {
            let (payload, answer) = decide(at_now, at_now.payload()?)?;
            Ok(Decision::of_payload(payload, answer))
        };
        let verb = Operation { name, kind, ttl_ms: None, beside: true, decide: &decide };
        self.change(&verb).map(|answered| answered.answer)
    }
}

/// The form of a value in JSON. Fractions and bytes are text, because JSON does not keep them.
fn written_value(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Integer(number) => Json::Number(Number::from(*number)),
        Value::Real(number) => json!({ "real": format!("{number:?}") }),
        Value::Text(text) => text.as_str().into(),
        Value::Blob(bytes) => {
            json!({ "blob": bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() })
        }
    }
}

fn read_value(value: Option<&Json>) -> std::result::Result<Value, String> {
    let damaged = || "value is no value".to_owned();
    match value {
        None | Some(Json::Null) => Ok(Value::Null),
        Some(Json::Number(number)) => number.as_i64().map(Value::Integer).ok_or_else(damaged),
        Some(Json::String(text)) => Ok(Value::Text(text.clone())),
        Some(Json::Object(fields)) => {
            let text = |field| fields.get(field).and_then(Json::as_str);
            let real = text("real").and_then(|text| text.parse().ok()).map(Value::Real);
            real.or_else(|| text("blob").and_then(bytes_of).map(Value::Blob)).ok_or_else(damaged)
        }
        Some(_) => Err(damaged()),
    }
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    let digit = |at: u8| char::from(at).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |pair: &[u8]| Some(digit(*pair.first()?)? * 16 + digit(*pair.get(1)?)?);
    pairs.map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_read_as_it_was_written() {
        let limits = Limits {
            token: 7,
            progress_within_ms: Some(1),
            progress_at_ms: i64::MIN,
            not_after_ms: Some(i64::MAX),
        };
        let request = Request { token: 7, until_ms: 5, repeated_at_ms: -5 };
        let values = [
            Value::Null,
            Value::Integer(i64::MIN),
            Value::Real(0.1 + 0.2),
            Value::Real(f64::NEG_INFINITY),
            Value::Text("a \"b\"\0🦀".into()),
            Value::Blob(vec![0, 255, 16]),
        ];
        for value in values {
            let requests = [None, Some(("b\0".to_owned(), request))];
            for (limits, request) in [None, Some(limits)].into_iter().zip(requests) {
                let payload = Payload { value: value.clone(), limits, request };
                assert_eq!(Payload::parse(&payload.to_side(7, 1)), Ok(payload));
            }
        }
    }

    #[test]
    fn a_damaged_payload_is_refused() {
        for (text, named) in [
            ("", "EOF"),
            ("[]", "map"),
            (r#"{"within":"1"}"#, "within is no integer"),
            (r#"{"requester":1}"#, "requester is no text"),
            (r#"{"value":1.5}"#, "value is no value"),
            (r#"{"value":{"blob":"0"}}"#, "value is no value"),
            (r#"{"value":{"blob":"+0"}}"#, "value is no value"),
        ] {
            let side = SideRow { text: text.into(), ..Payload::default().to_side(1, 1) };
            let refused = Payload::parse(&side).err().unwrap_or_default();
            assert!(refused.contains(named), "{text}: {refused}");
        }
    }
}
