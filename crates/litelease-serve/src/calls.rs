//! The table of calls: path, method, fields and answers. Requests are checked against it, and the
//! OpenAPI document is generated from it.

use serde_json::{Value, json};

use crate::body::{LONGEST, LONGEST_SEND, MOST_LEASES};

/// The calls on pools and names. Every `match` on it is exhaustive, so a new call does not compile until
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
    Claim,
    RenewLease,
    Release,
    Transfer,
    Break,
    Leases,
    LeaseEvents,
    SlotBorrow,
    SlotRenew,
    SlotReturn,
    Attach,
    Limit,
    Progress,
    Checkpoint,
    LastCheckpoint,
    Request,
    HandOver,
    Send,
    Receive,
    Ack,
    Extend,
    GiveBack,
    Bury,
    Queues,
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
            CallKind::Claim => "claim",
            CallKind::RenewLease => "renew_lease",
            CallKind::Release => "release",
            CallKind::Transfer => "transfer",
            CallKind::Break => "break",
            CallKind::Leases => "leases",
            CallKind::LeaseEvents => "lease_events",
            CallKind::SlotBorrow => "slot_borrow",
            CallKind::SlotRenew => "slot_renew",
            CallKind::SlotReturn => "slot_return",
            CallKind::Attach => "attach",
            CallKind::Limit => "limit",
            CallKind::Progress => "progress",
            CallKind::Checkpoint => "checkpoint",
            CallKind::LastCheckpoint => "last_checkpoint",
            CallKind::Request => "request",
            CallKind::HandOver => "hand_over",
            CallKind::Send => "send",
            CallKind::Receive => "receive",
            CallKind::Ack => "ack",
            CallKind::Extend => "extend",
            CallKind::GiveBack => "give_back",
            CallKind::Bury => "bury",
            CallKind::Queues => "queues",
        }
    }
}

/// How a call is made and answered.
pub(crate) struct Call {
    pub(crate) kind: CallKind,
    pub(crate) method: &'static str,
    pub(crate) base: Base,
    /// The end of the path, after the id of the pool or after `/v1`.
    pub(crate) under: &'static str,
    pub(crate) does: &'static str,
    /// The fields of the body; empty if the call has no body.
    pub(crate) fields: &'static [Field],
    /// The parameters of the query.
    pub(crate) query: &'static [Field],
    /// The body of a 200 response.
    pub(crate) answer: Shape,
    /// The status codes of its errors, besides those that every call has.
    pub(crate) errors: &'static [u16],
}

/// What the path of a call begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// The id of a pool, which is its secret.
    Pool,
    /// Names, for clients with an access key.
    V1,
}

/// A field of a request.
#[derive(Clone, Copy)]
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
    /// A text: a lease on a slot, or the secret of a grant.
    Text,
    /// A text: a name.
    Name,
    /// A text: an owner.
    Owner,
    /// A whole number that tokens are larger than.
    MinToken,
    /// A text: how names begin.
    Prefix,
    /// A text: the last name of the page before.
    After,
    /// How many leases a page has at most.
    Limit,
    /// Anything that SQLite stores.
    Value,
    /// A number of seconds, 0 or more, until an item is visible.
    Delay,
    /// A text of 1 to 200 bytes: the key of an item.
    ItemKey,
    /// A text of at most 1000 bytes.
    ItemNote,
    /// A number of seconds above 0, or null.
    ProgressWithin,
    /// A number of seconds above 0, or null.
    MaxTime,
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
    Grant,
    NamedLease,
    Released,
    Broken,
    Leases,
    /// One word that is true, the name and the token.
    Done(&'static str),
    Checkpoint,
    Requested,
    Sent,
    Received,
    /// One word that is true, the queue and the id of the item.
    ItemDone(&'static str),
    Extended,
    Queues,
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

const WAIT: Field = Field {
    name: "wait",
    kind: FieldKind::Wait,
    required: false,
    means: "seconds to wait if none is free, 0 if left out",
};
const COUNT: Field =
    Field { name: "count", kind: FieldKind::Count, required: true, means: "how many slots" };
const NOTE: Field = Field {
    name: "note",
    kind: FieldKind::Note,
    required: false,
    means: "who and why, for operators; at most 200 bytes",
};
const POOL_NAME: Field =
    Field { name: "name", kind: FieldKind::Name, required: true, means: "the name of the pool" };
const NAME: Field =
    Field { name: "name", kind: FieldKind::Name, required: true, means: "the name, any text" };
const GRANT: Field = Field {
    name: "grant",
    kind: FieldKind::Text,
    required: true,
    means: "the UUID from the answer to the claim",
};

const VALUE: Field = Field {
    name: "value",
    kind: FieldKind::Value,
    required: true,
    means: "a text, a number, null, or bytes as {\"base64\":…}",
};
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
const AFTER: Field = Field {
    name: "after",
    kind: FieldKind::After,
    required: false,
    means: "what the page before has as next",
};

/// Which leases to show: one, or all that begin with a text.
const ONE_OR_MANY: [Field; 2] = [
    Field {
        name: "name",
        kind: FieldKind::Name,
        required: false,
        means: "one name, whether it is leased or not",
    },
    Field {
        name: "prefix",
        kind: FieldKind::Prefix,
        required: false,
        means: "all leased names that begin with this text; every one if it is left out",
    },
];

/// The start of the path of every call on a pool; its id follows.
pub(crate) const POOLS: &str = "/l/";

/// The start of the path of every call on names.
pub(crate) const V1: &str = "/v1";

/// All calls.
pub(crate) const CALLS: &[Call] = &[
    Call {
        kind: CallKind::Register,
        method: "put",
        base: Base::Pool,
        under: "",
        does: "Creates a pool, or changes how many slots it has",
        fields: &[COUNT],
        query: &[],
        answer: Shape::Pool,
        errors: &[413, 415],
    },
    Call {
        kind: CallKind::Look,
        method: "get",
        base: Base::Pool,
        under: "",
        does: "Returns how many slots a pool has, and how many are in use",
        fields: &[],
        query: &[],
        answer: Shape::Pool,
        errors: &[404],
    },
    Call {
        kind: CallKind::Delete,
        method: "delete",
        base: Base::Pool,
        under: "",
        does: "Deletes a pool: its leases stop being valid, and waiting borrows get 404",
        fields: &[],
        query: &[],
        answer: Shape::Deleted,
        errors: &[],
    },
    Call {
        kind: CallKind::Borrow,
        method: "post",
        base: Base::Pool,
        under: "/borrow",
        does: "Borrows the lowest free slot, and waits for one if asked to",
        fields: &[TTL, WAIT, NOTE],
        query: &[],
        answer: Shape::Lease,
        errors: &[404, 409, 413, 415, 429],
    },
    Call {
        kind: CallKind::Return,
        method: "post",
        base: Base::Pool,
        under: "/return",
        does: "Returns a slot; may be repeated",
        fields: &[LEASE],
        query: &[],
        answer: Shape::Returned,
        errors: &[404, 413, 415],
    },
    Call {
        kind: CallKind::Renew,
        method: "post",
        base: Base::Pool,
        under: "/renew",
        does: "Prolongs a live lease under the same token; never shortens it",
        fields: &[LEASE, TTL],
        query: &[],
        answer: Shape::Lease,
        errors: &[404, 409, 413, 415],
    },
    Call {
        kind: CallKind::Keep,
        method: "post",
        base: Base::Pool,
        under: "/keep",
        does: "Keeps a live lease without expiry until it is returned; may be repeated",
        fields: &[LEASE],
        query: &[],
        answer: Shape::Kept,
        errors: &[404, 409, 413, 415],
    },
    Call {
        kind: CallKind::Events,
        method: "get",
        base: Base::Pool,
        under: "/events",
        does: "Streams the state of a pool as server-sent events, without UUIDs",
        fields: &[],
        query: &[],
        answer: Shape::Events,
        errors: &[404],
    },
    Call {
        kind: CallKind::Claim,
        method: "post",
        base: Base::V1,
        under: "/claim",
        does: "Claims a name, and waits for it if asked to",
        fields: &[
            NAME,
            Field {
                name: "owner",
                kind: FieldKind::Owner,
                required: true,
                means: "who has the name then, for everyone to see",
            },
            TTL,
            WAIT,
            Field {
                name: "min_token",
                kind: FieldKind::MinToken,
                required: false,
                means: "the token of the grant is larger than this",
            },
        ],
        query: &[],
        answer: Shape::Grant,
        errors: &[409, 413, 415, 429],
    },
    Call {
        kind: CallKind::RenewLease,
        method: "post",
        base: Base::V1,
        under: "/renew",
        does: "Prolongs a live lease under the same token; never shortens it",
        fields: &[GRANT, TTL],
        query: &[],
        answer: Shape::Grant,
        errors: &[409, 413, 415],
    },
    Call {
        kind: CallKind::Release,
        method: "post",
        base: Base::V1,
        under: "/release",
        does: "Ends a lease",
        fields: &[GRANT],
        query: &[],
        answer: Shape::Released,
        errors: &[409, 413, 415],
    },
    Call {
        kind: CallKind::Transfer,
        method: "post",
        base: Base::V1,
        under: "/transfer",
        does: "Hands a lease to a new owner, who fetches its grant by claiming the name",
        fields: &[
            GRANT,
            Field {
                name: "new_owner",
                kind: FieldKind::Owner,
                required: true,
                means: "who has the name from now on",
            },
            TTL,
        ],
        query: &[],
        answer: Shape::NamedLease,
        errors: &[409, 413, 415],
    },
    Call {
        kind: CallKind::Break,
        method: "post",
        base: Base::V1,
        under: "/break",
        does: "Ends the lease of any holder, and raises its token",
        fields: &[NAME],
        query: &[],
        answer: Shape::Broken,
        errors: &[409, 413, 415],
    },
    Call {
        kind: CallKind::Leases,
        method: "get",
        base: Base::V1,
        under: "/leases",
        does: "Returns who has a name, or lists live leases in pages",
        fields: &[],
        query: &[
            ONE_OR_MANY[0],
            ONE_OR_MANY[1],
            AFTER,
            Field {
                name: "limit",
                kind: FieldKind::Limit,
                required: false,
                means: "how many leases at most, 100 if left out",
            },
        ],
        answer: Shape::Leases,
        errors: &[],
    },
    Call {
        kind: CallKind::LeaseEvents,
        method: "get",
        base: Base::V1,
        under: "/events",
        does: "Streams live leases as server-sent events: all of them, then what changes",
        fields: &[],
        query: &ONE_OR_MANY,
        answer: Shape::Events,
        errors: &[],
    },
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
        kind: CallKind::Attach,
        method: "post",
        base: Base::V1,
        under: "/attach",
        does: "Attaches a value to a live grant; it ends with the grant",
        fields: &[GRANT, VALUE],
        query: &[],
        answer: Shape::Done("attached"),
        errors: &[409, 413, 415],
    },
    Call {
        kind: CallKind::Limit,
        method: "post",
        base: Base::V1,
        under: "/limit",
        does: "Limits a live grant: renewals need progress, and none goes beyond an end",
        fields: &[
            GRANT,
            Field {
                name: "progress_within",
                kind: FieldKind::ProgressWithin,
                required: false,
                means: "renewals are refused without progress within so many seconds",
            },
            Field {
                name: "max_time",
                kind: FieldKind::MaxTime,
                required: false,
                means: "no renewal goes beyond so many seconds from now",
            },
        ],
        query: &[],
        answer: Shape::Done("limited"),
        errors: &[409, 413, 415],
    },
    Call {
        kind: CallKind::Progress,
        method: "post",
        base: Base::V1,
        under: "/progress",
        does: "Tells that the holder of a limited grant makes progress",
        fields: &[GRANT],
        query: &[],
        answer: Shape::Done("progressed"),
        errors: &[409, 413, 415],
    },
    Call {
        kind: CallKind::Checkpoint,
        method: "post",
        base: Base::V1,
        under: "/checkpoint",
        does: "Stores progress under the newest grant of a name",
        fields: &[GRANT, VALUE],
        query: &[],
        answer: Shape::Done("stored"),
        errors: &[409, 413, 415],
    },
    Call {
        kind: CallKind::LastCheckpoint,
        method: "get",
        base: Base::V1,
        under: "/checkpoint",
        does: "Returns the latest checkpoint of a name",
        fields: &[],
        query: &[NAME],
        answer: Shape::Checkpoint,
        errors: &[],
    },
    Call {
        kind: CallKind::Request,
        method: "post",
        base: Base::V1,
        under: "/request",
        does: "Asks the holder of a name to give it up; a claim by the requester that waits repeats it",
        fields: &[
            NAME,
            Field {
                name: "requester",
                kind: FieldKind::Owner,
                required: true,
                means: "who asks: the owner of the claim that waits; a fresh text for each attempt",
            },
            Field {
                name: "within",
                kind: FieldKind::Ttl,
                required: true,
                means: "seconds after which renewals of the holder are refused",
            },
        ],
        query: &[],
        answer: Shape::Requested,
        errors: &[409, 413, 415],
    },
    Call {
        kind: CallKind::HandOver,
        method: "post",
        base: Base::V1,
        under: "/hand-over",
        does: "Hands a lease to its requester, who fetches its grant by a claim that waits",
        fields: &[GRANT, TTL],
        query: &[],
        answer: Shape::NamedLease,
        errors: &[409, 413, 415],
    },
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
        fields: &[QUEUE, RECEIPT],
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
        fields: &[QUEUE, RECEIPT, VISIBILITY],
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
        fields: &[QUEUE, RECEIPT, DELAY, ITEM_NOTE],
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
        fields: &[QUEUE, RECEIPT, ITEM_NOTE],
        query: &[],
        answer: Shape::ItemDone("buried"),
        errors: &[409, 413, 415],
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

/// The status codes of errors that every call has.
const ALWAYS: &[u16] = &[400, 403, 408, 421, 502, 503];

/// Returns the OpenAPI document.
pub(crate) fn openapi(max_count: i64) -> Value {
    let mut paths = json!({});
    for call in CALLS {
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
            "Page": object(&["leases", "next"], json!({
                "leases": { "type": "array", "items": reference("NamedLease") },
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
        } },
    })
}

fn operation(call: &Call, max_count: i64) -> Value {
    let mut responses = json!({ "200": match call.answer {
        Shape::Events => json!({
            "description": "the state, and again whenever it changes",
            "content": { "text/event-stream": { "schema": { "type": "string" } } },
        }),
        Shape::Done(word) => direct("done", done(word, "name", "token")),
        Shape::ItemDone(word) => direct("done", done(word, "queue", "id")),
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

impl Call {
    /// Checks whether the call takes an idempotency key.
    pub(crate) fn has_key(&self) -> bool {
        matches!(
            self.kind,
            CallKind::Borrow
                | CallKind::Claim
                | CallKind::Send
                | CallKind::Receive
                | CallKind::Ack
                | CallKind::SlotBorrow
        )
    }

    /// Returns the longest body that a request may have, in bytes.
    pub(crate) fn longest_body(&self) -> usize {
        match self.kind {
            CallKind::Send => LONGEST_SEND,
            _ => LONGEST,
        }
    }
}

impl Field {
    fn schema(&self, max_count: i64) -> Value {
        let mut schema = match self.kind {
            FieldKind::Count => json!({ "type": "integer", "minimum": 0, "maximum": max_count }),
            FieldKind::Ttl => json!({ "type": "number", "exclusiveMinimum": 0 }),
            FieldKind::Wait => json!({ "type": "number", "minimum": 0 }),
            FieldKind::Note => json!({ "type": "string", "maxLength": 200 }),
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
            Shape::Done(word) | Shape::ItemDone(word) => word,
            Shape::Checkpoint => "Checkpoint",
            Shape::Requested => "Requested",
            Shape::Sent => "Sent",
            Shape::Received => "Received",
            Shape::Extended => "Extended",
            Shape::Queues => "Queues",
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

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

fn object(required: &[&str], properties: Value) -> Value {
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
        415 => "the body is not application/json",
        421 => "the server is not known by this host name",
        429 => "too many requests wait already",
        502 => "the database failed; safe to try again",
        503 => "the server is shutting down",
        _ => "an error",
    }
}
