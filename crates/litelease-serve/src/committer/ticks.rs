//! Verbs on ticks: claims of a name with its tick, and the calls of holders and operators.

use litelease::{
    ClaimResult, ClaimTickResult, Error, FinishTickResult, Grant, Litelease, NewestTick,
    TickChange, TickInfo, TickOutcome, TickResult, TickState,
};
use litelease_store::{TickClaim, When};
use litelease_wire::{BegunTick, Finished, Refusal, TickChanged, Ticked};

use super::batch::{Done, Failed, Operator, Served};
use super::names;
use crate::access::Caller;
use crate::answer::{Answer, LeaseWithRemaining, NameAnswer};
use crate::finished_rows;
use crate::job::{Claim, TickWish};
use crate::secret::{self, request_hash};
use crate::served_rows;

/// The answer to a claim, and the tick that came with it.
pub(super) struct Claimed {
    pub(super) result: ClaimResult,
    pub(super) begun: Option<BegunTick>,
    /// The tick that the present holder runs.
    pub(super) running_ms: Option<i64>,
}

/// Claims a name with a tick. Returns the refusal instead if waiting would not help.
pub(super) fn claim(
    file: &Served<'_>,
    name: &str,
    claim: &Claim,
    wish: &TickWish,
    ttl_ms: i64,
    now_ms: i64,
) -> Result<Result<Claimed, Answer>, Failed> {
    let TickWish { asked, schedule } = wish;
    let tick = TickClaim { asked: *asked, schedule: schedule.as_deref() };
    let claimed = file.db.with_store(|store| {
        let own = |answer: ClaimTickResult<&str>| answer.into_owned();
        store.claim_tick(name, &claim.owner, ttl_ms, tick, When::At(now_ms), None, own)
    });
    Ok(match or_refused(claimed)? {
        Err(refused) => Err(refused),
        Ok(ClaimTickResult::Acquired { lease, attempt, previous_ms, passed_ms }) => {
            let begun = BegunTick { attempt, passed_ms, previous_ms, tick_ms: asked.tick_ms };
            let result = ClaimResult::Acquired(lease);
            Ok(Claimed { result, begun: Some(begun), running_ms: None })
        }
        Ok(ClaimTickResult::Busy { current, tick_ms }) => {
            let result = ClaimResult::Busy(current);
            Ok(Claimed { result, begun: None, running_ms: tick_ms })
        }
        Ok(ClaimTickResult::AlreadyTaken(newest)) => Err(taken(newest)),
        Ok(ClaimTickResult::InFuture { now_ms }) => Err(in_future(now_ms)),
    })
}

/// Returns the tick that the grant of a token runs, for an answer that is given again or fetched.
pub(super) fn running(db: &Litelease, name: &str, token: i64) -> Result<Option<BegunTick>, Error> {
    let tick = db.newest_tick(name)?.map(|info| info.tick);
    let own = tick.filter(|tick| tick.state == TickState::Open && tick.token == token);
    Ok(own.map(|tick| BegunTick {
        attempt: tick.attempt,
        passed_ms: None,
        previous_ms: tick.previous_ms,
        tick_ms: tick.tick_ms,
    }))
}

/// Returns the answer to claims of this name whose tick is taken, by [`TickInfo`] of the name.
pub(super) fn taken_for(info: &TickInfo, wish: &TickWish) -> Option<Answer> {
    let is_taken = info.tick.is_taken_for(wish.asked, info.holder.is_some());
    is_taken.then(|| taken(info.tick.newest()))
}

/// Finishes the tick of the grant that has this secret. The same request is answered the same
/// until another tick of the name is finished.
pub(crate) fn finish(
    file: &Served<'_>,
    grant: &Grant,
    secret: &str,
    outcome: TickOutcome,
    now_ms: i64,
) -> Done {
    let (db, name) = (file.db, grant.name.as_str());
    let Some((_, hash)) = secret::read(secret) else { return Ok(names::unknown_grant().into()) };
    if let Some(before) = answered(db, name, &hash)? {
        return match before.state == outcome.state().word() {
            true => Ok(NameAnswer::Finished(before).into()),
            false => stale(db, name),
        };
    }
    // The token of another secret than the newest one is not known.
    if served_rows::by_name(db, name)?.is_none_or(|served| served.hash != Some(hash.clone())) {
        return stale(db, name);
    }
    match db.at(now_ms).finish_tick(grant, outcome)? {
        FinishTickResult::Stale { .. } => stale(db, name),
        FinishTickResult::Finished | FinishTickResult::Repeated => {
            let tick_ms = db.newest_tick(name)?.map_or(now_ms, |info| info.tick.tick_ms);
            let (state, token) = (outcome.state().word().into(), grant.token);
            let finished = Finished { name: name.into(), state, tick_ms, token };
            finished_rows::store(db, name, &hash, &json(&finished))?;
            Ok(NameAnswer::Finished(finished).into())
        }
    }
}

/// Returns the answer that a request got before, unless an operator has opened its tick again.
fn answered(db: &Litelease, name: &str, request: &[u8]) -> Result<Option<Finished>, Error> {
    let answer = finished_rows::find(db, name, request)?;
    let before = answer.and_then(|answer| serde_json::from_str::<Finished>(&answer).ok());
    let Some((before, info)) = before.zip(db.newest_tick(name)?) else { return Ok(None) };
    let is_open = info.tick.state == TickState::Open && info.tick.tick_ms == before.tick_ms;
    Ok(Some(before).filter(|_| !is_open))
}

/// Begins and finishes a tick in one step. `key` is the idempotency key, if there is one.
pub(crate) fn tick(
    file: &Served<'_>,
    name: &str,
    tick_ms: i64,
    (caller, key): (Caller, Option<&str>),
    now_ms: i64,
) -> Done {
    names::check_own(file, name)?;
    let answer = Ticked { first: true, name: name.into(), tick_ms };
    let request = key.map(|key| request_hash(caller, "tick", &json(&answer), key));
    if let Some(request) = &request
        && answered(file.db, name, request)?.is_some()
    {
        return Ok(NameAnswer::Ticked(answer).into());
    }
    Ok(match or_refused(file.db.at(now_ms).tick(name, tick_ms))? {
        Err(refused) => refused,
        Ok(TickResult::AlreadyTaken(newest)) => taken(newest),
        Ok(TickResult::InFuture { now_ms }) => in_future(now_ms),
        Ok(TickResult::First) => {
            if let Some(request) = &request {
                let (name, state) = (name.to_owned(), TickState::Done.word().to_owned());
                let done = Finished { name, state, tick_ms, token: 0 };
                finished_rows::store(file.db, &done.name, request, &json(&done))?;
            }
            NameAnswer::Ticked(answer).into()
        }
    })
}

/// Makes every tick up to now, or up to a time, skipped.
pub(crate) fn skip(
    file: &Served<'_>,
    name: &str,
    (until_ms, breaks): (Option<i64>, bool),
    operator: &Operator,
    now_ms: i64,
) -> Done {
    names::check_own(file, name)?;
    let skip = || file.db.at(now_ms).skip_ticks(name, until_ms, breaks);
    changed(file, name, file.acting(operator, skip), now_ms)
}

/// Opens the newest tick once more.
pub(crate) fn again(file: &Served<'_>, name: &str, operator: &Operator, now_ms: i64) -> Done {
    names::check_own(file, name)?;
    let again = || file.db.at(now_ms).tick_again(name);
    changed(file, name, file.acting(operator, again), now_ms)
}

/// Deletes the newest tick of a schedule that is no more.
pub(crate) fn forget(file: &Served<'_>, name: &str, operator: &Operator, now_ms: i64) -> Done {
    names::check_own(file, name)?;
    let forget = || file.db.at(now_ms).forget_tick(name);
    changed(file, name, file.acting(operator, forget), now_ms)
}

/// Counts the newest past tick of a schedule as skipped, if the name has no tick yet.
pub(crate) fn install(
    file: &Served<'_>,
    name: &str,
    tick_ms: i64,
    schedule: Option<&str>,
    now_ms: i64,
) -> Done {
    names::check_own(file, name)?;
    let install = |store: &litelease_store::Store| {
        store.install_tick(name, tick_ms, schedule, When::At(now_ms))
    };
    let newest = file.db.with_store(install)?;
    Ok(NameAnswer::TickChanged(change(name, newest)).into())
}

fn changed(file: &Served<'_>, name: &str, done: Result<TickChange, Error>, now_ms: i64) -> Done {
    Ok(match or_refused(done)? {
        Err(refused) => refused,
        Ok(TickChange::Changed(newest)) => NameAnswer::TickChanged(change(name, newest)).into(),
        Ok(TickChange::Busy(current)) => {
            let running_ms = running(file.db, name, current.token)?.map(|tick| tick.tick_ms);
            let current = LeaseWithRemaining::found(file.db, now_ms, current)?;
            NameAnswer::Busy(Box::new(current), running_ms).into()
        }
        Ok(TickChange::Unknown) => refusal(Refusal::new("no_tick", "the name has no tick")),
    })
}

fn change(name: &str, NewestTick { tick_ms, state }: NewestTick) -> TickChanged {
    TickChanged { name: name.into(), state: state.word().into(), tick_ms }
}

/// Takes a refusal that the state of a tick is the reason of for an answer, and not for an error.
fn or_refused<T>(done: Result<T, Error>) -> Result<Result<T, Answer>, Failed> {
    let (error, reason) = match done {
        Ok(done) => return Ok(Ok(done)),
        Err(error @ Error::TickAhead { .. }) => (error, "tick_ahead"),
        Err(error @ Error::TickHeld { .. }) => (error, "tick_held"),
        Err(error) => return Err(error.into()),
    };
    let (tick_ms, now_ms) = match &error {
        Error::TickAhead { tick_ms, now_ms, .. } => (Some(*tick_ms), Some(*now_ms)),
        Error::TickHeld { tick_ms, .. } => (Some(*tick_ms), None),
        _ => (None, None),
    };
    Ok(Err(refusal(Refusal { tick_ms, now_ms, ..Refusal::new(reason, error.to_string()) })))
}

fn stale(db: &Litelease, name: &str) -> Done {
    let newest = db.newest_tick(name)?.map(|info| info.tick.newest().into());
    let text = "the grant does not have the tick any more: another one was granted it, or it was \
                skipped or opened again";
    Ok(refusal(Refusal { newest, ..Refusal::new("stale_tick", text) }))
}

fn taken(newest: NewestTick) -> Answer {
    let text = format!("the tick is taken: {newest}");
    refusal(Refusal { newest: Some(newest.into()), ..Refusal::new("already_taken", text) })
}

fn in_future(now_ms: i64) -> Answer {
    let text = "the tick is more than a minute ahead of the server's clock: correct the clock that \
                planned it";
    refusal(Refusal { now_ms: Some(now_ms), ..Refusal::new("in_future", text) })
}

fn refusal(refusal: Refusal) -> Answer {
    NameAnswer::Refused(Box::new(refusal)).into()
}

fn json(answer: &impl serde::Serialize) -> String {
    // Answers have no maps with other keys than texts, so this cannot fail.
    serde_json::to_string(answer).unwrap_or_default()
}
