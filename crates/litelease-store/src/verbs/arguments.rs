//! The arguments of a call, checked: an error names the argument.

use std::ffi::c_int;

use litelease_core::Claimant;

use crate::{Value, When};

/// The name and type of an argument.
pub struct Argument {
    /// Its name, for errors.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// The meaning of NULL, where it may be given.
    pub null: Option<&'static str>,
}

/// The type of an argument.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    /// TEXT.
    Text,
    /// INTEGER. In SQL, or a REAL without a fraction: JavaScript's numbers arrive as such.
    Integer,
    /// 0 or 1.
    Flag,
    /// Any value.
    Anything,
    /// An INTEGER, or TEXT.
    IntegerOrKey,
    /// A whole number of 0 or more.
    Count,
    /// TEXT, any number of times. Only the last argument can be this.
    Texts,
}

impl Argument {
    /// Checks whether a value is what this argument must be.
    #[inline]
    pub(crate) fn takes(&self, value: Option<Value<'_>>) -> bool {
        match (self.kind, value) {
            (
                Kind::Text | Kind::Texts | Kind::Anything | Kind::IntegerOrKey,
                Some(Value::Text(_)),
            )
            | (Kind::Anything, Some(_)) => true,
            (_, Some(Value::Null)) => self.null.is_some(),
            (Kind::Integer | Kind::IntegerOrKey, Some(value)) => whole(value).is_some(),
            (Kind::Flag, Some(value)) => matches!(whole(value), Some(0 | 1)),
            (Kind::Count, Some(value)) => matches!(whole(value), Some(0..)),
            _ => false,
        }
    }

    /// Checks the same for a language that has whole numbers.
    pub(super) fn takes_exactly(&self, value: Value<'_>) -> bool {
        let is_anything = self.kind == Kind::Anything;
        self.takes(Some(value)) && (is_anything || !matches!(value, Value::Real(_)))
    }

    /// Returns the error of a wrong argument. `kind` is SQLite's own word for its type.
    #[cold]
    pub(crate) fn complaint(&self, value: Option<Value<'_>>, kind: c_int) -> String {
        let wanted = match self.kind {
            Kind::Text | Kind::Texts => "TEXT",
            Kind::Integer => "an INTEGER",
            Kind::Flag => "0 or 1",
            Kind::Anything => "a value",
            Kind::IntegerOrKey => "an INTEGER, or the key as TEXT",
            Kind::Count => "0 or more",
        };
        let null = self.null.map(|what| format!(", or NULL {what}")).unwrap_or_default();
        let given = match (kind, self.kind) {
            (1, Kind::Flag | Kind::Count) => "another INTEGER",
            (1, _) => "an INTEGER",
            (2, Kind::Integer) if !has_fraction(value) => {
                "a REAL of 2^53 or more, which may have been rounded (in JavaScript, bind a BigInt)"
            }
            (2, Kind::Integer) => "a REAL with a fraction",
            (2, _) => "a REAL",
            (3, Kind::Integer | Kind::Flag | Kind::Count) => "TEXT",
            (3, _) => "text that is not UTF-8",
            (4, _) => "a BLOB",
            _ => "NULL",
        };
        let name = self.name;
        format!("{name} must be {wanted}{null}, not {given}")
    }
}

/// The arguments of one call, all checked.
pub struct Arguments<'a> {
    pub(crate) given: &'a [Option<Value<'a>>],
}

impl<'a> Arguments<'a> {
    /// A text that must be given.
    pub fn text(&self, at: usize) -> &'a str {
        self.optional_text(at).unwrap_or_default()
    }

    /// A text that may have been left out or be NULL.
    pub(crate) fn optional_text(&self, at: usize) -> Option<&'a str> {
        self.value(at).and_then(Value::text)
    }

    /// A number that must be given.
    #[inline]
    pub fn integer(&self, at: usize) -> i64 {
        self.optional(at).unwrap_or_default()
    }

    /// A number that may have been left out.
    #[inline]
    pub fn optional(&self, at: usize) -> Option<i64> {
        self.value(at).and_then(whole)
    }

    /// A time that may have been left out or be NULL: then it is the system clock's.
    #[inline]
    pub(crate) fn when(&self, at: usize) -> When {
        self.optional(at).map_or(When::Now, When::At)
    }

    /// An owner, and a token that may have been left out.
    #[inline]
    pub(super) fn who(&self, owner: usize, token: usize) -> Claimant<'a> {
        Claimant { owner: self.text(owner), token: self.optional(token) }
    }

    /// A value that must be given.
    pub(super) fn any(&self, at: usize) -> Value<'a> {
        self.value(at).unwrap_or(Value::Null)
    }

    #[inline]
    pub(crate) fn value(&self, at: usize) -> Option<Value<'a>> {
        self.given.get(at).copied().flatten()
    }
}

/// The largest whole number that JavaScript calls safe, 2^53 - 1. Beyond it a REAL may be a rounded
/// integer.
const MOST_EXACT: f64 = 9_007_199_254_740_991.0;

/// An INTEGER, or a REAL that is exactly one.
pub(crate) fn whole(value: Value<'_>) -> Option<i64> {
    match value {
        Value::Integer(number) => Some(number),
        // The range makes the conversion exact; NaN is in no range.
        Value::Real(number) if number.abs() <= MOST_EXACT && number.fract() == 0.0 =>
        {
            #[allow(clippy::cast_possible_truncation)]
            Some(number as i64)
        }
        _ => None,
    }
}

fn has_fraction(value: Option<Value<'_>>) -> bool {
    matches!(value, Some(Value::Real(number)) if number.fract() != 0.0 && number.is_finite())
}

const fn text(name: &'static str) -> Argument {
    Argument { name, kind: Kind::Text, null: None }
}

const fn integer(name: &'static str) -> Argument {
    Argument { name, kind: Kind::Integer, null: None }
}

impl Argument {
    const fn or_null(self, what: &'static str) -> Self {
        Argument { null: Some(what), ..self }
    }

    const fn with_kind(self, kind: Kind) -> Self {
        Argument { kind, ..self }
    }
}

/// The argument `name`.
pub const NAME: Argument = text("name");
/// The argument `ttl_ms`.
pub const TTL: Argument = integer("ttl_ms");
pub(super) const OWNER: Argument = text("owner");
pub(super) const NEW_OWNER: Argument = text("new_owner");
pub(super) const DEAD_OWNER: Argument = text("dead_owner");
pub(super) const DEAD_TOKEN: Argument = integer("dead_token");
pub(crate) const NOW: Argument = integer("now_ms").or_null("for the system clock");
pub(super) const TOKEN: Argument = integer("token");
pub(super) const MIN_TOKEN: Argument = integer("min_token");
pub(super) const OR_WITHDRAW: Argument = integer("token").or_null("to withdraw it");
pub(super) const VALUE: Argument = text("value").with_kind(Kind::Anything);
pub(super) const PREFIX: Argument = text("prefix");
pub(super) const BEFORE: Argument = integer("before_ms");
pub(super) const FLOOR: Argument = integer("floor");
pub(super) const ABOVE: Argument = integer("above").or_null("if no token was seen");
pub(super) const PROGRESS_WITHIN: Argument = integer("progress_within_ms").or_null("for none");
pub(super) const NOT_AFTER: Argument = integer("not_after_ms").or_null("for none");
pub(super) const REQUESTER: Argument = text("requester");
pub(super) const WITHIN: Argument = integer("within_ms");
pub(super) const TABLE: Argument = text("table");
pub(super) const COLUMN: Argument = text("column").or_null("to guard by connection");
pub(super) const STRICT: Argument = integer("strict").with_kind(Kind::Flag);
pub(super) const READER: Argument = text("reader");
pub(super) const ID: Argument = text("id");
pub(super) const COUNT: Argument = integer("count");
pub(super) const LEASE: Argument = text("lease");
pub(super) const POSITION: Argument = integer("position");
pub(super) const POOL_ID: Argument = text("pool_id");
pub(super) const LEASE_ID: Argument = text("lease_id");
pub(super) const NOTE: Argument = text("note").or_null("for none");
pub(super) const KEY: Argument = text("key").or_null("for none");
pub(super) const QUEUE: Argument = text("queue");
pub(super) const MAX_ATTEMPTS: Argument = integer("max_attempts").or_null("to leave it as it is");
pub(super) const BODY: Argument = text("body").with_kind(Kind::Anything);
pub(super) const DELAY: Argument = integer("delay_ms").or_null("for none");
pub(super) const VISIBILITY: Argument = integer("visibility_ms");
pub(super) const TICK: Argument = integer("tick_ms");
pub(super) const ATTEMPTS: Argument = integer("attempts").or_null("for 5");
pub(super) const HAS_FAILED: Argument = integer("failed").with_kind(Kind::Flag);
pub(super) const UNTIL: Argument = integer("until_ms").or_null("for now");
pub(super) const BREAKS: Argument = integer("break").with_kind(Kind::Flag);
pub(super) const SCHEDULE: Argument = text("schedule").or_null("for none");
pub(super) const RECEIPT: Argument = text("receipt");
pub(super) const RECEIPTS: Argument = text("receipt").with_kind(Kind::Texts);
pub(super) const COUNT_OF_ITEMS: Argument = integer("count").with_kind(Kind::Count);
pub(super) const DEAD_ITEM: Argument = integer("id").or_null("for all dead ones");
pub(super) const ITEM_OR_KEY: Argument = text("id").with_kind(Kind::IntegerOrKey);
pub(super) const KEEP: Argument = integer("rows").with_kind(Kind::Count);
pub(super) const NAME_OR_ALL: Argument = text("about").or_null("for all");
pub(super) const SINCE: Argument = integer("after_ms").or_null("for ever");
