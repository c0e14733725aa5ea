//! Calls on a pool, by its id, and their answers.

use serde::Deserialize;
use serde_json::Value as Json;

use crate::answer::{Described, NATURAL, POSITIVE, Schemas, Seconds};
use crate::call::{Call, Key};
use crate::field::{Count, Note, Optional, SlotId, Ttl, Wait};

pub(crate) const COUNT: &str = "how many slots";
pub(crate) const LEASE: &str = "the UUID from the answer to the borrow";
pub(crate) const NOTE: &str = "who and why, for operators; at most 200 bytes";
pub(crate) const TTL: &str =
    "seconds, may be fractional; cut to the longest that the server allows";
const IF_KEPT: (&str, &str) = ("description", "null if the slot is kept");
pub(crate) const WAIT: &str = "seconds to wait if none is free, 0 if left out";

calls! {
    /// Creates a pool, or changes how many slots it has
    Register = Call { name: "register", ..Call::new("put", "/l/{id}") } => Pool {
        count: Count = COUNT,
    }

    /// Returns how many slots a pool has, and how many are in use
    Look = Call { name: "look", errors: &[404], ..Call::get("/l/{id}") } => Pool {}

    /// Deletes a pool: its leases stop being valid, and waiting borrows get 404
    Delete = Call { name: "delete", ..Call::new("delete", "/l/{id}") } => Deleted {}

    /// Borrows the lowest free slot, and waits for one if asked to
    Borrow = Call {
        name: "borrow",
        key: Key::PerLease,
        is_frequent: true,
        errors: &[404, 409, 429],
        ..Call::post("/l/{id}/borrow")
    } => SlotLease {
        ttl: Ttl = TTL,
        wait: Wait = WAIT,
        note: Optional<Note> = NOTE,
    }

    /// Returns a slot; may be repeated
    Return = Call {
        name: "return",
        is_frequent: true,
        errors: &[404],
        ..Call::post("/l/{id}/return")
    } => Returned {
        lease: SlotId = LEASE,
    }

    /// Prolongs a live lease under the same token; never shortens it
    Renew = Call {
        name: "renew",
        is_frequent: true,
        errors: &[404, 409],
        ..Call::post("/l/{id}/renew")
    } => SlotLease {
        lease: SlotId = LEASE,
        ttl: Ttl = TTL,
    }

    /// Keeps a live lease without expiry until it is returned; may be repeated
    Keep = Call { name: "keep", errors: &[404, 409], ..Call::post("/l/{id}/keep") } => Kept {
        lease: SlotId = LEASE,
    }

    /// Streams the state of a pool as server-sent events, without UUIDs
    Events = Call {
        name: "events",
        is_stream: true,
        errors: &[404],
        ..Call::get("/l/{id}/events")
    } => Stream {}
}

answers! {
    /// A pool.
    Pool {
        available: i64 = NATURAL,
        count: i64 = NATURAL,
        id: String = ("format", "uuid"),
        in_use: i64 = NATURAL,
    }

    /// A lease on a slot. The times are null if the slot is kept.
    SlotLease {
        expires_at_unix: Option<i64> = IF_KEPT,
        expires_in: Option<Seconds> = IF_KEPT,
        lease: String = ("format", "uuid"),
        position: i64 = NATURAL,
        token: i64 = POSITIVE,
    }

    /// A pool is deleted.
    Deleted { deleted: bool }

    /// A slot is returned, if it was still the client's.
    Returned { returned: bool }

    /// A slot is kept.
    Kept { kept: bool }

    /// The state of a pool, as an event.
    PoolState {
        available: i64,
        count: i64,
        in_use: i64,
        slots: Vec<HeldSlot>,
        waiters: usize,
    }

    /// A slot that is lent out, as every client may see it.
    HeldSlot {
        expires_in: Option<Seconds> = IF_KEPT,
        [optional] kept_for: Option<Option<Seconds>>,
        note: Option<String>,
        position: i64 = NATURAL,
        token: i64 = POSITIVE,
    }
}

/// A stream of server-sent events.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Stream;

impl Described for Stream {
    fn schema(_: &mut Schemas) -> Json {
        String::schema(&mut Schemas::new())
    }
}
