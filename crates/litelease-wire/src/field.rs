//! The kinds of fields: what each may be, and how the OpenAPI document says so.

use std::marker::PhantomData;

use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::LONGEST_ITEM;
use crate::history::{KINDS, OBJECTS};
use crate::value::{Value, stored};

/// A kind of fields.
pub trait Kind {
    /// The type of the field.
    type Value: Clone + Serialize + Texts;
    /// It may not be left out.
    const REQUIRED: bool = true;

    /// Reads the field of a body or, as a text, of a query.
    fn read(json: Json) -> Result<Self::Value, Wrong>;

    /// Returns what the field is if it is left out, unless it is required.
    fn missing() -> Option<Self::Value> {
        None
    }

    /// Checks whether the field need not be sent.
    fn is_left_out(_: &Self::Value) -> bool {
        false
    }

    /// Checks whether the field says that the client wants to wait.
    fn waits(_: &Self::Value) -> bool {
        false
    }

    /// Describes the field, where pools have at most so many slots.
    fn schema(max_count: i64) -> Json;
}

/// The value of a field, which may be a text.
pub trait Texts {
    /// Returns the text, if it is one.
    fn text(&self) -> Option<&str> {
        None
    }
}

impl Texts for String {
    fn text(&self) -> Option<&str> {
        Some(self)
    }
}

impl<T: Texts> Texts for Option<T> {
    fn text(&self) -> Option<&str> {
        self.as_ref().and_then(Texts::text)
    }
}

impl Texts for bool {}
impl Texts for f64 {}
impl Texts for i64 {}
impl Texts for usize {}
impl Texts for Value {}
impl<T> Texts for Vec<T> {}

/// Why a field cannot be read.
pub enum Wrong {
    /// It must be this.
    Must(&'static str),
    /// How long it may be.
    TooLong(&'static str),
}

/// Tokens stay below this number, so that every reader of JSON represents them exactly.
const LARGEST_TOKEN: i64 = 1 << 53;

/// The most bytes that the note on an item, and that on a slot, may have.
const LONGEST_NOTES: (usize, usize) = (1000, 200);

/// The most entries that one page has.
const LONGEST_PAGE: u64 = 1000;

/// The most items that one request names.
const MOST_IDS: usize = 1000;

/// Defines kinds: the value, how it is read, what it must be, and its schema.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident: $value:ty = $read:expr, $must:literal, $schema:tt;)*) => { $(
        $(#[$doc])*
        pub enum $kind {}

        impl Kind for $kind {
            type Value = $value;

            fn read(json: Json) -> Result<$value, Wrong> {
                let read: fn(Json) -> Option<$value> = $read;
                read(json).ok_or(Wrong::Must($must))
            }

            fn schema(_: i64) -> Json {
                json!($schema)
            }
        }
    )* };
}

kinds! {
    /// Seconds.
    Ttl: f64 = |json| seconds(&json).filter(|time| *time > 0.0), "a number of seconds above 0",
        { "type": "number", "exclusiveMinimum": 0 };
    /// Any text: a name, an owner, the secret of a grant.
    Text: String = text, "a text", { "type": "string" };
    /// A text about a slot.
    Note: String = |json| text(json).filter(|note| note.len() <= LONGEST_NOTES.1),
        "a text of at most 200 bytes", { "type": "string", "maxLength": 200 };
    /// A text about an item.
    ItemNote: String = |json| text(json).filter(|note| note.len() <= LONGEST_NOTES.0),
        "a text of at most 1000 bytes", { "type": "string", "maxLength": 1000 };
    /// The key of an item.
    ItemKey: String = |json| text(json).filter(|key| (1..=200).contains(&key.len())),
        "a text of 1 to 200 bytes", { "type": "string", "minLength": 1, "maxLength": 200 };
    /// An item.
    ItemId: i64 = |json| json.as_i64().filter(|id| *id > 0), "a whole number above 0",
        { "type": "integer", "minimum": 1 };
    /// An item, as a text: in a query.
    ItemIdText: i64 = |json| json.as_str()?.parse().ok().filter(|id| *id > 0),
        "a whole number above 0", { "type": "integer", "minimum": 1 };
    /// Some items.
    ItemIds: Vec<i64> = |json| {
        let ids = json.as_array().filter(|ids| (1..=MOST_IDS).contains(&ids.len()))?;
        ids.iter().map(|id| id.as_i64().filter(|id| *id > 0)).collect()
    }, "1 to 1000 whole numbers above 0",
        { "type": "array", "minItems": 1, "maxItems": MOST_IDS,
          "items": { "type": "integer", "minimum": 1 } };
    /// The secret of a lease on a slot.
    SlotId: String = |json| text(json).filter(|id| is_uuid(id)).map(|id| id.to_ascii_lowercase()),
        "the UUID from the answer to the borrow, such as 3f1c9a52-7a4e-8c6b-9d1e-2f6a00000000",
        { "type": "string", "format": "uuid" };
    /// A token.
    Token: i64 = |json| json.as_i64().filter(|token| (0..LARGEST_TOKEN).contains(token)),
        "a whole number, 0 or more and below 2^53",
        { "type": "integer", "minimum": 0, "maximum": ((1_i64 << 53) - 1) };
    /// A kind of objects in a history.
    ObjectKind: String = |json| text(json).filter(|kind| OBJECTS.contains(&&**kind)),
        "name, queue or pool", { "type": "string", "enum": OBJECTS };
    /// The kind of a row of the history.
    EventKind: String = |json| text(json).filter(|kind| KINDS.contains(&&**kind)),
        "a kind of row, such as granted, released, expired or broken",
        { "type": "string", "enum": KINDS };
    /// A Unix time in seconds, as a text.
    UnixTime: f64 = |json| json.as_str()?.parse().ok().filter(|time: &f64| time.is_finite()),
        "a Unix time in seconds", { "type": "number" };
    /// A time in Unix milliseconds.
    Moment: i64 = |json| json.as_i64().filter(|ms| ms.abs() < LARGEST_TOKEN),
        "a whole number of Unix milliseconds",
        { "type": "integer", "minimum": (1 - (1_i64 << 53)), "maximum": ((1_i64 << 53) - 1) };
    /// How often something may be tried.
    Attempts: i64 = |json| json.as_i64().filter(|count| *count > 0), "a whole number above 0",
        { "type": "integer", "minimum": 1 };
    /// How many entries a page has, as a text.
    PageLength: usize = |json| {
        let length = json.as_str()?.parse().ok().filter(|length| (1..=LONGEST_PAGE).contains(length))?;
        usize::try_from(length).ok()
    }, "a whole number, 1 to 1000", { "type": "integer", "minimum": 1, "maximum": LONGEST_PAGE };
}

/// How many there are.
pub enum Count {}

impl Kind for Count {
    type Value = i64;

    fn read(json: Json) -> Result<i64, Wrong> {
        let count = json.as_i64().filter(|count| *count >= 0);
        count.ok_or(Wrong::Must("a whole number, 0 or more"))
    }

    fn schema(max_count: i64) -> Json {
        json!({ "type": "integer", "minimum": 0, "maximum": max_count })
    }
}

/// Anything that SQLite stores.
pub enum Stored {}

impl Kind for Stored {
    type Value = Value;

    fn read(json: Json) -> Result<Value, Wrong> {
        match Value::from_json(json) {
            Some(value) if value.len() > LONGEST_ITEM => Err(Wrong::TooLong("at most 1 MiB")),
            Some(value) => Ok(value),
            None => Err(Wrong::Must("a text, a number, null or {\"base64\":\"…\"}")),
        }
    }

    fn schema(_: i64) -> Json {
        stored()
    }
}

/// A time in seconds, 0 if it is left out.
pub enum Delay {}

impl Kind for Delay {
    type Value = f64;
    const REQUIRED: bool = false;

    fn read(json: Json) -> Result<f64, Wrong> {
        let time = seconds(&json).filter(|time| *time >= 0.0);
        time.ok_or(Wrong::Must("a number of seconds, 0 or more"))
    }

    fn missing() -> Option<f64> {
        Some(0.0)
    }

    fn schema(_: i64) -> Json {
        json!({ "type": "number", "minimum": 0 })
    }
}

/// How long the client wants to wait.
pub enum Wait {}

impl Kind for Wait {
    type Value = f64;
    const REQUIRED: bool = false;

    fn read(json: Json) -> Result<f64, Wrong> {
        Delay::read(json)
    }

    fn missing() -> Option<f64> {
        Some(0.0)
    }

    fn waits(wait: &f64) -> bool {
        *wait > 0.0
    }

    fn schema(max_count: i64) -> Json {
        Delay::schema(max_count)
    }
}

/// True or false, as a text; false if it is left out.
pub enum Flag {}

impl Kind for Flag {
    type Value = bool;
    const REQUIRED: bool = false;

    fn read(json: Json) -> Result<bool, Wrong> {
        json.as_str().and_then(|text| text.parse().ok()).ok_or(Wrong::Must("true or false"))
    }

    fn missing() -> Option<bool> {
        Some(false)
    }

    fn schema(_: i64) -> Json {
        json!({ "type": "boolean" })
    }
}

/// True or false; false if it is left out.
pub enum Choice {}

impl Kind for Choice {
    type Value = bool;
    const REQUIRED: bool = false;

    fn read(json: Json) -> Result<bool, Wrong> {
        json.as_bool().ok_or(Wrong::Must("true or false"))
    }

    fn missing() -> Option<bool> {
        Some(false)
    }

    fn schema(_: i64) -> Json {
        json!({ "type": "boolean" })
    }
}

/// The outcome of a tick, done if it is left out.
pub enum Outcome {}

impl Kind for Outcome {
    type Value = String;
    const REQUIRED: bool = false;

    fn read(json: Json) -> Result<String, Wrong> {
        let word = text(json).filter(|word| ["done", "failed"].contains(&word.as_str()));
        word.ok_or(Wrong::Must("done or failed"))
    }

    fn missing() -> Option<String> {
        Some("done".into())
    }

    fn schema(_: i64) -> Json {
        json!({ "type": "string", "enum": ["done", "failed"] })
    }
}

/// A field that may be left out.
pub struct Optional<K>(PhantomData<K>);

impl<K: Kind> Kind for Optional<K> {
    type Value = Option<K::Value>;
    const REQUIRED: bool = false;

    fn read(json: Json) -> Result<Self::Value, Wrong> {
        K::read(json).map(Some)
    }

    fn missing() -> Option<Self::Value> {
        Some(None)
    }

    fn is_left_out(value: &Self::Value) -> bool {
        value.is_none()
    }

    fn schema(max_count: i64) -> Json {
        K::schema(max_count)
    }
}

/// A limit in seconds; null is none.
pub enum MostTime {}

impl Kind for MostTime {
    type Value = Option<f64>;
    const REQUIRED: bool = false;

    fn read(json: Json) -> Result<Self::Value, Wrong> {
        match json {
            Json::Null => Ok(None),
            json => match Ttl::read(json) {
                Ok(time) => Ok(Some(time)),
                Err(_) => Err(Wrong::Must("a number of seconds above 0, or null")),
            },
        }
    }

    fn missing() -> Option<Self::Value> {
        Some(None)
    }

    fn schema(_: i64) -> Json {
        json!({ "type": ["number", "null"], "exclusiveMinimum": 0 })
    }
}

fn text(json: Json) -> Option<String> {
    match json {
        Json::String(text) => Some(text),
        _ => None,
    }
}

fn seconds(json: &Json) -> Option<f64> {
    json.as_f64().filter(|time| time.is_finite())
}

/// Checks whether a text is a UUID with hyphens, in either case.
fn is_uuid(text: &str) -> bool {
    let is_right = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == 36 && text.bytes().enumerate().all(is_right)
}
