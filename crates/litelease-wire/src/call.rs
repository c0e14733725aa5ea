//! A call: a row of the table, and the request that it takes.

use litelease_core::Scope;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::answer::{Described, Schemas};
use crate::read::{Invalid, Members};
use crate::{LONGEST, POOLS};

/// A row of the table of calls.
pub struct Call {
    /// Its name in logs, metrics and the OpenAPI document.
    pub name: &'static str,
    /// In lower case.
    pub method: &'static str,
    /// Begins with `/l/{id}` for a call on a pool.
    pub path: &'static str,
    /// Describes the call in one sentence.
    pub does: &'static str,
    /// Its access key needs one of these for the names that it is about. The id of a pool is a
    /// secret of its own.
    pub scopes: &'static [Scope],
    /// The effect of an idempotency key.
    pub key: Key,
    /// The longest body of a request, in bytes.
    pub longest_body: usize,
    /// Comes by the thousand, so that successes are logged at debug level only.
    pub is_frequent: bool,
    /// The answer is a stream of events.
    pub is_stream: bool,
    /// The status codes of its errors, besides those that every call or every body has.
    pub errors: &'static [u16],
    /// The fields of the body, or of the query of a GET.
    pub fields: &'static [Field],
    /// Describes the body of a 200 response.
    pub answer: fn(&mut Schemas) -> Json,
}

/// The effect of an idempotency key on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Only comes back in the answer.
    Echoed,
    /// The same lease is answered while it lives.
    PerLease,
    /// The same answer is given for 24 hours.
    PerDay,
    /// The same answer is given until another tick of the name is finished.
    PerTick,
}

/// A field of a request.
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// It may not be left out.
    pub required: bool,
    /// Its meaning, in a few words.
    pub means: &'static str,
    /// Describes its type, where pools have at most so many slots.
    pub schema: fn(i64) -> Json,
}

/// A typed request. Serializing it writes its body.
pub trait Request: Serialize + Sized + Send + Sync + 'static {
    /// The body of a 200 response.
    type Answer: Described + DeserializeOwned + Send;

    /// The row of the call.
    const CALL: Call;

    /// Reads a request from the members of a body or a query.
    fn read(members: Members) -> Result<Self, Invalid>;

    /// Checks whether the client wants to wait.
    fn waits(&self) -> bool;

    /// Returns the text in one of these fields, if there is one.
    fn text(&self, fields: &[&str]) -> Option<&str>;
}

impl Call {
    pub(crate) const fn get(path: &'static str) -> Self {
        Call::new("get", path)
    }

    pub(crate) const fn post(path: &'static str) -> Self {
        Call::new("post", path)
    }

    pub(crate) const fn new(method: &'static str, path: &'static str) -> Self {
        Call {
            name: "",
            method,
            path,
            does: "",
            scopes: &[],
            key: Key::Echoed,
            longest_body: LONGEST,
            is_frequent: false,
            is_stream: false,
            errors: &[],
            fields: &[],
            answer: |_| Json::Null,
        }
    }

    /// Checks whether requests have a body.
    pub fn has_body(&self) -> bool {
        !self.fields.is_empty() && self.method != "get"
    }

    /// Returns the end of the path after the id of the pool, if it is a call on a pool.
    pub fn of_pool(&self) -> Option<&'static str> {
        self.path.strip_prefix(POOLS)?.strip_prefix("{id}")
    }

    /// Returns the scope that the call needs.
    pub fn scope(&self) -> Scope {
        self.scopes.first().copied().unwrap_or(Scope::Operate)
    }
}

/// Writes the calls of a resource: each is a row, the type of its answer, and its fields with their
/// kinds and meanings.
macro_rules! calls {
    ($(
        $(#[doc = $does:literal])+
        $name:ident = $call:expr => $answer:ty { $($field:ident: $kind:ty = $means:expr),* $(,)? }
    )*) => { $(
        $(#[doc = $does])+
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $(
                #[doc = concat!("The field `", stringify!($field), "`.")]
                pub $field: <$kind as $crate::field::Kind>::Value,
            )*
        }

        impl $crate::call::Request for $name {
            type Answer = $answer;

            const CALL: $crate::call::Call = $crate::call::Call {
                does: concat!($($does),+).trim_ascii_start(),
                fields: &[$(
                    $crate::call::Field {
                        name: stringify!($field),
                        required: <$kind as $crate::field::Kind>::REQUIRED,
                        means: $means,
                        schema: <$kind as $crate::field::Kind>::schema,
                    },
                )*],
                answer: <$answer as $crate::answer::Described>::schema,
                ..$call
            };

            #[allow(unused_variables)]
            fn read(members: $crate::read::Members) -> Result<Self, $crate::read::Invalid> {
                $(let mut $field = None;)*
                for (name, value) in members.0 {
                    match name.as_str() {
                        $(stringify!($field) => {
                            $crate::read::set::<$kind>(&name, &mut $field, value)?
                        })*
                        _ => return Err($crate::read::unknown(&name, Self::CALL.fields)),
                    }
                }
                Ok($name { $($field: $crate::read::get::<$kind>(stringify!($field), $field)?,)* })
            }

            #[allow(unused_variables)]
            fn text(&self, fields: &[&str]) -> Option<&str> {
                $(if fields.contains(&stringify!($field)) {
                    let text = $crate::field::Texts::text(&self.$field);
                    if text.is_some() {
                        return text;
                    }
                })*
                None
            }

            fn waits(&self) -> bool {
                false $(|| <$kind as $crate::field::Kind>::waits(&self.$field))*
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeMap;
                #[allow(unused_mut)]
                let mut map = to.serialize_map(None)?;
                $(if !<$kind as $crate::field::Kind>::is_left_out(&self.$field) {
                    map.serialize_entry(stringify!($field), &self.$field)?;
                })*
                map.end()
            }
        }
    )* };
}
