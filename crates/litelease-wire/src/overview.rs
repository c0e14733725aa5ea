//! The overview of operators: everything that is held, with what is stuck or late, and why.

use litelease_core::Scope;

use crate::answer::NATURAL;
use crate::call::Call;
use crate::field::{ItemIdText, Optional, Text};
use crate::pools::Stream;
use crate::value::Value;

const UNDER: &str =
    "only what begins with this text; everything if it is left out, which needs a key for all";
const HEALTH: (&str, &[&str]) = ("enum", &["stuck", "late", "paused", "waiting", "ok"]);

calls! {
    /// Returns everything that is held, with what is stuck or late, and why
    ReadOverview = Call {
        name: "overview",
        scopes: &[Scope::Observe],
        ..Call::get("/v1/overview")
    } => Overview {
        prefix: Optional<Text> = UNDER,
    }

    /// Streams the overview as server-sent events: all of it, then what changes, and a heartbeat
    /// at least every 2 seconds
    OverviewEvents = Call {
        name: "overview_events",
        scopes: &[Scope::Observe],
        is_stream: true,
        ..Call::get("/v1/overview/events")
    } => Stream {
        prefix: Optional<Text> = UNDER,
    }

    /// Returns the name and the permissions of the access key that the request has
    ReadKey = Call {
        name: "key",
        ..Call::get("/v1/key")
    } => OwnKey {}

    /// Returns an item of a queue with its body
    ReadItem = Call {
        name: "item",
        scopes: &[Scope::Operate],
        ..Call::get("/v1/queue/item")
    } => ItemBody {
        queue: Text = "the name of the queue",
        id: ItemIdText = "the item",
    }
}

answers! {
    /// Everything that is held. All times are in Unix milliseconds on the clock of the server.
    Overview {
        at_ms: i64,
        attention: Vec<Attention>,
        figures: Vec<Figure>,
        free: i64 = NATURAL,
        health: String = HEALTH,
        [optional] history: Option<i64> =
            ("description", "how many rows of history are kept; left out if there is none"),
        names: Vec<OverviewName>,
        pools: Vec<OverviewPool>,
        queues: Vec<OverviewQueue>,
        rule: String = ("description", "the thresholds, in a sentence"),
        sessions: Vec<OverviewSession>,
        shards: Vec<OverviewShards>,
        ticks: Vec<OverviewTick>,
        verdict: String = ("description", "the answer to: is anything stuck?"),
    }

    /// The changes since the event before. A part that is left out has not changed. Of names there
    /// are the changed ones, and those that are free now.
    OverviewChange {
        at_ms: i64,
        [optional] attention: Option<Vec<Attention>>,
        [optional] figures: Option<Vec<Figure>>,
        free: i64 = NATURAL,
        gone: Vec<String>,
        health: String = HEALTH,
        names: Vec<OverviewName>,
        [optional] pools: Option<Vec<OverviewPool>>,
        [optional] queues: Option<Vec<OverviewQueue>>,
        [optional] sessions: Option<Vec<OverviewSession>>,
        [optional] shards: Option<Vec<OverviewShards>>,
        [optional] ticks: Option<Vec<OverviewTick>>,
        verdict: String,
    }

    /// A number that answers a part of the question whether anything is stuck.
    Figure {
        health: String = HEALTH,
        kind: String = (
            "enum",
            ["live", "waiting", "oldest_wait", "oldest_item", "dead", "late_ticks"].as_slice()
        ),
        title: String,
        value: String,
        why: String,
    }

    /// A thing that an operator should look at.
    Attention {
        act: String = ("enum", ["break", "resume", "open"].as_slice()),
        health: String = HEALTH,
        kind: String = ("enum", ["name", "queue", "tick"].as_slice()),
        name: String,
        [optional] place: Option<String>,
        [optional] since_ms: Option<i64>,
        waits: String,
        who: String,
        why: String,
    }

    /// A live lease on a name.
    OverviewName {
        [optional] command: Option<String>,
        expires_at_ms: i64,
        health: String = HEALTH,
        [optional] host: Option<String>,
        [optional] limits: Option<String>,
        name: String,
        owner: String,
        [optional] pid: Option<i64>,
        [optional] process: Option<String> = ("enum", ["alive", "gone", "unknown"].as_slice()),
        [optional] renewed_at_ms: Option<i64>,
        [optional] requester: Option<String>,
        [optional] since_ms: Option<i64>,
        token: i64 = NATURAL,
        [optional] user: Option<String>,
        waiters: usize = NATURAL,
        [optional] waiting: Option<Vec<OverviewWaiter>> = ("description", "the first 20"),
        [optional] why: Option<String>,
    }

    /// A request that waits for a name or a slot, in the order in which they are served.
    OverviewWaiter {
        [optional] host: Option<String>,
        [optional] note: Option<String>,
        [optional] owner: Option<String>,
        [optional] pid: Option<i64>,
        [optional] since_ms: Option<i64>,
    }

    /// A queue.
    OverviewQueue {
        dead: i64 = NATURAL,
        delayed: i64 = NATURAL,
        health: String = HEALTH,
        leased: i64 = NATURAL,
        max_attempts: i64 = NATURAL,
        [optional] oldest_since_ms: Option<i64>,
        [optional] paused: Option<QueuePause>,
        queue: String,
        visible: i64 = NATURAL,
        [optional] why: Option<String>,
    }

    /// A pause of a queue.
    QueuePause {
        [optional] by: Option<String>,
        [optional] reason: Option<String>,
        since_ms: i64,
    }

    /// A pool, without its id. Two that have no name may have the same label.
    OverviewPool {
        count: i64 = NATURAL,
        health: String = HEALTH,
        in_use: i64 = NATURAL,
        is_named: bool,
        label: String,
        slots: Vec<OverviewSlot> = ("description", "the first 20 that are held"),
        waiters: usize = NATURAL,
        [optional] waiting: Option<Vec<OverviewWaiter>> = ("description", "the first 20"),
    }

    /// A slot that is lent out.
    OverviewSlot {
        [optional] expires_at_ms: Option<i64>,
        [optional] note: Option<String>,
        position: i64 = NATURAL,
        token: i64 = NATURAL,
    }

    /// The newest tick of a schedule.
    OverviewTick {
        attempt: i64 = NATURAL,
        attempts: i64 = NATURAL,
        [optional] began_ms: Option<i64>,
        [optional] done_ms: Option<i64>,
        [optional] ended_ms: Option<i64>,
        health: String = HEALTH,
        name: String,
        [optional] next_ms: Option<i64>,
        [optional] owner: Option<String>,
        [optional] schedule: Option<String>,
        state: String = ("enum", ["running", "open", "done", "failed", "skipped"].as_slice()),
        tick_ms: i64,
        [optional] why: Option<String>,
    }

    /// A session: one identity, and the names that were claimed in it.
    OverviewSession {
        expires_at_ms: i64,
        health: String = HEALTH,
        [optional] host: Option<String>,
        name: String,
        names: i64 = NATURAL,
        owner: String,
        [optional] pid: Option<i64>,
        [optional] renewed_at_ms: Option<i64>,
        [optional] since_ms: Option<i64>,
    }

    /// A group of shards.
    OverviewShards {
        count: i64 = NATURAL,
        each: Vec<i64> = ("description", "how many shards each member has"),
        group: String,
        held: i64 = NATURAL,
        health: String = HEALTH,
        requests: i64 = NATURAL,
    }

    /// The access key of a request. A server that needs none has no name for it.
    OwnKey {
        allow: Vec<String>,
        name: Option<String>,
    }

    /// An item of a queue, with its body.
    ItemBody {
        body: Value,
        id: i64 = NATURAL,
        queue: String,
    }
}
