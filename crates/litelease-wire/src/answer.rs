//! Answers: how they are written, read and described.

use std::time::Duration;

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};
use serde_json::{Map, Value as Json, json};

use crate::{Lease, NewestTick, OpenRequest};

/// The schemas of the OpenAPI document, by name.
pub type Schemas = Map<String, Json>;

/// A type of which the OpenAPI document has a schema.
pub trait Described {
    /// Describes it. One that has a name is added to the schemas.
    fn schema(schemas: &mut Schemas) -> Json;

    /// Describes a field that is left out if there is nothing.
    fn if_there(schemas: &mut Schemas) -> Json {
        Self::schema(schemas)
    }
}

/// Writes the answers of a resource. A field that may be left out is an `[optional]` one. A schema
/// behind a field says more than its type. The fields are in alphabetical order.
macro_rules! answers {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($([$optional:ident])? $field:ident: $type:ty $(= $schema:expr)?),* $(,)? }
    )*) => { $(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub struct $name { $(
            #[doc = concat!("The field `", stringify!($field), "`.")]
            $(
                #[doc = concat!("It is ", stringify!($optional), ".")]
                #[serde(default, skip_serializing_if = "Option::is_none")]
            )?
            pub $field: $type,
        )* }

        impl $crate::answer::Described for $name {
            fn schema(schemas: &mut $crate::Schemas) -> serde_json::Value {
                $crate::answer::define(schemas, stringify!($name), |schemas| {
                    $crate::answer::object([$({
                        let optional: &[&str] = &[$(stringify!($optional))?];
                        let is_required = optional.is_empty();
                        let schema = match is_required {
                            true => <$type as $crate::answer::Described>::schema(schemas),
                            false => <$type as $crate::answer::Described>::if_there(schemas),
                        };
                        $(let schema = $crate::answer::narrowed(schema, $schema);)?
                        (stringify!($field), is_required, schema)
                    }),*])
                });
                $crate::answer::reference(stringify!($name))
            }
        }
    )* };
}

/// Says that a number is above 0, as tokens and ids are.
pub(crate) const POSITIVE: (&str, i64) = ("minimum", 1);

/// Says that a number is not negative.
pub(crate) const NATURAL: (&str, i64) = ("minimum", 0);

/// A time, written in seconds: as a whole number if it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seconds {
    /// The time in milliseconds.
    pub ms: i64,
}

impl Seconds {
    /// Returns the time, or none at all if it is over.
    pub fn duration(self) -> Duration {
        Duration::from_millis(u64::try_from(self.ms).unwrap_or(0))
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.ms % 1000 {
            0 => to.serialize_i64(self.ms / 1000),
            _ => to.serialize_f64(self.ms as f64 / 1000.0),
        }
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // A cast of a float saturates.
        f64::deserialize(from).map(|seconds| Seconds { ms: (seconds * 1000.0).round() as i64 })
    }
}

answers! {
    /// A request that is refused, although it makes sense: status 409.
    Refusal {
        by: Option<i64>,
        current: Option<Lease>,
        error: String,
        [optional] expires_in: Option<Seconds>,
        [optional] newest: Option<NewestTick>,
        [optional] now_ms: Option<i64> =
            ("description", "the clock that judges ticks, in Unix milliseconds"),
        reason: String,
        [optional] requested: Option<OpenRequest>,
        [optional] tick_ms: Option<i64> =
            ("description", "the tick that is under way, in Unix milliseconds"),
    }
}

impl Refusal {
    /// Returns a refusal that says no more than why.
    pub fn new(reason: &str, error: impl Into<String>) -> Self {
        let (reason, error) = (reason.into(), error.into());
        let (by, current, expires_in, requested) = (None, None, None, None);
        let (newest, now_ms, tick_ms) = (None, None, None);
        Refusal { by, current, error, expires_in, newest, now_ms, reason, requested, tick_ms }
    }
}

/// Describes types by the name that JSON Schema has for them.
macro_rules! described {
    ($($type:ty = $name:literal),*) => { $(
        impl Described for $type {
            fn schema(_: &mut Schemas) -> Json {
                json!({ "type": $name })
            }
        }
    )* };
}

described!(bool = "boolean", i64 = "integer", usize = "integer", String = "string");
described!(Seconds = "number", () = "null");

impl<T: Described> Described for Option<T> {
    fn schema(schemas: &mut Schemas) -> Json {
        let mut schema = T::schema(schemas);
        match schema.get("type") {
            Some(Json::String(name)) => schema["type"] = json!([name, "null"]),
            Some(_) => {}
            None => schema = json!({ "oneOf": [schema, { "type": "null" }] }),
        }
        schema
    }

    fn if_there(schemas: &mut Schemas) -> Json {
        T::schema(schemas)
    }
}

impl<T: Described> Described for Vec<T> {
    fn schema(schemas: &mut Schemas) -> Json {
        json!({ "type": "array", "items": T::schema(schemas) })
    }
}

/// Adds a schema under a name, once.
pub(crate) fn define(schemas: &mut Schemas, name: &str, schema: impl FnOnce(&mut Schemas) -> Json) {
    if !schemas.contains_key(name) {
        let schema = schema(schemas);
        schemas.insert(name.into(), schema);
    }
}

/// Describes an object by its fields: their names, whether they are required, and their schemas.
pub(crate) fn object<const N: usize>(fields: [(&str, bool, Json); N]) -> Json {
    let required = fields.iter().filter(|(_, is_required, _)| *is_required);
    let required: Vec<&str> = required.map(|(name, ..)| *name).collect();
    let properties = fields.iter().map(|(name, _, schema)| ((*name).to_owned(), schema.clone()));
    json!({
        "type": "object",
        "required": required,
        "properties": properties.collect::<Schemas>(),
        "additionalProperties": false,
    })
}

pub(crate) fn reference(schema: &str) -> Json {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

/// Adds to a schema what its type does not say.
pub(crate) fn narrowed(mut schema: Json, (key, value): (&str, impl Into<Json>)) -> Json {
    schema[key] = value.into();
    schema
}
