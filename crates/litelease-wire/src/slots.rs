//! Calls on the slots of a pool that has a name, and their answers.

use litelease_core::Scope;

use crate::answer::NATURAL;
use crate::call::{Call, Key};
use crate::field::{Count, Note, Optional, PageLength, SlotId, Text, Token, Ttl, Wait};
use crate::leases::{AFTER, REASON, Waiter};
use crate::pools::{COUNT, HeldSlot, LEASE, NOTE, Returned, SlotLease, TTL, WAIT};

const POOL: &str = "the name of the pool";

calls! {
    /// Borrows a slot of the pool of this name, which is made or resized if it must be
    SlotBorrow = Call {
        name: "slot_borrow",
        scopes: &[Scope::Claim],
        key: Key::PerLease,
        is_frequent: true,
        errors: &[409, 429],
        ..Call::post("/v1/slot/borrow")
    } => SlotLease {
        name: Text = POOL,
        count: Count = COUNT,
        ttl: Ttl = TTL,
        wait: Wait = WAIT,
        note: Optional<Note> = NOTE,
    }

    /// Prolongs a live lease on a slot under the same token; never shortens it
    SlotRenew = Call {
        name: "slot_renew",
        scopes: &[Scope::Claim],
        is_frequent: true,
        errors: &[404, 409],
        ..Call::post("/v1/slot/renew")
    } => SlotLease {
        name: Text = POOL,
        lease: SlotId = LEASE,
        ttl: Ttl = TTL,
    }

    /// Returns a slot; may be repeated
    SlotReturn = Call {
        name: "slot_return",
        scopes: &[Scope::Claim],
        is_frequent: true,
        errors: &[404],
        ..Call::post("/v1/slot/return")
    } => Returned {
        name: Text = POOL,
        lease: SlotId = LEASE,
    }

    /// Ends the lease of any holder of a slot, if the slot is lent under this token
    SlotBreak = Call {
        name: "slot_break",
        scopes: &[Scope::Operate],
        errors: &[404],
        ..Call::post("/v1/slot/break")
    } => Returned {
        name: Text = POOL,
        position: Count = "the number of the slot",
        token: Token = "its token, so that no successor is ended",
        reason: Optional<Note> = REASON,
    }

    /// Lists the held slots of the pool of a name, or the pools of which slots are held
    ListSlots = Call {
        name: "slots",
        scopes: &[Scope::Observe],
        ..Call::get("/v1/slots")
    } => Slots {
        name: Optional<Text> = POOL,
        prefix: Optional<Text> =
            "all pools whose name begins with this text; every one if it is left out",
        after: Optional<Text> = AFTER,
        limit: Optional<PageLength> = "how many slots or pools at most, 100 if left out",
    }

    /// Lists all pools by label: the name of one that has a name, else four characters of a hash
    ListPools = Call {
        name: "pools",
        scopes: &[Scope::Observe],
        ..Call::get("/v1/pools")
    } => Pools {
        after: Optional<Text> = AFTER,
        limit: Optional<PageLength> = "how many pools at most, 100 if left out",
    }
}

answers! {
    /// A pool that has a name. Its slots are there if the name was given.
    PoolOfName {
        available: i64 = NATURAL,
        count: i64 = NATURAL,
        in_use: i64 = NATURAL,
        name: String,
        [optional] slots: Option<Vec<HeldSlot>> = ("description", "there if a name is given"),
    }

    /// A pool, without its id. Two that have no name may have the same label.
    PoolOfLabel {
        available: i64 = NATURAL,
        count: i64 = NATURAL,
        in_use: i64 = NATURAL,
        label: String,
        slots: Vec<HeldSlot> = ("description", "the first 20 that are held"),
        waiters: usize = NATURAL,
        [optional] waiting: Option<Vec<Waiter>> = ("description", "the first 20 of them"),
    }

    /// Pools, and the `after` of the next page.
    Pools {
        next: Option<String>,
        pools: Vec<PoolOfLabel>,
    }

    /// Pools that have names, and the `after` of the next page.
    Slots {
        next: Option<String>,
        pools: Vec<PoolOfName>,
    }
}
