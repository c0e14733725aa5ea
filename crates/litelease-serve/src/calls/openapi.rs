//! The OpenAPI document, from the table of calls.

use serde_json::{Value, json};

use super::{Base, Call, CallKind, Field, FieldKind, POOLS, Shape, V1, all, queues, slots};
use crate::body::MOST_LEASES;

/// The status codes of errors that every call has.
const ALWAYS: &[u16] = &[400, 403, 408, 421, 502, 503];

/// Returns the OpenAPI document.
pub(crate) fn openapi(max_count: i64) -> Value {
    let mut paths = json!({});
    for call in all() {
        let place = match call.base {
            Base::Pool => format!("{POOLS}{{id}}{}", call.under),
            Base::V1 => format!("{V1}{}", call.under),
        };
        let place = &mut paths[place];
        if place.is_null() && call.base == Base::Pool {
            *place = json!({ "parameters": [{
                "name": "id", "in": "path", "required": true,
                "description": "the id of the pool; every client that knows it may use the pool",
                "schema": { "type": "string", "format": "uuid" },
            }] });
        }
        place[call.method] = operation(call, max_count);
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Litelease",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "paths": paths,
        "components": { "securitySchemes": {
            "access": { "type": "http", "scheme": "bearer", "description": "an access key" },
        }, "schemas": {
            "Error": object(&["error"], json!({ "error": { "type": "string" } })),
            "Rejected": object(&["error"], json!({
                "error": { "type": "string" },
                "reason": { "type": "string" },
                "current": { "oneOf": [reference("NamedLease"), { "type": "null" }] },
                "requested": reference("Requested"),
            })),
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
            "Grant": object(&["grant", "name", "owner", "token", "expires_at_unix", "expires_in"], json!({
                "grant": { "type": "string", "format": "uuid" },
                "name": { "type": "string" },
                "owner": { "type": "string" },
                "token": { "type": "integer", "minimum": 1 },
                "expires_at_unix": { "type": "integer" },
                "expires_in": { "type": "number" },
            })),
            "NamedLease": object(&["name", "owner", "token", "expires_at_unix", "expires_in"], json!({
                "name": { "type": "string" },
                "owner": { "type": "string" },
                "token": { "type": "integer", "minimum": 1 },
                "expires_at_unix": { "type": "integer" },
                "expires_in": { "type": "number" },
                "value": reference("Value"),
                "value_left_out": { "type": "boolean" },
            })),
            "Name": object(&["name", "owner", "token", "expires_at_unix", "expires_in", "waiters"], json!({
                "name": { "type": "string" },
                "owner": { "type": ["string", "null"] },
                "token": { "type": ["integer", "null"] },
                "expires_at_unix": { "type": ["integer", "null"] },
                "expires_in": { "type": ["number", "null"] },
                "waiters": { "type": "integer", "minimum": 0 },
                "value": reference("Value"),
                "requested": reference("Requested"),
            })),
            "EndedLease": object(
                &["name", "owner", "token", "expires_at_unix", "expires_in", "state"],
                json!({
                    "name": { "type": "string" },
                    "owner": { "type": "null" },
                    "token": { "type": "integer", "minimum": 0 },
                    "expires_at_unix": { "type": "null" },
                    "expires_in": { "type": "null" },
                    "state": { "enum": ["released", "expired"] },
                    "last_owner": { "type": "string" },
                    "expired_for": { "type": "number", "minimum": 0 },
                }),
            ),
            "Page": object(&["leases", "next"], json!({
                "leases": { "type": "array", "items": {
                    "oneOf": [reference("NamedLease"), reference("EndedLease")],
                } },
                "next": { "type": ["string", "null"] },
            })),
            "Leases": { "oneOf": [reference("Name"), reference("Page")] },
            "Released": object(&["released", "name", "token"], json!({
                "released": { "type": "boolean" },
                "name": { "type": "string" },
                "token": { "type": "integer", "minimum": 1 },
            })),
            "Broken": object(&["name", "owner", "killed"], json!({
                "name": { "type": "string" },
                "owner": { "type": "string" },
                "killed": { "type": "integer", "minimum": 1 },
            })),
            "Kept": object(&["kept"], json!({ "kept": { "type": "boolean" } })),
            "Value": stored(),
            "Requested": request(),
            "Checkpoint": object(&["name", "token", "value", "updated_at_unix"], json!({
                "name": { "type": "string" },
                "token": { "type": ["integer", "null"] },
                "value": reference("Value"),
                "updated_at_unix": { "type": ["integer", "null"] },
            })),
        } },
    });
    for schemas in [queues::schemas(), slots::schemas()] {
        for (name, schema) in schemas.as_object().into_iter().flatten() {
            document["components"]["schemas"][name] = schema.clone();
        }
    }
    document
}

fn operation(call: &Call, max_count: i64) -> Value {
    let mut responses = json!({ "200": match call.answer {
        Shape::Events => json!({
            "description": "the state, and again whenever it changes",
            "content": { "text/event-stream": { "schema": { "type": "string" } } },
        }),
        Shape::Done(word) => direct("done", done(word, "name", "token")),
        Shape::ItemDone(word) => direct("done", done(word, "queue", "id")),
        Shape::Counted(word) => direct(
            "done",
            object(
                &["queue", word],
                json!({ "queue": { "type": "string" }, word: { "type": "integer", "minimum": 0 } }),
            ),
        ),
        shape => content("done", shape.name()),
    } });
    let is_named = call.base == Base::V1;
    let unauthorized: &[u16] = if is_named { &[401] } else { &[] };
    for status in ALWAYS.iter().chain(call.errors).chain(unauthorized) {
        let schema = if is_named && *status == 409 { "Rejected" } else { "Error" };
        responses[status.to_string()] = content(meaning(*status), schema);
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
    if call.has_key() {
        operation["parameters"] = json!([{
            "name": "Idempotency-Key", "in": "header", "required": false,
            "description": match call.kind {
                CallKind::Borrow | CallKind::Claim => {
                    "while its lease lives, the same key answers the same lease"
                }
                _ => "for 24 hours, the same key gets the same answer",
            },
            "schema": { "type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]([ -~]*[!-~])?$" },
        }]);
    }
    if !call.query.is_empty() {
        let parameter = |field: &Field| {
            let schema = field.schema(max_count);
            json!({ "name": field.name, "in": "query", "required": field.required, "schema": schema })
        };
        operation["parameters"] = call.query.iter().map(parameter).collect();
    }
    if is_named {
        operation["security"] = json!([{ "access": [] }]);
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
            FieldKind::Lease => json!({ "type": "string", "format": "uuid" }),
            FieldKind::Text
            | FieldKind::Name
            | FieldKind::Owner
            | FieldKind::Prefix
            | FieldKind::After => json!({ "type": "string" }),
            FieldKind::MinToken => {
                json!({ "type": "integer", "minimum": 0, "maximum": (1_i64 << 53) - 1 })
            }
            FieldKind::Limit => json!({ "type": "integer", "minimum": 1, "maximum": MOST_LEASES }),
            FieldKind::Value => stored(),
            FieldKind::Delay => json!({ "type": "number", "minimum": 0 }),
            FieldKind::ItemKey => json!({ "type": "string", "minLength": 1, "maxLength": 200 }),
            FieldKind::ItemNote => json!({ "type": "string", "maxLength": 1000 }),
            FieldKind::ItemId => json!({ "type": "integer", "minimum": 1 }),
            FieldKind::All => json!({ "type": "boolean" }),
            FieldKind::ProgressWithin | FieldKind::MaxTime => {
                json!({ "type": ["number", "null"], "exclusiveMinimum": 0 })
            }
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
            Shape::Grant => "Grant",
            Shape::NamedLease => "NamedLease",
            Shape::Released => "Released",
            Shape::Broken => "Broken",
            Shape::Leases => "Leases",
            Shape::Done(word) | Shape::ItemDone(word) | Shape::Counted(word) => word,
            Shape::Checkpoint => "Checkpoint",
            Shape::Requested => "Requested",
            Shape::Sent => "Sent",
            Shape::Received => "Received",
            Shape::Extended => "Extended",
            Shape::QueueDeleted => "QueueDeleted",
            Shape::Items => "Items",
            Shape::Queues => "Queues",
            Shape::Slots => "Slots",
        }
    }
}

fn content(description: &str, schema: &str) -> Value {
    json!({
        "description": description,
        "content": { "application/json": { "schema": reference(schema) } },
    })
}

fn direct(description: &str, schema: Value) -> Value {
    json!({ "description": description, "content": { "application/json": { "schema": schema } } })
}

/// Describes an answer that says that something was done, and to what.
fn done(word: &str, of: &str, number: &str) -> Value {
    object(
        &[word, of, number],
        json!({
            word: { "type": "boolean" },
            of: { "type": "string" },
            number: { "type": "integer", "minimum": 1 },
        }),
    )
}

/// Describes a request for a lease.
fn request() -> Value {
    object(
        &["name", "requester", "token", "until_unix", "within"],
        json!({
            "name": { "type": "string" },
            "requester": { "type": "string" },
            "token": { "type": "integer", "minimum": 1 },
            "until_unix": { "type": "integer" },
            "within": { "type": "number", "minimum": 0 },
        }),
    )
}

/// Describes a stored value.
fn stored() -> Value {
    let bytes = object(
        &["base64"],
        json!({ "base64": {
            "type": "string",
            "contentEncoding": "base64",
            "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$",
        } }),
    );
    let integer = json!({ "type": "integer", "minimum": i64::MIN, "maximum": i64::MAX });
    json!({ "oneOf": [{ "type": "string" }, integer, { "type": "null" }, bytes] })
}

pub(super) fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

pub(super) fn object(required: &[&str], properties: Value) -> Value {
    json!({
        "type": "object", "required": required, "properties": properties, "additionalProperties": false,
    })
}

fn meaning(status: u16) -> &'static str {
    match status {
        400 => "the request is malformed; the text says where",
        401 => "the access key is missing or wrong",
        403 => {
            "the access key does not allow it, or the request comes from a page of another origin"
        }
        404 => "there is no such pool",
        408 => "the body took too long",
        409 => "nothing is free, or the lease is no longer live; the text says why",
        413 => "the body is too long",
        415 => "the content type is another one than application/json",
        421 => "the server is not known by this host name",
        429 => "the client uses its share of the server already; the text says of what",
        502 => "the database failed; it is safe to try again",
        503 => "the server is shutting down",
        _ => "an error",
    }
}
