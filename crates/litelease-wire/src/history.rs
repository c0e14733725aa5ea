//! The history: what became of names, queues and pools, and who has done it.

use litelease_core::Scope;

use crate::answer::{POSITIVE, Seconds};
use crate::call::Call;
use crate::field::{EventKind, ObjectKind, Optional, PageLength, Text, UnixTime};
use crate::leases::AFTER;

calls! {
    /// Lists what happened, the newest first
    ListHistory = Call {
        name: "history",
        scopes: &[Scope::Observe],
        ..Call::get("/v1/history")
    } => History {
        name: Optional<Text> = "one name, queue or pool; a pool without a name has its label here",
        prefix: Optional<Text> = "all that begin with this text; every one if it is left out",
        object: Optional<ObjectKind> = "only what happened to names, to queues or to pools",
        kind: Optional<EventKind> = "only rows of this kind",
        since: Optional<UnixTime> = "only what happened at this Unix time or later",
        newer: Optional<Text> =
            "the newest id that the client has: only what was recorded after it, the oldest first",
        after: Optional<Text> = AFTER,
        limit: Optional<PageLength> = "how many rows at most, 100 if left out",
    }
}

answers! {
    /// Something that happened. What does not apply is left out.
    Event {
        [optional] actor: Option<String> =
            ("description", "the name of the access key of the operator who did it"),
        at_unix_ms: i64 = ("description", "when it happened, in Unix milliseconds"),
        [optional] held_for: Option<Seconds> =
            ("description", "how long a grant that ended was held"),
        id: i64 = ("description", "0 for the end of a lease that ran out, until its next grant"),
        kind: String = ("enum", KINDS),
        name: String,
        [optional] note: Option<String> =
            ("description", "the reason of an operator, or of the worker that gave an item up"),
        [optional] number: Option<i64> =
            ("description", "the tick in Unix milliseconds, the id of the item, or the slot"),
        object: String = ("enum", OBJECTS),
        [optional] owner: Option<String>,
        [optional] result: Option<i64> =
            ("description", "the exit code of a command, or how many items an operator changed"),
        [optional] token: Option<i64> = POSITIVE,
    }

    /// A page of the history, and the `after` of the next one.
    History {
        events: Vec<Event>,
        keeps: Option<i64> = ("description", "how many rows are kept; null if the history is off"),
        next: Option<String>,
    }
}

/// The kinds of objects in a history.
pub(crate) const OBJECTS: &[&str] = &["name", "queue", "pool"];

/// The kinds of rows.
pub(crate) const KINDS: &[&str] = &litelease_core::HISTORY_KINDS;
