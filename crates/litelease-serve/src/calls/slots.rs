//! Calls on the slots of a pool that has a name.

use super::{Base, COUNT, Call, CallKind, Field, FieldKind, LEASE, NOTE, Shape, TTL, WAIT};

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
];
