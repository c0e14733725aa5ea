//! Ticks.

use litelease_core::{
    ClaimTickResult, DEFAULT_TICK_ATTEMPTS, FinishTickResult, NewestTick, TickChange, TickInfo,
    TickOutcome, TickRequest, TickResult, TickState,
};

use super::answers::{Form, Plain, case, lease, optional, optional_text, text};
use super::queue::or_roll_back;
use super::{Answer, Arguments, Listing, collected};
use crate::tick::TickClaim;
use crate::{Error, OwnedValue, Store, When};

/// SQL: 1 for the first, 0 if the tick is taken.
pub(super) fn tick(store: &Store, given: &Arguments<'_>) -> Result<OwnedValue, Error> {
    let (name, tick_ms) = (given.text(0), given.integer(1));
    match store.tick(name, tick_ms, given.when(2))? {
        TickResult::First => Ok(OwnedValue::Integer(1)),
        TickResult::AlreadyTaken(_) => Ok(OwnedValue::Integer(0)),
        TickResult::InFuture { now_ms } => Err(in_future(name, tick_ms, now_ms)),
    }
}

pub(super) fn tick_case(store: &Store, given: &Arguments<'_>) -> Result<Answer, Error> {
    Ok(vec![match store.tick(given.text(0), given.integer(1), given.when(2))? {
        TickResult::First => vec![text("First")],
        TickResult::AlreadyTaken(newest) => taken(newest),
        TickResult::InFuture { now_ms } => ahead(now_ms),
    }])
}

/// SQL: the token; 0 if the tick is taken, NULL if the name is busy.
pub(super) fn claim_tick(store: &Store, given: &Arguments<'_>) -> Result<OwnedValue, Error> {
    let (name, owner, ttl_ms) = (given.text(0), given.text(1), given.integer(2));
    let tick_ms = given.integer(3);
    let attempts = given.optional(4).unwrap_or(DEFAULT_TICK_ATTEMPTS);
    let claim = TickClaim { asked: TickRequest { tick_ms, attempts }, schedule: None };
    let keep = |answer: ClaimTickResult<&str>| match answer {
        ClaimTickResult::Acquired { lease, .. } => Ok(OwnedValue::Integer(lease.token)),
        ClaimTickResult::Busy { .. } => Ok(OwnedValue::Null),
        ClaimTickResult::AlreadyTaken(_) => Ok(OwnedValue::Integer(0)),
        ClaimTickResult::InFuture { now_ms } => Err(in_future(name, tick_ms, now_ms)),
    };
    store.claim_tick(name, owner, ttl_ms, claim, given.when(5), None, keep)?
}

pub(super) fn claim_tick_case(store: &Store, given: &Arguments<'_>) -> Result<Answer, Error> {
    let (name, owner, ttl_ms) = (given.text(0), given.text(1), given.integer(2));
    let attempts = given.optional(4).unwrap_or(DEFAULT_TICK_ATTEMPTS);
    let asked = TickRequest { tick_ms: given.integer(3), attempts };
    let claim = TickClaim { asked, schedule: given.optional_text(6) };
    let keep = |answer: ClaimTickResult<&str>| {
        vec![match answer.into_owned() {
            ClaimTickResult::Acquired { lease, attempt, previous_ms, passed_ms } => {
                let more = [Some(attempt), previous_ms, passed_ms].map(optional);
                [case("Acquired", lease), more.to_vec()].concat()
            }
            ClaimTickResult::Busy { current, tick_ms } => {
                [case("Busy", current), vec![optional(tick_ms)]].concat()
            }
            ClaimTickResult::AlreadyTaken(newest) => taken(newest),
            ClaimTickResult::InFuture { now_ms } => ahead(now_ms),
        }]
    };
    store.claim_tick(name, owner, ttl_ms, claim, given.when(5), None, keep)
}

/// SQL: 1, or an error, so that a transaction with the effect is rolled back.
pub(super) fn finish_tick(store: &Store, given: &Arguments<'_>) -> Result<OwnedValue, Error> {
    let (name, token) = (given.text(0), given.integer(1));
    match store.finish_tick(name, token, outcome(given), given.when(3))? {
        FinishTickResult::Finished | FinishTickResult::Repeated => Ok(OwnedValue::Integer(1)),
        FinishTickResult::Stale { newest } => {
            Err(Error::StaleTick { name: name.into(), token, newest })
        }
    }
}

pub(super) fn finish_tick_case(store: &Store, given: &Arguments<'_>) -> Result<Answer, Error> {
    let (name, token) = (given.text(0), given.integer(1));
    store.finish_tick(name, token, outcome(given), given.when(3)).map(finished)
}

fn finished(answer: FinishTickResult) -> Answer {
    vec![match answer {
        FinishTickResult::Finished => vec![text("Finished")],
        FinishTickResult::Repeated => vec![text("Repeated")],
        FinishTickResult::Stale { newest } => {
            let state = newest.map(|newest| newest.state.word());
            let tick_ms = newest.map(|newest| newest.tick_ms);
            vec![text("Stale"), optional(tick_ms), optional_text(state)]
        }
    }]
}

/// Begins a transaction for the effect of a tick, unless another grant has it: then no transaction
/// is open. So it is for a tick that is finished: no effect may be repeated.
pub(super) fn begin_finish(store: &Store, given: &Arguments<'_>) -> Result<Answer, Error> {
    store.begin_for_caller()?;
    let (name, token) = (given.text(0), given.integer(1));
    or_roll_back(store, passes, || store.check_tick(name, token)).map(finished)
}

/// Finishes the tick, and commits. If another grant has it, rolls everything back. No transaction
/// is open afterwards.
pub(super) fn end_finish(store: &Store, given: &Arguments<'_>) -> Result<Answer, Error> {
    let (name, token) = (given.text(0), given.integer(1));
    let answer = or_roll_back(store, passes, || {
        store.check_same_transaction()?;
        store.finish_tick(name, token, TickOutcome::Done, When::Now)
    })?;
    if store.has_begun() {
        store.commit()?;
    }
    Ok(finished(answer))
}

fn passes(answer: &FinishTickResult) -> bool {
    *answer == FinishTickResult::Finished
}

pub(super) fn skip<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let (until_ms, breaks) = (given.optional(1), given.integer(2) == 1);
    let skipped = store.skip_ticks(given.text(0), until_ms, breaks, given.when(3), own)?;
    Ok(F::plain(skipped))
}

pub(super) fn again<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    store.tick_again(given.text(0), given.when(1), own).map(F::plain)
}

pub(super) fn forget<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    store.forget_tick(given.text(0), given.when(1), own).map(F::plain)
}

/// The newest tick of every name.
pub(super) const TICKS: Listing = Listing {
    columns: "name TEXT, tick_ms INTEGER, state TEXT, done_ms INTEGER, attempt INTEGER, \
              attempts INTEGER, owner TEXT, token INTEGER, began_ms INTEGER, ended_ms INTEGER, \
              expires_at_ms INTEGER, schedule TEXT",
    order: None,
    rows: |store, given, _| {
        let ticks = store.ticks(given.when(0))?;
        Ok(collected(ticks.into_iter().map(tick_row)))
    },
};

fn tick_row(info: TickInfo) -> Vec<OwnedValue> {
    let TickInfo { name, tick, owner, schedule, holder } = info;
    let NewestTick { tick_ms, state } = tick.newest();
    vec![
        text(name),
        OwnedValue::Integer(tick_ms),
        text(state.word()),
        optional(tick.newest_done_ms()),
        OwnedValue::Integer(tick.attempt),
        OwnedValue::Integer(tick.attempts),
        optional_text(owner),
        optional(Some(tick.token).filter(|token| *token > 0)),
        OwnedValue::Integer(tick.began_ms),
        optional(tick.ended_ms),
        optional(holder.map(|holder| holder.expires_at_ms)),
        optional_text(schedule),
    ]
}

/// 1 if it is done, NULL if a holder is at work, 0 if the name has no tick.
impl Plain for TickChange {
    fn value(self) -> OwnedValue {
        match self {
            TickChange::Changed(_) => OwnedValue::Integer(1),
            TickChange::Busy(_) => OwnedValue::Null,
            TickChange::Unknown => OwnedValue::Integer(0),
        }
    }

    fn rows(self) -> Answer {
        vec![match self {
            TickChange::Changed(NewestTick { tick_ms, state }) => {
                vec![text("Changed"), OwnedValue::Integer(tick_ms), text(state.word())]
            }
            TickChange::Busy(current) => [vec![text("Busy")], lease(current)].concat(),
            TickChange::Unknown => vec![text("Unknown")],
        }]
    }
}

fn own(answer: TickChange<&str>) -> TickChange {
    answer.into_owned()
}

fn outcome(given: &Arguments<'_>) -> TickOutcome {
    if given.integer(2) == 1 { TickOutcome::Failed } else { TickOutcome::Done }
}

fn taken(newest: NewestTick) -> Vec<OwnedValue> {
    let NewestTick { tick_ms, state } = newest;
    vec![text("AlreadyTaken"), OwnedValue::Integer(tick_ms), text(TickState::word(state))]
}

fn ahead(now_ms: i64) -> Vec<OwnedValue> {
    vec![text("InFuture"), OwnedValue::Integer(now_ms)]
}

fn in_future(name: &str, tick_ms: i64, now_ms: i64) -> Error {
    Error::TickInFuture { name: name.into(), tick_ms, now_ms }
}
