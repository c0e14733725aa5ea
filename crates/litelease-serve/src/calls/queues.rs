//! Calls on queues.

use serde_json::{Value, json};

use super::openapi::{object, reference};
use super::{AFTER, Base, Call, CallKind, Field, FieldKind, Shape, WAIT};

const QUEUE: Field = Field {
    name: "queue",
    kind: FieldKind::Name,
    required: true,
    means: "the name of the queue, any text",
};

const RECEIPT: Field = Field {
    name: "receipt",
    kind: FieldKind::Text,
    required: true,
    means: "the receipt from the answer to the receive",
};

const VISIBILITY: Field = Field {
    name: "visibility",
    kind: FieldKind::Ttl,
    required: true,
    means: "seconds for which nobody else receives the item; cut to the longest that the server allows",
};

/// The queue of a receipt, which may be left out.
const QUEUE_OF_RECEIPT: Field = Field {
    name: "queue",
    kind: FieldKind::Name,
    required: false,
    means: "the name of the queue; that of the receipt if it is left out",
};
const ITEM_ID: Field =
    Field { name: "id", kind: FieldKind::ItemId, required: false, means: "only this item" };
const DELAY: Field = Field {
    name: "delay",
    kind: FieldKind::Delay,
    required: false,
    means: "seconds until the item is visible, 0 if left out",
};

const ITEM_NOTE: Field = Field {
    name: "note",
    kind: FieldKind::ItemNote,
    required: false,
    means: "why, for operators; at most 1000 bytes",
};

pub(super) const CALLS: &[Call] = &[
    Call {
        kind: CallKind::Send,
        method: "post",
        base: Base::V1,
        under: "/queue/send",
        does: "Sends an item to a queue",
        fields: &[
            QUEUE,
            Field {
                name: "body",
                kind: FieldKind::Value,
                required: true,
                means: "a text, a number, null, or bytes as {\"base64\":…}; at most 1 MiB",
            },
            DELAY,
            Field {
                name: "key",
                kind: FieldKind::ItemKey,
                required: false,
                means: "unique among the items of the queue that are neither acknowledged nor dead",
            },
        ],
        query: &[],
        answer: Shape::Sent,
        errors: &[413, 415],
    },
    Call {
        kind: CallKind::Receive,
        method: "post",
        base: Base::V1,
        under: "/queue/receive",
        does: "Receives the item that was visible longest, and waits for one if asked to",
        fields: &[QUEUE, VISIBILITY, WAIT],
        query: &[],
        answer: Shape::Received,
        errors: &[409, 413, 415, 429],
    },
    Call {
        kind: CallKind::Ack,
        method: "post",
        base: Base::V1,
        under: "/queue/ack",
        does: "Acknowledges an item: it is done, and gone",
        fields: &[QUEUE_OF_RECEIPT, RECEIPT],
        query: &[],
        answer: Shape::ItemDone("acknowledged"),
        errors: &[409, 413, 415],
    },
    Call {
        kind: CallKind::Extend,
        method: "post",
        base: Base::V1,
        under: "/queue/extend",
        does: "Prolongs a live delivery; never shortens it",
        fields: &[QUEUE_OF_RECEIPT, RECEIPT, VISIBILITY],
        query: &[],
        answer: Shape::Extended,
        errors: &[409, 413, 415],
    },
    Call {
        kind: CallKind::GiveBack,
        method: "post",
        base: Base::V1,
        under: "/queue/give-back",
        does: "Makes an item visible again, now or after a delay",
        fields: &[QUEUE_OF_RECEIPT, RECEIPT, DELAY, ITEM_NOTE],
        query: &[],
        answer: Shape::ItemDone("given_back"),
        errors: &[409, 413, 415],
    },
    Call {
        kind: CallKind::Bury,
        method: "post",
        base: Base::V1,
        under: "/queue/bury",
        does: "Makes an item dead at once",
        fields: &[QUEUE_OF_RECEIPT, RECEIPT, ITEM_NOTE],
        query: &[],
        answer: Shape::ItemDone("buried"),
        errors: &[409, 413, 415],
    },
    Call {
        kind: CallKind::Redrive,
        method: "post",
        base: Base::V1,
        under: "/queue/redrive",
        does: "Revives dead items, with no attempt counted",
        fields: &[QUEUE, ITEM_ID],
        query: &[],
        answer: Shape::Counted("redriven"),
        errors: &[413, 415],
    },
    Call {
        kind: CallKind::Discard,
        method: "post",
        base: Base::V1,
        under: "/queue/discard",
        does: "Deletes dead items",
        fields: &[QUEUE, ITEM_ID],
        query: &[],
        answer: Shape::Counted("discarded"),
        errors: &[413, 415],
    },
    Call {
        kind: CallKind::Cancel,
        method: "post",
        base: Base::V1,
        under: "/queue/cancel",
        does: "Removes an item that no worker has, by its id or its key",
        fields: &[
            QUEUE,
            Field { means: "the item", ..ITEM_ID },
            Field {
                name: "key",
                kind: FieldKind::ItemKey,
                required: false,
                means: "the item with this key",
            },
        ],
        query: &[],
        answer: Shape::ItemDone("cancelled"),
        errors: &[409, 413, 415],
    },
    Call {
        kind: CallKind::DeleteQueue,
        method: "post",
        base: Base::V1,
        under: "/queue/delete",
        does: "Deletes a queue with everything in it",
        fields: &[QUEUE],
        query: &[],
        answer: Shape::QueueDeleted,
        errors: &[413, 415],
    },
    Call {
        kind: CallKind::Items,
        method: "get",
        base: Base::V1,
        under: "/queue/items",
        does: "Lists the items of a queue in pages, without bodies and receipts: dead ones first, \
               then in the order of their delivery",
        fields: &[],
        query: &[
            QUEUE,
            AFTER,
            Field {
                name: "limit",
                kind: FieldKind::Limit,
                required: false,
                means: "how many items at most, 100 if left out",
            },
        ],
        answer: Shape::Items,
        errors: &[],
    },
    Call {
        kind: CallKind::Queues,
        method: "get",
        base: Base::V1,
        under: "/queues",
        does: "Counts the items of queues by their state",
        fields: &[],
        query: &[
            Field { name: "queue", required: false, ..QUEUE },
            Field {
                name: "prefix",
                kind: FieldKind::Prefix,
                required: false,
                means: "all queues whose name begins with this text; every one if it is left out",
            },
            AFTER,
            Field {
                name: "limit",
                kind: FieldKind::Limit,
                required: false,
                means: "how many queues at most, 100 if left out",
            },
        ],
        answer: Shape::Queues,
        errors: &[],
    },
];

/// Returns the schemas of answers about queues.
pub(super) fn schemas() -> Value {
    json!({
            "Sent": object(&["queue", "id"], json!({
                "queue": { "type": "string" },
                "id": { "type": "integer", "minimum": 1 },
            })),
            "Received": object(&["item"], json!({
                "item": { "oneOf": [reference("Item"), { "type": "null" }] },
            })),
            "Item": object(
                &["queue", "id", "receipt", "attempt", "token", "expires_at_unix", "expires_in", "body"],
                json!({
                    "queue": { "type": "string" },
                    "id": { "type": "integer", "minimum": 1 },
                    "receipt": { "type": "string" },
                    "attempt": { "type": "integer", "minimum": 1 },
                    "token": { "type": "integer", "minimum": 1 },
                    "expires_at_unix": { "type": "integer" },
                    "expires_in": { "type": "number" },
                    "body": reference("Value"),
                }),
            ),
            "Extended": object(&["queue", "id", "expires_at_unix", "expires_in"], json!({
                "queue": { "type": "string" },
                "id": { "type": "integer", "minimum": 1 },
                "expires_at_unix": { "type": "integer" },
                "expires_in": { "type": "number" },
            })),
            "QueueDeleted": object(&["queue", "deleted"], json!({
                "queue": { "type": "string" },
                "deleted": { "type": "boolean" },
            })),
            "ItemState": object(
                &["id", "state", "attempt", "visible_in", "age", "key", "note"],
                json!({
                    "id": { "type": "integer", "minimum": 1 },
                    "state": { "enum": ["visible", "delayed", "leased", "dead"] },
                    "attempt": { "type": "integer", "minimum": 0 },
                    "visible_in": {
                        "type": ["number", "null"],
                        "description": "seconds, negative if it is visible since then; null if it \
                                        is dead or at its last delivery",
                    },
                    "age": { "type": "number", "description": "seconds since it was sent" },
                    "key": { "type": ["string", "null"] },
                    "note": { "type": ["string", "null"] },
                }),
            ),
            "Items": object(&["items", "next"], json!({
                "items": { "type": "array", "items": reference("ItemState") },
                "next": { "type": ["string", "null"] },
            })),
            "Queue": object(
                &["queue", "visible", "delayed", "leased", "dead", "oldest", "max_attempts"],
                json!({
                    "queue": { "type": "string" },
                    "visible": { "type": "integer", "minimum": 0 },
                    "delayed": { "type": "integer", "minimum": 0 },
                    "leased": { "type": "integer", "minimum": 0 },
                    "dead": { "type": "integer", "minimum": 0 },
                    "oldest": { "type": ["number", "null"] },
                    "max_attempts": { "type": "integer", "minimum": 0 },
                }),
            ),
            "Queues": object(&["queues", "next"], json!({
                "queues": { "type": "array", "items": reference("Queue") },
                "next": { "type": ["string", "null"] },
            })),
    })
}
