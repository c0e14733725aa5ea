//! The arguments of a call, checked: whatever is wrong with one is told with its name.

use std::ffi::c_int;

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

/// What an argument must be.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    /// TEXT.
    Text,
    /// Or a REAL without a fraction: JavaScript's numbers arrive as such.
    Integer,
    /// 0 or 1.
    Flag,
    /// Any value.
    Anything,
}

impl Argument {
    /// Checks whether a value is what this argument must be.
    #[inline]
    pub(crate) fn takes(&self, value: Option<Value<'_>>) -> bool {
        match (self.kind, value) {
            (Kind::Text, Some(Value::Text(_))) | (Kind::Anything, Some(_)) => true,
            (_, Some(Value::Null)) => self.null.is_some(),
            (Kind::Integer, Some(value)) => whole(value).is_some(),
            (Kind::Flag, Some(value)) => matches!(whole(value), Some(0 | 1)),
            _ => false,
        }
    }

    /// Says what is wrong with an argument. `kind` is SQLite's own word on its type.
    #[cold]
    pub(crate) fn complaint(
        &self,
        function: &str,
        value: Option<Value<'_>>,
        kind: c_int,
    ) -> String {
        let wanted = match self.kind {
            Kind::Text => "TEXT",
            Kind::Integer => "an INTEGER",
            Kind::Flag => "0 or 1",
            Kind::Anything => "a value",
        };
        let null = self.null.map(|what| format!(", or NULL {what}")).unwrap_or_default();
        let given = match (kind, self.kind) {
            (1, Kind::Flag) => "another INTEGER",
            (1, _) => "an INTEGER",
            (2, Kind::Integer) if !has_fraction(value) => {
                "a REAL of 2^53 or more, which may have been rounded (in JavaScript, bind a BigInt)"
            }
            (2, Kind::Integer) => "a REAL with a fraction",
            (2, _) => "a REAL",
            (3, Kind::Text | Kind::Anything) => "text that is not UTF-8",
            (3, _) => "TEXT",
            (4, _) => "a BLOB",
            _ => "NULL",
        };
        let name = self.name;
        format!("{function}: {name} must be {wanted}{null}, not {given}")
    }
}

/// The arguments of one call, each of which is what it must be.
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
