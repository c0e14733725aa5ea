//! Parses the bodies of requests and checks them against the fields of their call.

use std::fmt::{self, Formatter};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use crate::answer::HttpError;
use crate::calls::{Field, FieldKind};

/// The longest body that is accepted, in bytes.
pub(crate) const LONGEST: usize = 16 * 1024;

/// The checked fields of a body. Fields that the call does not have keep their default.
#[derive(Default)]
pub(crate) struct Fields {
    pub(crate) count: i64,
    pub(crate) ttl: f64,
    pub(crate) wait: f64,
    pub(crate) note: Option<String>,
    pub(crate) lease: String,
    /// Which fields the body has, as bits.
    given: u8,
}

/// Parses a JSON object and checks its fields against `wanted`.
pub(crate) fn check(bytes: &[u8], wanted: &[Field]) -> Result<Fields, HttpError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let checked = json.deserialize_map(Members(wanted));
    checked.and_then(|checked| json.end().map(|()| checked)).unwrap_or_else(|error| {
        // The text of the parser's error may quote the body, which may hold secrets.
        let (line, column) = (error.line(), error.column());
        let text = format!("the body is not a JSON object (line {line}, column {column})");
        Err(HttpError::new(400, text))
    })
}

/// Visits the members of a JSON object. An error in a member is reported after all were read, so
/// that a body that is not JSON is refused for that.
struct Members<'a>(&'a [Field]);

impl<'de> Visitor<'de> for Members<'_> {
    type Value = Result<Fields, HttpError>;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut fields, mut checked) = (Fields::default(), Ok(()));
        while let Some(field) = map.next_key_seed(Name(self.0))? {
            let value = map.next_value()?;
            checked = checked.and_then(|()| fields.take(field?, value));
        }
        Ok(checked.and_then(|()| fields.complete(self.0)))
    }
}

/// Visits the name of a member, which must be one of these fields.
struct Name<'a>(&'a [Field]);

impl<'de, 'a> DeserializeSeed<'de> for Name<'a> {
    type Value = Result<&'a Field, HttpError>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'a> Visitor<'_> for Name<'a> {
    type Value = Result<&'a Field, HttpError>;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().find(|field| field.name == name).ok_or_else(|| {
            let name: String = name.chars().take(40).collect();
            let known: Vec<&str> = self.0.iter().map(|field| field.name).collect();
            let known = known.join(", ");
            HttpError::new(400, format!("unknown field {name:?}; known are {known}"))
        }))
    }
}

impl Fields {
    fn take(&mut self, field: &Field, value: Value) -> Result<(), HttpError> {
        if self.has(field) {
            return Err(HttpError::new(400, format!("{} is given twice", field.name)));
        }
        self.given |= bit(field);
        let refuse =
            |must: &str| Err(HttpError::new(400, format!("{} must be {must}", field.name)));
        let seconds =
            |least: fn(f64) -> bool| value.as_f64().filter(|n| n.is_finite() && least(*n));
        match field.kind {
            FieldKind::Count => match value.as_i64() {
                Some(count @ 0..) => self.count = count,
                _ => return refuse("a whole number, 0 or more"),
            },
            FieldKind::Ttl => match seconds(|seconds| seconds > 0.0) {
                Some(ttl) => self.ttl = ttl,
                None => return refuse("a number of seconds above 0"),
            },
            FieldKind::Wait => match seconds(|seconds| seconds >= 0.0) {
                Some(wait) => self.wait = wait,
                None => return refuse("a number of seconds, 0 or more"),
            },
            FieldKind::Note => match value {
                Value::String(note) if note.len() <= 200 => self.note = Some(note),
                _ => return refuse("a text of at most 200 bytes"),
            },
            FieldKind::Text => match value {
                Value::String(text) => self.lease = text,
                _ => return refuse("a text"),
            },
        }
        Ok(())
    }

    /// Checks that no required field is missing.
    fn complete(self, wanted: &[Field]) -> Result<Self, HttpError> {
        match wanted.iter().find(|field| field.required && !self.has(field)) {
            Some(field) => Err(HttpError::new(400, format!("{} is missing", field.name))),
            None => Ok(self),
        }
    }

    fn has(&self, field: &Field) -> bool {
        self.given & bit(field) != 0
    }
}

/// Returns the bit of a field in `given`. No call has two fields of one kind.
fn bit(field: &Field) -> u8 {
    1 << field.kind as u8
}
