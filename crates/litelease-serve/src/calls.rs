//! The table of calls: path, method, fields and answers. Requests are checked against it, and the
//! OpenAPI document is generated from it.

use serde_json::{Value, json};

/// The calls on a pool. Every `match` on it is exhaustive, so a new call does not compile until
/// all places handle it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    Register,
    Look,
    Delete,
    Borrow,
    Return,
    Renew,
    Keep,
    Events,
}

impl CallKind {
    /// Returns the name of the call in logs, metrics and the OpenAPI document.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            CallKind::Register => "register",
            CallKind::Look => "look",
            CallKind::Delete => "delete",
            CallKind::Borrow => "borrow",
            CallKind::Return => "return",
            CallKind::Renew => "renew",
            CallKind::Keep => "keep",
            CallKind::Events => "events",
        }
    }
}

/// How a call is made and answered.
pub(crate) struct Call {
    pub(crate) kind: CallKind,
    pub(crate) method: &'static str,
    /// The end of the path, after the id of the pool.
    pub(crate) under: &'static str,
    pub(crate) does: &'static str,
    /// The fields of the body; empty if the call has no body.
    pub(crate) fields: &'static [Field],
    /// The body of a 200 response.
    pub(crate) answer: Shape,
    /// The status codes of its errors, besides those that every call has.
    pub(crate) errors: &'static [u16],
}

/// A field of the body of a request.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) kind: FieldKind,
    pub(crate) required: bool,
    pub(crate) means: &'static str,
}

/// The type of a field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldKind {
    /// A whole number, 0 or more.
    Count,
    /// A number of seconds above 0.
    Ttl,
    /// A number of seconds, 0 or more.
    Wait,
    /// A text of at most 200 bytes.
    Note,
    /// A text.
    Text,
}

/// The body of a successful response.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Pool,
    Lease,
    Deleted,
    Returned,
    Kept,
    Events,
}

const TTL: Field = Field {
    name: "ttl",
    kind: FieldKind::Ttl,
    required: true,
    means: "seconds, may be fractional; cut to the longest that the server allows",
};
const LEASE: Field = Field {
    name: "lease",
    kind: FieldKind::Text,
    required: true,
    means: "the UUID from the answer to the borrow",
};

/// The start of the path of every call; the id of the pool follows.
pub(crate) const POOLS: &str = "/l/";

/// All calls on pools.
pub(crate) const CALLS: &[Call] = &[
    Call {
        kind: CallKind::Register,
        method: "put",
        under: "",
        does: "Creates a pool, or changes how many slots it has",
        fields: &[Field {
            name: "count",
            kind: FieldKind::Count,
            required: true,
            means: "how many slots",
        }],
        answer: Shape::Pool,
        errors: &[413, 415],
    },
    Call {
        kind: CallKind::Look,
        method: "get",
        under: "",
        does: "Returns how many slots a pool has, and how many are in use",
        fields: &[],
        answer: Shape::Pool,
        errors: &[404],
    },
    Call {
        kind: CallKind::Delete,
        method: "delete",
        under: "",
        does: "Deletes a pool: its leases stop being valid, and waiting borrows get 404",
        fields: &[],
        answer: Shape::Deleted,
        errors: &[],
    },
    Call {
        kind: CallKind::Borrow,
        method: "post",
        under: "/borrow",
        does: "Borrows the lowest free slot, and waits for one if asked to",
        fields: &[
            TTL,
            Field {
                name: "wait",
                kind: FieldKind::Wait,
                required: false,
                means: "seconds to wait if none is free, 0 if left out",
            },
            Field {
                name: "note",
                kind: FieldKind::Note,
                required: false,
                means: "who and why, for operators; at most 200 bytes",
            },
        ],
        answer: Shape::Lease,
        errors: &[404, 409, 413, 415, 429],
    },
    Call {
        kind: CallKind::Return,
        method: "post",
        under: "/return",
        does: "Returns a slot; may be repeated",
        fields: &[LEASE],
        answer: Shape::Returned,
        errors: &[404, 413, 415],
    },
    Call {
        kind: CallKind::Renew,
        method: "post",
        under: "/renew",
        does: "Prolongs a live lease under the same token; never shortens it",
        fields: &[LEASE, TTL],
        answer: Shape::Lease,
        errors: &[404, 409, 413, 415],
    },
    Call {
        kind: CallKind::Keep,
        method: "post",
        under: "/keep",
        does: "Keeps a live lease without expiry until it is returned; may be repeated",
        fields: &[LEASE],
        answer: Shape::Kept,
        errors: &[404, 409, 413, 415],
    },
    Call {
        kind: CallKind::Events,
        method: "get",
        under: "/events",
        does: "Streams the state of a pool as server-sent events, without UUIDs",
        fields: &[],
        answer: Shape::Events,
        errors: &[404],
    },
];

/// The status codes of errors that every call has.
const ALWAYS: &[u16] = &[400, 403, 408, 421, 502, 503];

/// Returns the OpenAPI document.
pub(crate) fn openapi(max_count: i64) -> Value {
    let mut paths = json!({});
    for call in CALLS {
        let place = &mut paths[format!("{POOLS}{{id}}{}", call.under)];
        if place.is_null() {
            *place = json!({ "parameters": [{
                "name": "id", "in": "path", "required": true,
                "description": "the id of the pool; every client that knows it may use the pool",
                "schema": { "type": "string", "format": "uuid" },
            }] });
        }
        place[call.method] = operation(call, max_count);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Litelease pools",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "paths": paths,
        "components": { "schemas": {
            "Error": object(&["error"], json!({ "error": { "type": "string" } })),
            "Pool": object(&["id", "count", "in_use", "available"], json!({
                "id": { "type": "string", "format": "uuid" },
                "count": { "type": "integer", "minimum": 0 },
                "in_use": { "type": "integer", "minimum": 0 },
                "available": { "type": "integer", "minimum": 0 },
            })),
            "Lease": object(&["lease", "position", "expires_at_unix", "expires_in", "token"], json!({
                "lease": { "type": "string", "format": "uuid" },
                "position": { "type": "integer", "minimum": 0 },
                "expires_at_unix": {
                    "type": ["integer", "null"], "description": "null if the slot is kept",
                },
                "expires_in": {
                    "type": ["number", "null"], "description": "null if the slot is kept",
                },
                "token": { "type": "integer", "minimum": 1 },
            })),
            "Deleted": object(&["deleted"], json!({ "deleted": { "type": "boolean" } })),
            "Returned": object(&["returned"], json!({ "returned": { "type": "boolean" } })),
            "Kept": object(&["kept"], json!({ "kept": { "type": "boolean" } })),
        } },
    })
}

fn operation(call: &Call, max_count: i64) -> Value {
    let mut responses = json!({ "200": match call.answer {
        Shape::Events => json!({
            "description": "the state, and again whenever it changes",
            "content": { "text/event-stream": { "schema": { "type": "string" } } },
        }),
        shape => content("done", shape.name()),
    } });
    for status in ALWAYS.iter().chain(call.errors) {
        responses[status.to_string()] = content(meaning(*status), "Error");
    }
    let mut operation = json!({
        "operationId": call.kind.name(), "summary": call.does, "responses": responses,
    });
    if !call.fields.is_empty() {
        let properties =
            call.fields.iter().map(|field| (field.name.to_owned(), field.schema(max_count)));
        let required: Vec<&str> =
            call.fields.iter().filter(|field| field.required).map(|field| field.name).collect();
        let schema = object(&required, Value::Object(properties.collect()));
        operation["requestBody"] =
            json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    }
    if call.kind == CallKind::Borrow {
        operation["parameters"] = json!([{
            "name": "Idempotency-Key", "in": "header", "required": false,
            "description": "while its lease lives, the same key answers the same lease",
            "schema": { "type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]([ -~]*[!-~])?$" },
        }]);
    }
    operation
}

impl Field {
    fn schema(&self, max_count: i64) -> Value {
        let mut schema = match self.kind {
            FieldKind::Count => json!({ "type": "integer", "minimum": 0, "maximum": max_count }),
            FieldKind::Ttl => json!({ "type": "number", "exclusiveMinimum": 0 }),
            FieldKind::Wait => json!({ "type": "number", "minimum": 0 }),
            FieldKind::Note => json!({ "type": "string", "maxLength": 200 }),
            FieldKind::Text => json!({ "type": "string" }),
        };
        schema["description"] = self.means.into();
        schema
    }
}

impl Shape {
    fn name(self) -> &'static str {
        match self {
            Shape::Pool => "Pool",
            Shape::Lease => "Lease",
            Shape::Deleted => "Deleted",
            Shape::Returned => "Returned",
            Shape::Kept => "Kept",
            Shape::Events => "Events",
        }
    }
}

fn content(description: &str, schema: &str) -> Value {
    let reference = format!("#/components/schemas/{schema}");
    json!({
        "description": description,
        "content": { "application/json": { "schema": { "$ref": reference } } },
    })
}

fn object(required: &[&str], properties: Value) -> Value {
    json!({
        "type": "object", "required": required, "properties": properties, "additionalProperties": false,
    })
}

fn meaning(status: u16) -> &'static str {
    match status {
        400 => "the request is malformed; the text says where",
        403 => "the request comes from a page of another origin",
        404 => "there is no such pool",
        408 => "the body took too long",
        409 => "nothing is free, or the lease is no longer live",
        413 => "the body is longer than 16 KiB",
        415 => "the body is not application/json",
        421 => "the server is not known by this host name",
        429 => "too many borrows wait already",
        502 => "the database failed; safe to try again",
        503 => "the server is shutting down",
        _ => "an error",
    }
}
