//! Bodies of requests, checked against the fields of their call.

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
