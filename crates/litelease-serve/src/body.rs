//! Parses the bodies and queries of requests and checks them against the fields of their call.

use std::fmt::{self, Formatter};

use litelease::rusqlite::types;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use crate::answer::HttpError;
use crate::calls::{Field, FieldKind};
use crate::value;

/// The longest body that is accepted, in bytes.
pub(crate) const LONGEST: usize = 16 * 1024;

/// The most bytes that an item of a queue may have.
pub(crate) const LONGEST_ITEM: usize = 1024 * 1024;

/// The longest body of a request that sends an item: base64 makes it longer.
pub(crate) const LONGEST_SEND: usize = LONGEST_ITEM + LONGEST_ITEM / 2;

/// The most bytes that the note on an item may have.
const LONGEST_NOTE: usize = 1000;

/// Tokens stay below this number, so that every reader of JSON represents them exactly.
const LARGEST_TOKEN: i64 = 1 << 53;

/// The most leases that one page has.
pub(crate) const MOST_LEASES: usize = 1000;

/// The checked fields of a request. Fields that the call does not have keep their default.
#[derive(Default)]
pub(crate) struct Fields {
    pub(crate) count: i64,
    pub(crate) ttl: f64,
    pub(crate) wait: f64,
    pub(crate) note: Option<String>,
    /// The UUID of a lease on a slot, or the secret of a grant.
    pub(crate) lease: String,
    pub(crate) name: Option<String>,
    pub(crate) owner: String,
    pub(crate) min_token: i64,
    pub(crate) prefix: Option<String>,
    pub(crate) after: Option<String>,
    pub(crate) limit: Option<usize>,
    /// The body of an item, a value on a grant, or a checkpoint.
    pub(crate) value: Option<types::Value>,
    /// Seconds until an item is visible.
    pub(crate) delay: f64,
    /// The key of an item.
    pub(crate) item_key: Option<String>,
    /// The id of an item.
    pub(crate) item: Option<i64>,
    /// Names that nobody has are wanted, too.
    pub(crate) all: bool,
    pub(crate) progress_within: Option<f64>,
    pub(crate) max_time: Option<f64>,
    /// Which fields the request has, as bits.
    given: u32,
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

/// Parses the query of a request and checks its parameters against `wanted`.
pub(crate) fn check_query(query: &str, wanted: &[Field]) -> Result<Fields, HttpError> {
    let mut fields = Fields::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let field = known(&decode(name)?, wanted)?;
        let text = decode(value)?;
        let value = match field.kind {
            FieldKind::Limit => text.parse::<u64>().map_or(Value::Null, Value::from),
            FieldKind::All => text.parse::<bool>().map_or(Value::Null, Value::from),
            _ => Value::String(text),
        };
        fields.take(field, value)?;
    }
    fields.complete(wanted)
}

/// Decodes a part of a query.
fn decode(text: &str) -> Result<String, HttpError> {
    let refuse = || HttpError::new(400, "the query must be percent-encoded UTF-8");
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

/// Finds a field by its name.
fn known<'a>(name: &str, wanted: &'a [Field]) -> Result<&'a Field, HttpError> {
    wanted.iter().find(|field| field.name == name).ok_or_else(|| {
        let name: String = name.chars().take(40).collect();
        let known: Vec<&str> = wanted.iter().map(|field| field.name).collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        HttpError::new(400, format!("unknown field {name:?}; known are {known}"))
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
        Ok(known(name, self.0))
    }
}

impl Fields {
    fn take(&mut self, field: &Field, value: Value) -> Result<(), HttpError> {
        if self.has(field) {
            return Err(HttpError::new(
                400,
                format!("{} is given twice: give it once", field.name),
            ));
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
                Value::String(note) if is_of_process(&note) => {
                    return refuse("another text: those of this form belong to hold and run");
                }
                Value::String(note) if note.len() <= 200 => self.note = Some(note),
                _ => return refuse("a text of at most 200 bytes"),
            },
            FieldKind::Text => match value {
                Value::String(text) => self.lease = text,
                _ => return refuse("a text"),
            },
            FieldKind::Lease => match value {
                Value::String(mut text) if is_uuid(&text) => {
                    text.make_ascii_lowercase();
                    self.lease = text;
                }
                _ => {
                    return refuse(
                        "the UUID from the answer to the borrow, such as \
                         3f1c9a52-7a4e-8c6b-9d1e-2f6a00000000",
                    );
                }
            },
            FieldKind::Name | FieldKind::Prefix | FieldKind::After => match value {
                Value::String(text) => *self.text(field.kind) = Some(text),
                _ => return refuse("a text"),
            },
            FieldKind::Owner => match value {
                Value::String(text) if is_of_process(&text) => {
                    return refuse("another text: those of this form belong to hold and run");
                }
                Value::String(text) => self.owner = text,
                _ => return refuse("a text"),
            },
            FieldKind::MinToken => match value.as_i64() {
                Some(token @ 0..LARGEST_TOKEN) => self.min_token = token,
                _ => return refuse("a whole number, 0 or more and below 2^53"),
            },
            FieldKind::Limit => match value.as_u64().map(usize::try_from) {
                Some(Ok(limit @ 1..=MOST_LEASES)) => self.limit = Some(limit),
                _ => return refuse("a whole number, 1 to 1000"),
            },
            FieldKind::Value => match value::of_json(value) {
                Some(value) if value::len(&value) > LONGEST_ITEM => {
                    let text = format!("{} must be at most 1 MiB", field.name);
                    return Err(HttpError::new(413, text));
                }
                Some(value) => self.value = Some(value),
                None => {
                    return refuse("a text, a number, null or {\"base64\":\"…\"}");
                }
            },
            FieldKind::Delay => match seconds(|seconds| seconds >= 0.0) {
                Some(delay) => self.delay = delay,
                None => return refuse("a number of seconds, 0 or more"),
            },
            FieldKind::ItemKey => match value {
                Value::String(key) if (1..=200).contains(&key.len()) => self.item_key = Some(key),
                _ => return refuse("a text of 1 to 200 bytes"),
            },
            FieldKind::ItemNote => match value {
                Value::String(note) if note.len() <= LONGEST_NOTE => self.note = Some(note),
                _ => return refuse("a text of at most 1000 bytes"),
            },
            FieldKind::ItemId => match value.as_i64() {
                Some(id @ 1..) => self.item = Some(id),
                _ => return refuse("a whole number above 0"),
            },
            FieldKind::All => match value.as_bool() {
                Some(all) => self.all = all,
                None => return refuse("true or false"),
            },
            FieldKind::ProgressWithin | FieldKind::MaxTime => {
                let time = match seconds(|seconds| seconds > 0.0) {
                    None if value.is_null() => None,
                    None => return refuse("a number of seconds above 0, or null"),
                    time => time,
                };
                match field.kind {
                    FieldKind::MaxTime => self.max_time = time,
                    _ => self.progress_within = time,
                }
            }
        }
        Ok(())
    }

    fn text(&mut self, kind: FieldKind) -> &mut Option<String> {
        match kind {
            FieldKind::Prefix => &mut self.prefix,
            FieldKind::After => &mut self.after,
            _ => &mut self.name,
        }
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

/// Checks whether a text is a UUID with hyphens, in either case.
fn is_uuid(text: &str) -> bool {
    text.len() == 36 && uuid::Uuid::try_parse(text).is_ok()
}

/// Checks whether `hold` or `run` makes such an owner text or note. A lease under it would be taken
/// over when its process has ended.
fn is_of_process(owner: &str) -> bool {
    litelease::Identity::parse(owner).is_some_and(|who| who.is_holder())
}

/// Returns the bit of a field in `given`. No call has two fields of one kind.
fn bit(field: &Field) -> u32 {
    1 << field.kind as u8
}
