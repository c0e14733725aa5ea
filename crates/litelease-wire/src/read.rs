//! Reads the bodies and queries of requests, and says what is wrong with them.

use std::fmt::{self, Formatter};

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value as Json;

use crate::call::Field;
use crate::field::{Kind, Wrong};

/// A request that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The status of the answer: 400, or 413 for a field that is too long.
    pub status: u16,
    /// Says what is wrong and what to do.
    pub text: String,
}

/// The members of a JSON object in their order, each as often as it is given.
#[derive(Default)]
pub struct Members(pub(crate) Vec<(String, Json)>);

impl Members {
    /// Reads the body of a request.
    pub fn of_body(bytes: &[u8]) -> Result<Self, Invalid> {
        serde_json::from_slice(bytes).map_err(|error| {
            // The text of the parser's error may quote the body, which may hold secrets.
            let (line, column) = (error.line(), error.column());
            invalid(format!("the body is not a JSON object (line {line}, column {column})"))
        })
    }

    /// Reads the query of a request.
    pub fn of_query(query: &str) -> Result<Self, Invalid> {
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decode(name)?, Json::String(decode(value)?)))
        });
        Ok(Members(pairs.collect::<Result<_, _>>()?))
    }

    /// Refuses all members: the call takes none in its query.
    pub fn refuse_all(&self) -> Result<(), Invalid> {
        self.0.first().map_or(Ok(()), |(name, _)| Err(unknown(name, &[])))
    }
}

/// Decodes a part of a query.
fn decode(text: &str) -> Result<String, Invalid> {
    let refuse = || invalid("the query must be percent-encoded UTF-8");
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        bytes.push(match first {
            b'+' => b' ',
            b'%' => {
                let (digits, after) = rest.split_at_checked(2).ok_or_else(refuse)?;
                rest = after;
                let digit = |byte: u8| char::from(byte).to_digit(16).ok_or_else(refuse);
                let [high, low] = *digits else { return Err(refuse()) };
                // Both are below 16.
                (digit(high)? * 16 + digit(low)?) as u8
            }
            byte => *byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| refuse())
}

pub(crate) fn invalid(text: impl Into<String>) -> Invalid {
    Invalid { status: 400, text: text.into() }
}

/// Refuses a field that the call does not have.
pub(crate) fn unknown(name: &str, fields: &[Field]) -> Invalid {
    let name: String = name.chars().take(40).collect();
    let known: Vec<&str> = fields.iter().map(|field| field.name).collect();
    let known = if known.is_empty() { "none".into() } else { known.join(", ") };
    invalid(format!("unknown field {name:?}; known are {known}"))
}

/// Reads a field, which must not have been given before.
pub(crate) fn set<K: Kind>(
    name: &str,
    field: &mut Option<K::Value>,
    value: Json,
) -> Result<(), Invalid> {
    if field.is_some() {
        return Err(invalid(format!("{name} is given twice: give it once")));
    }
    *field = Some(K::read(value).map_err(|wrong| match wrong {
        Wrong::Must(must) => invalid(format!("{name} must be {must}")),
        Wrong::TooLong(must) => Invalid { status: 413, text: format!("{name} must be {must}") },
    })?);
    Ok(())
}

/// Returns a field, or what it is if it is left out.
pub(crate) fn get<K: Kind>(name: &str, field: Option<K::Value>) -> Result<K::Value, Invalid> {
    field.or_else(K::missing).ok_or_else(|| invalid(format!("{name} is missing")))
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Object)
    }
}

struct Object;

impl<'de> Visitor<'de> for Object {
    type Value = Members;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Members(members))
    }
}
