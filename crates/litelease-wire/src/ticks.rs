//! Calls on ticks: the instants that a schedule plans, each run once. And their answers. A tick
//! that takes its time is claimed with its name, by [`Claim`](crate::Claim).

use litelease_core::Scope;

use crate::answer::{NATURAL, POSITIVE, Seconds};
use crate::call::{Call, Key};
use crate::field::{Choice, ItemNote, Moment, Note, Optional, Outcome, PageLength, Text};
use crate::leases::{AFTER, GRANT, NAME, REASON};

pub(crate) const TICK: &str = "the instant that the schedule has planned, in Unix milliseconds";
pub(crate) const SCHEDULE: &str = "the schedule, for everyone to see; at most 1000 bytes";
const STATES: (&str, &[&str]) = ("enum", &["open", "done", "failed", "skipped"]);
const MS: (&str, &str) = ("description", "Unix milliseconds");

calls! {
    /// Makes the tick of a lease final, and ends the lease
    FinishTick = Call {
        name: "finish",
        scopes: &[Scope::Claim],
        errors: &[409],
        ..Call::post("/v1/finish")
    } => Finished {
        grant: Text = GRANT,
        outcome: Outcome = "done or failed; done if it is left out",
    }

    /// Begins and finishes a tick in one step; the first request for it is answered 200
    DoTick = Call {
        name: "tick",
        scopes: &[Scope::Claim],
        key: Key::PerTick,
        errors: &[409],
        ..Call::post("/v1/tick")
    } => Ticked {
        name: Text = NAME,
        tick_ms: Moment = TICK,
    }

    /// Counts the newest past tick of a new schedule as skipped, so that installing it runs nothing
    InstallSchedule = Call {
        name: "install_schedule",
        scopes: &[Scope::Claim],
        ..Call::post("/v1/ticks/install")
    } => TickChanged {
        name: Text = NAME,
        tick_ms: Moment = TICK,
        schedule: Optional<ItemNote> = SCHEDULE,
    }

    /// Skips every tick up to now, or up to a time: this pauses a schedule, and ends a pause
    SkipTicks = Call {
        name: "skip_ticks",
        scopes: &[Scope::Operate],
        errors: &[409],
        ..Call::post("/v1/ticks/skip")
    } => TickChanged {
        name: Text = NAME,
        until_ms: Optional<Moment> = "up to this time in Unix milliseconds, instead of now",
        breaks: Choice = "true: end the lease of a holder that is at work on such a tick",
        reason: Optional<Note> = REASON,
    }

    /// Opens the newest tick once more, with all its attempts
    TickAgain = Call {
        name: "tick_again",
        scopes: &[Scope::Operate],
        errors: &[409],
        ..Call::post("/v1/ticks/again")
    } => TickChanged {
        name: Text = NAME,
        reason: Optional<Note> = REASON,
    }

    /// Deletes the newest tick of a schedule that is no more
    ForgetTick = Call {
        name: "forget_tick",
        scopes: &[Scope::Operate],
        errors: &[409],
        ..Call::post("/v1/ticks/forget")
    } => TickChanged {
        name: Text = NAME,
        reason: Optional<Note> = REASON,
    }

    /// Lists the newest tick of each name, in pages
    ListTicks = Call {
        name: "ticks",
        // Every claimant of a schedule looks which tick is due.
        scopes: &[Scope::Claim, Scope::Observe],
        ..Call::get("/v1/ticks")
    } => Ticks {
        name: Optional<Text> = "the tick of this name alone",
        prefix: Optional<Text> =
            "those of all names that begin with this text; every one if it is left out",
        after: Optional<Text> = AFTER,
        limit: Optional<PageLength> = "how many ticks at most, 100 if left out",
    }
}

answers! {
    /// A tick that is taken, and its state.
    NewestTick {
        state: String = STATES,
        tick_ms: i64 = MS,
    }

    /// The tick of a new lease.
    BegunTick {
        attempt: i64 = POSITIVE,
        [optional] passed_ms: Option<i64> =
            ("description", "an older tick that was open, and is not run any more"),
        [optional] previous_ms: Option<i64> =
            ("description", "the newest tick before that was done"),
        tick_ms: i64 = MS,
    }

    /// A tick is final, and its lease has ended.
    Finished {
        name: String,
        state: String = ("enum", ["done", "failed"].as_slice()),
        tick_ms: i64 = MS,
        token: i64 = POSITIVE,
    }

    /// The tick is the client's, and done.
    Ticked { first: bool, name: String, tick_ms: i64 = MS }

    /// The newest tick of a name after a change, or before it was forgotten.
    TickChanged {
        name: String,
        state: String = STATES,
        tick_ms: i64 = MS,
    }

    /// The newest tick of a name.
    Tick {
        attempt: i64 = NATURAL,
        attempts: i64 = POSITIVE,
        began_ms: i64 = MS,
        done_ms: Option<i64> = ("description", "the newest tick that was done"),
        ended_ms: Option<i64> = MS,
        expires_in: Option<Seconds> =
            ("description", "while a holder is at work on it: what is left of its lease"),
        name: String,
        owner: Option<String>,
        schedule: Option<String>,
        state: String = STATES,
        tick_ms: i64 = MS,
        token: Option<i64> = ("description", "of its newest grant"),
    }

    /// A page of ticks, and the `after` of the next one.
    Ticks {
        next: Option<String>,
        ticks: Vec<Tick>,
    }
}

impl From<litelease_core::NewestTick> for NewestTick {
    fn from(newest: litelease_core::NewestTick) -> Self {
        NewestTick { state: newest.state.word().into(), tick_ms: newest.tick_ms }
    }
}
