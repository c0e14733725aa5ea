//! Bodies of requests, read within limits and checked against the fields of their call.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;

use crate::answer::Refused;
use crate::calls::{Field, Kind};

/// The longest body.
pub(crate) const LONGEST: usize = 16 * 1024;

/// The fields of a body, checked.
#[derive(Default)]
pub(crate) struct Fields {
    pub(crate) count: i64,
    pub(crate) ttl: f64,
    pub(crate) wait: f64,
    pub(crate) note: Option<String>,
    pub(crate) lease: String,
}

/// Reads a body and checks it.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: Body,
    wanted: &[Field],
    patience: Duration,
) -> Result<Fields, Refused> {
    if !is_json(headers) {
        return Err(Refused::new(
            415,
            "the body must be JSON: send Content-Type: application/json",
        ));
    }
    let too_long = || Refused::new(413, "the body is longer than 16 KiB");
    if body.size_hint().lower() > LONGEST as u64 {
        return Err(too_long());
    }
    let collected = tokio::time::timeout(patience, Limited::new(body, LONGEST).collect());
    let bytes = match collected.await {
        Err(_) => return Err(Refused::new(408, "the body took too long")),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_long()),
        Ok(Err(_)) => return Err(Refused::new(400, "the body ended before it was complete")),
        Ok(Ok(collected)) => collected.to_bytes(),
    };
    check(&bytes, wanted)
}

fn is_json(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return false };
    let text = value.to_str().unwrap_or_default();
    let kind = text.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

/// Checks the fields of a JSON object against those that are wanted.
pub(crate) fn check(bytes: &[u8], wanted: &[Field]) -> Result<Fields, Refused> {
    let Object(members) = serde_json::from_slice(bytes).map_err(|error| {
        // Its own text may have something of the body in it.
        let (line, column) = (error.line(), error.column());
        Refused::new(400, format!("the body is not a JSON object (line {line}, column {column})"))
    })?;
    let mut fields = Fields::default();
    let mut seen: Vec<&str> = Vec::new();
    for (name, value) in &members {
        let Some(field) = wanted.iter().find(|field| field.name == name) else {
            let name: String = name.chars().take(40).collect();
            let known: Vec<&str> = wanted.iter().map(|field| field.name).collect();
            let known = known.join(", ");
            return Err(Refused::new(400, format!("unknown field {name:?}; known are {known}")));
        };
        if seen.contains(&field.name) {
            return Err(Refused::new(400, format!("{} is given twice", field.name)));
        }
        seen.push(field.name);
        fields.take(field, value)?;
    }
    match wanted.iter().find(|field| field.required && !seen.contains(&field.name)) {
        Some(field) => Err(Refused::new(400, format!("{} is missing", field.name))),
        None => Ok(fields),
    }
}

/// A JSON object with its members as they stand there, twice if they are there twice.
struct Object(Vec<(String, Value)>);

impl<'de> serde::Deserialize<'de> for Object {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Object;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Object, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Object(members))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

impl Fields {
    fn take(&mut self, field: &Field, value: &Value) -> Result<(), Refused> {
        let refuse = |must: &str| Err(Refused::new(400, format!("{} must be {must}", field.name)));
        let seconds =
            |least: fn(f64) -> bool| value.as_f64().filter(|n| n.is_finite() && least(*n));
        match field.kind {
            Kind::Count => match value.as_i64() {
                Some(count @ 0..) => self.count = count,
                _ => return refuse("a whole number, 0 or more"),
            },
            Kind::Ttl => match seconds(|seconds| seconds > 0.0) {
                Some(ttl) => self.ttl = ttl,
                None => return refuse("a number of seconds above 0"),
            },
            Kind::Wait => match seconds(|seconds| seconds >= 0.0) {
                Some(wait) => self.wait = wait,
                None => return refuse("a number of seconds, 0 or more"),
            },
            Kind::Note => match value.as_str() {
                Some(note) if note.len() <= 200 => self.note = Some(note.to_owned()),
                _ => return refuse("a text of at most 200 bytes"),
            },
            Kind::Text => match value.as_str() {
                Some(text) => self.lease = text.to_owned(),
                None => return refuse("a text"),
            },
        }
        Ok(())
    }
}
