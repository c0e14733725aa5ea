//! The OpenAPI document, from the table of calls.

use serde_json::{Value as Json, json};

use crate::CALLS;
use crate::answer::{Described, Refusal, Schemas, define, object, reference};
use crate::call::{Call, Field, Key};

/// The status codes of errors that every call has.
const ALWAYS: &[u16] = &[400, 403, 408, 421, 502, 503];

/// Returns the OpenAPI document of a server whose pools have at most so many slots.
pub fn openapi(max_count: i64) -> Json {
    let (mut paths, mut schemas) = (json!({}), Schemas::new());
    for call in CALLS {
        let path = &mut paths[call.path];
        if path.is_null() && call.of_pool().is_some() {
            *path = json!({ "parameters": [{
                "name": "id", "in": "path", "required": true,
                "description": "the id of the pool; every client that knows it may use the pool",
                "schema": { "type": "string", "format": "uuid" },
            }] });
        }
        path[call.method] = operation(call, max_count, &mut schemas);
    }
    define(&mut schemas, "Error", |_| object([("error", true, json!({ "type": "string" }))]));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Litelease",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "paths": paths,
        "components": { "securitySchemes": {
            "access": { "type": "http", "scheme": "bearer", "description": "an access key" },
        }, "schemas": schemas },
    })
}

fn operation(call: &Call, max_count: i64, schemas: &mut Schemas) -> Json {
    let answer = (call.answer)(schemas);
    let mut responses = json!({ "200": match call.is_stream {
        true => json!({
            "description": "the state, and again whenever it changes",
            "content": { "text/event-stream": { "schema": answer } },
        }),
        false => content("done", answer),
    } });
    let is_named = call.of_pool().is_none();
    let unauthorized: &[u16] = if is_named { &[401] } else { &[] };
    let of_body: &[u16] = if call.has_body() { &[413, 415] } else { &[] };
    for status in ALWAYS.iter().chain(call.errors).chain(unauthorized).chain(of_body) {
        let schema = match status {
            409 => Refusal::schema(schemas),
            _ => reference("Error"),
        };
        responses[status.to_string()] = content(meaning(*status), schema);
    }
    let mut operation =
        json!({ "operationId": call.name, "summary": call.does, "responses": responses });
    let schema = |field: &Field| {
        let mut schema = (field.schema)(max_count);
        schema["description"] = field.means.into();
        schema
    };
    let mut parameters = Vec::new();
    if call.has_body() {
        let fields = call.fields.iter();
        let properties = fields.clone().map(|field| (field.name.to_owned(), schema(field)));
        let required = fields.clone().filter(|field| field.required).map(|field| field.name);
        let schema = json!({
            "type": "object", "required": required.collect::<Vec<_>>(),
            "properties": properties.collect::<Schemas>(), "additionalProperties": false,
        });
        operation["requestBody"] =
            json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    } else {
        parameters.extend(call.fields.iter().map(|field| {
            let (name, required) = (field.name, field.required);
            json!({ "name": name, "in": "query", "required": required, "schema": schema(field) })
        }));
    }
    if let Some(description) = call.key.meaning() {
        parameters.push(json!({
            "name": "Idempotency-Key", "in": "header", "required": false,
            "description": description,
            "schema": { "type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]([ -~]*[!-~])?$" },
        }));
    }
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if is_named {
        operation["security"] = json!([{ "access": [] }]);
    }
    operation
}

impl Key {
    fn meaning(self) -> Option<&'static str> {
        match self {
            Key::Echoed => None,
            Key::PerLease => Some("while its lease lives, the same key answers the same lease"),
            Key::PerDay => Some("for 24 hours, the same key gets the same answer"),
            Key::PerTick => {
                Some("until another tick is finished, the same key gets the same answer")
            }
        }
    }
}

fn content(description: &str, schema: Json) -> Json {
    json!({ "description": description, "content": { "application/json": { "schema": schema } } })
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
