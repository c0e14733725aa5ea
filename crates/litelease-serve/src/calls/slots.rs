//! Calls on the slots of a pool that has a name.

use serde_json::{Value, json};

use super::openapi::{object, reference};
use super::{AFTER, Base, COUNT, Call, CallKind, Field, FieldKind, LEASE, NOTE, Shape, TTL, WAIT};

const POOL_NAME: Field =
    Field { name: "name", kind: FieldKind::Name, required: true, means: "the name of the pool" };

pub(super) const CALLS: &[Call] = &[
    Call {
        kind: CallKind::SlotBorrow,
        method: "post",
        base: Base::V1,
        under: "/slot/borrow",
        does: "Borrows a slot of the pool of this name, which is made or resized if it must be",
        fields: &[POOL_NAME, COUNT, TTL, WAIT, NOTE],
        query: &[],
        answer: Shape::Lease,
        errors: &[409, 413, 415, 429],
    },
    Call {
        kind: CallKind::SlotRenew,
        method: "post",
        base: Base::V1,
        under: "/slot/renew",
        does: "Prolongs a live lease on a slot under the same token; never shortens it",
        fields: &[POOL_NAME, LEASE, TTL],
        query: &[],
        answer: Shape::Lease,
        errors: &[404, 409, 413, 415],
    },
    Call {
        kind: CallKind::SlotReturn,
        method: "post",
        base: Base::V1,
        under: "/slot/return",
        does: "Returns a slot; may be repeated",
        fields: &[POOL_NAME, LEASE],
        query: &[],
        answer: Shape::Returned,
        errors: &[404, 413, 415],
    },
    Call {
        kind: CallKind::SlotBreak,
        method: "post",
        base: Base::V1,
        under: "/slot/break",
        does: "Ends the lease of any holder of a slot, if the slot is lent under this token",
        fields: &[
            POOL_NAME,
            Field {
                name: "position",
                kind: FieldKind::Count,
                required: true,
                means: "the number of the slot",
            },
            Field {
                name: "token",
                kind: FieldKind::MinToken,
                required: true,
                means: "its token, so that no successor is ended",
            },
        ],
        query: &[],
        answer: Shape::Returned,
        errors: &[404, 413, 415],
    },
    Call {
        kind: CallKind::Slots,
        method: "get",
        base: Base::V1,
        under: "/slots",
        does: "Lists the held slots of the pool of a name, or the pools of which slots are held",
        fields: &[],
        query: &[
            Field { required: false, ..POOL_NAME },
            Field {
                name: "prefix",
                kind: FieldKind::Prefix,
                required: false,
                means: "all pools whose name begins with this text; every one if it is left out",
            },
            AFTER,
            Field {
                name: "limit",
                kind: FieldKind::Limit,
                required: false,
                means: "how many slots or pools at most, 100 if left out",
            },
        ],
        answer: Shape::Slots,
        errors: &[],
    },
];

/// Returns the schemas of answers about slots.
pub(super) fn schemas() -> Value {
    json!({
        "HeldSlot": object(&["position", "token", "expires_in", "note"], json!({
            "position": { "type": "integer", "minimum": 0 },
            "token": { "type": "integer", "minimum": 1 },
            "expires_in": { "type": ["number", "null"], "description": "null if the slot is kept" },
            "note": { "type": ["string", "null"] },
            "kept_for": { "type": ["number", "null"] },
        })),
        "PoolOfName": object(&["name", "count", "in_use", "available"], json!({
            "name": { "type": "string" },
            "count": { "type": "integer", "minimum": 0 },
            "in_use": { "type": "integer", "minimum": 0 },
            "available": { "type": "integer", "minimum": 0 },
            "slots": {
                "type": "array", "items": reference("HeldSlot"),
                "description": "there if a name is given",
            },
        })),
        "Slots": object(&["pools", "next"], json!({
            "pools": { "type": "array", "items": reference("PoolOfName") },
            "next": { "type": ["string", "null"] },
        })),
    })
}
