//! The table of calls: path, method, fields and answers. Requests are checked against it, and the
//! OpenAPI document is generated from it.

use crate::body::{LONGEST, LONGEST_SEND};

pub(crate) use openapi::openapi;

mod grants;
mod leases;
mod openapi;
mod pools;
mod queues;
mod slots;

/// The calls on pools and names. Every `match` on it is exhaustive, so a new call does not compile
/// until all places handle it.
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
    SlotBreak,
    Slots,
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
    Redrive,
    Discard,
    Cancel,
    DeleteQueue,
    Items,
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
            CallKind::SlotBreak => "slot_break",
            CallKind::Slots => "slots",
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
            CallKind::Redrive => "redrive",
            CallKind::Discard => "discard",
            CallKind::Cancel => "cancel",
            CallKind::DeleteQueue => "delete_queue",
            CallKind::Items => "items",
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
    /// A text: the secret of a grant, or a receipt.
    Text,
    /// A UUID: a lease on a slot.
    Lease,
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
    /// A whole number above 0: an item.
    ItemId,
    /// True or false.
    All,
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
    /// A queue, and how many of its items were changed, under this word.
    Counted(&'static str),
    /// A queue, and whether it was deleted.
    QueueDeleted,
    Items,
    Queues,
    Slots,
}

// Fields that several capabilities share.

const TTL: Field = Field {
    name: "ttl",
    kind: FieldKind::Ttl,
    required: true,
    means: "seconds, may be fractional; cut to the longest that the server allows",
};
const LEASE: Field = Field {
    name: "lease",
    kind: FieldKind::Lease,
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
const NAME: Field =
    Field { name: "name", kind: FieldKind::Name, required: true, means: "the name, any text" };
const GRANT: Field = Field {
    name: "grant",
    kind: FieldKind::Text,
    required: true,
    means: "the UUID from the answer to the claim",
};
const AFTER: Field = Field {
    name: "after",
    kind: FieldKind::After,
    required: false,
    means: "the field next of the page before",
};

/// The start of the path of every call on a pool; its id follows.
pub(crate) const POOLS: &str = "/l/";

/// The start of the path of every call on names.
pub(crate) const V1: &str = "/v1";

/// Returns all calls.
pub(crate) fn all() -> impl Iterator<Item = &'static Call> {
    [pools::CALLS, leases::CALLS, slots::CALLS, grants::CALLS, queues::CALLS].into_iter().flatten()
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
                | CallKind::Redrive
                | CallKind::Discard
                | CallKind::Cancel
                | CallKind::DeleteQueue
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
