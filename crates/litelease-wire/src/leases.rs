//! Calls on names: claiming them, and looking at who has them. And their answers.

use litelease_core::Scope;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use crate::answer::{Described, NATURAL, POSITIVE, Schemas, Seconds, define, reference};
use crate::call::{Call, Key};
use crate::field::{
    Attempts, Flag, ItemNote, Moment, Note, Optional, PageLength, Text, Token, Ttl, Wait,
};
use crate::pools::{Stream, TTL, WAIT};
use crate::ticks::{BegunTick, SCHEDULE, TICK};
use crate::value::Value;

pub(crate) const NAME: &str = "the name, any text";
pub(crate) const GRANT: &str = "the UUID from the answer to the claim";
pub(crate) const AFTER: &str = "the field next of the page before";
const HELD_FOR: (&str, &str) =
    ("description", "the time since this grant began; renewals do not change when that was");
pub(crate) const REASON: &str = "why, for the log of the server; at most 200 bytes";
const ONE: &str = "one name, whether it is leased or not";
const MANY: &str = "all leased names that begin with this text; every one if it is left out";

calls! {
    /// Claims a name, and waits for it if asked to
    Claim = Call {
        name: "claim",
        scopes: &[Scope::Claim],
        key: Key::PerLease,
        is_frequent: true,
        errors: &[409, 429],
        ..Call::post("/v1/claim")
    } => Grant {
        name: Text = NAME,
        owner: Text = "who has the name then, for everyone to see",
        ttl: Ttl = TTL,
        wait: Wait = WAIT,
        min_token: Optional<Token> = "the token of the grant is larger than this",
        note: Optional<Note> = "who waits and why, shown while it waits; at most 200 bytes",
        tick_ms: Optional<Moment> = TICK,
        attempts: Optional<Attempts> =
            "how often the tick may be granted, 5 if left out; the smallest number counts",
        schedule: Optional<ItemNote> = SCHEDULE,
    }

    /// Prolongs a live lease under the same token; never shortens it
    RenewLease = Call {
        name: "renew_lease",
        scopes: &[Scope::Claim],
        is_frequent: true,
        errors: &[409],
        ..Call::post("/v1/renew")
    } => Grant {
        grant: Text = GRANT,
        ttl: Ttl = TTL,
    }

    /// Ends a lease
    Release = Call {
        name: "release",
        scopes: &[Scope::Claim],
        is_frequent: true,
        errors: &[409],
        ..Call::post("/v1/release")
    } => Released {
        grant: Text = GRANT,
    }

    /// Hands a lease to a new owner, who fetches its grant by claiming the name
    Transfer = Call {
        name: "transfer",
        scopes: &[Scope::Claim],
        errors: &[409],
        ..Call::post("/v1/transfer")
    } => Lease {
        grant: Text = GRANT,
        new_owner: Text = "who has the name from now on",
        ttl: Ttl = TTL,
    }

    /// Ends the lease of any holder, and raises its token
    Break = Call {
        name: "break",
        scopes: &[Scope::Operate],
        errors: &[409],
        ..Call::post("/v1/break")
    } => Broken {
        name: Text = NAME,
        reason: Optional<Note> = REASON,
    }

    /// Returns who has a name, or lists live leases in pages
    ListLeases = Call {
        name: "leases",
        scopes: &[Scope::Observe],
        ..Call::get("/v1/leases")
    } => Leases {
        name: Optional<Text> = ONE,
        prefix: Optional<Text> = MANY,
        after: Optional<Text> = AFTER,
        limit: Optional<PageLength> = "how many leases at most, 100 if left out",
        all: Flag = "true: in pages also names that nobody has, each with its state",
    }

    /// Streams live leases as server-sent events: all of them, then what changes
    LeaseEvents = Call {
        name: "lease_events",
        scopes: &[Scope::Observe],
        is_stream: true,
        ..Call::get("/v1/events")
    } => Stream {
        name: Optional<Text> = ONE,
        prefix: Optional<Text> = MANY,
    }
}

answers! {
    /// A lease, and the secret by which it is renewed and released.
    Grant {
        expires_at_unix: i64,
        expires_in: Seconds,
        grant: String = ("format", "uuid"),
        name: String,
        owner: String,
        [optional] tick: Option<BegunTick>,
        token: i64 = POSITIVE,
    }

    /// A live lease, as everybody may see it.
    Lease {
        expires_at_unix: i64,
        expires_in: Seconds,
        held_for: Seconds = HELD_FOR,
        name: String,
        owner: String,
        [optional] requested: Option<OpenRequest>,
        token: i64 = POSITIVE,
        [optional] value: Option<Value>,
        [optional] value_left_out: Option<bool>,
    }

    /// A name, leased or not.
    Name {
        expires_at_unix: Option<i64>,
        expires_in: Option<Seconds>,
        held_for: Option<Seconds> = HELD_FOR,
        name: String,
        owner: Option<String>,
        [optional] requested: Option<OpenRequest>,
        token: Option<i64>,
        [optional] value: Option<Value>,
        waiters: usize = NATURAL,
        [optional] waiting: Option<Vec<Waiter>> =
            ("description", "the first 100 of them, in the order in which they are served"),
    }

    /// A request that waits. Only a claim has an owner.
    Waiter {
        [optional] note: Option<String>,
        [optional] owner: Option<String>,
        [optional] waits_for: Option<Seconds> = NATURAL,
    }

    /// A name that nobody has. In pages it has a state.
    EndedLease {
        [optional] expired_for: Option<Seconds> = NATURAL,
        expires_at_unix: (),
        expires_in: (),
        [optional] last_owner: Option<String>,
        name: String,
        owner: (),
        [optional] state: Option<String> = ("enum", ["released", "expired"].as_slice()),
        token: i64 = NATURAL,
    }

    /// A page of names, and the `after` of the next one.
    LeasePage {
        leases: Vec<KnownLease>,
        next: Option<String>,
    }

    /// News of a stream: leases that are live, and some that have ended.
    LeaseNews { leases: Vec<KnownLease> }

    /// A lease has ended.
    Released {
        name: String,
        released: bool,
        token: i64 = POSITIVE,
    }

    /// The lease of any holder has ended.
    Broken {
        killed: i64 = POSITIVE,
        name: String,
        owner: String,
    }

    /// The holder of a lease is asked to give it up.
    OpenRequest {
        name: String,
        requester: String,
        token: i64 = POSITIVE,
        until_unix: i64,
        within: Seconds = NATURAL,
    }
}

/// A name of a page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum KnownLease {
    /// Its lease is live.
    Live(Lease),
    /// Nobody has it.
    Ended(EndedLease),
}

impl Described for KnownLease {
    fn schema(schemas: &mut Schemas) -> Json {
        json!({ "oneOf": [Lease::schema(schemas), EndedLease::schema(schemas)] })
    }
}

/// One name, or a page of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Leases {
    /// The name that was asked for.
    One(Name),
    /// A page.
    Page(LeasePage),
}

impl Described for Leases {
    fn schema(schemas: &mut Schemas) -> Json {
        define(
            schemas,
            "Leases",
            |schemas| json!({ "oneOf": [Name::schema(schemas), LeasePage::schema(schemas)] }),
        );
        reference("Leases")
    }
}
