//! Limits, progress, requests and handoff.

use litelease_core::{ClaimResult, Lease, Request, RequestResult};

use super::rows::{
    at_one_time, case, claimed, lease, number, on_grant, rejected, text, transferred, truth,
};
use super::{Answer, Arguments, Misuse};
use crate::{Error, OwnedValue, Store, Value, When};

pub(super) fn limit(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, token, when) = (given.text(0)?, given.integer(1)?, given.when(4)?);
    let number = |at| given.optional(at, Arguments::integer);
    let answer = store.limit(name, token, number(2)?, number(3)?, when)?;
    Ok(vec![on_grant(store, name, answer)?])
}

pub(super) fn progress(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, token) = (given.text(0)?, given.integer(1)?);
    let answer = store.progress(name, token, given.when(2)?)?;
    Ok(vec![on_grant(store, name, answer)?])
}

pub(super) fn request(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, requester, within_ms) = (given.text(0)?, given.text(1)?, given.integer(2)?);
    let when = given.when(3)?;
    let answer = store.request(name, requester, within_ms, when, |answer| answer.into_owned())?;
    Ok(vec![match answer {
        RequestResult::Requested { token, until_ms } => {
            vec![text("Requested"), OwnedValue::Integer(token), OwnedValue::Integer(until_ms)]
        }
        RequestResult::RequestedBy { requester, until_ms } => {
            vec![text("RequestedBy"), text(requester), OwnedValue::Integer(until_ms)]
        }
        RequestResult::Rejected { reason } => rejected(store, name, reason, None)?,
    }])
}

/// The token of the grant that is asked for; no row where there is no such request.
pub(super) fn repeat_request(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let token = store.repeat_request(given.text(0)?, given.text(1)?, When::Now)?;
    Ok(token.map(number).unwrap_or_default())
}

pub(super) fn withdraw_request(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    Ok(vec![vec![truth(store.withdraw_request(given.text(0)?, given.text(1)?)?)]])
}

/// No row where nobody asks.
pub(super) fn requested(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, when) = (given.text(0)?, given.when(1)?);
    let row = |requester: &str, request: Request| {
        let numbers = [request.until_ms, request.token].map(OwnedValue::Integer);
        [vec![text(requester)], numbers.to_vec()].concat()
    };
    Ok(store.in_snapshot(|| store.requested(name, when, row))?.into_iter().collect())
}

pub(super) fn hand_over(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, who, ttl_ms) = (given.text(0)?, given.who(1, 4)?, given.integer(2)?);
    let when = given.when(3)?;
    let answer = store.hand_over(name, who, ttl_ms, when, |answer| answer.into_owned())?;
    Ok(vec![transferred(store, name, answer)?])
}

pub(super) fn hand_over_shard(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, who, ttl_ms) = (given.text(0)?, given.who(1, 4)?, given.integer(2)?);
    let when = given.when(3)?;
    let answer = store.hand_over_shard(name, who, ttl_ms, when, |answer| answer.into_owned())?;
    Ok(vec![transferred(store, name, answer)?])
}

/// The new grant, and the one that was ended, if there was one.
pub(super) fn take_over(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, owner, ttl_ms) = (given.text(0)?, given.text(1)?, given.integer(2)?);
    let taken = store.take_over(name, owner, ttl_ms, given.when(3)?, |taken| taken.into_owned())?;
    Ok([Some(taken.lease), taken.from].into_iter().flatten().map(lease).collect())
}

/// A claim, or one from a dead holder, and what rides on the grant, in one commit.
pub(super) fn claim_with(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, owner, ttl_ms) = (given.text(0)?, given.text(1)?, given.integer(2)?);
    let dead = given.optional(3, |given, at| given.who(at, at + 1))?;
    let riders = Riders::of(given)?;
    // A busy name is answered without the write lock, as by a plain claim.
    let busy = |current: Lease<&str>| case("Busy", current);
    if dead.is_none()
        && let Some(busy) = store.inspect(name, When::Now, busy)?
    {
        return Ok(vec![busy]);
    }
    let token = |answer: ClaimResult<&str>| {
        let token = answer.acquired().map(|lease| lease.token);
        (token, claimed(answer))
    };
    let claim = || match dead {
        Some(dead) => store.claim_from_dead(name, owner, ttl_ms, When::Now, dead, token),
        None => store.claim(name, owner, ttl_ms, When::Now, 0, token),
    };
    at_one_time(store, |_| {
        let (token, row) = claim()?;
        token.map_or(Ok(()), |token| riders.store(store, name, token))?;
        Ok((token.is_some(), vec![row]))
    })
}

/// Takes the grant under `token` that was handed to this requester since it asked for the one under
/// `asked`, renews it, and stores what rides on it, in one commit. No row where it is not the
/// requester's.
pub(super) fn accept_with(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, who, ttl_ms) = (given.text(0)?, given.who(1, 3)?, given.integer(2)?);
    let (asked, riders) = (given.optional(4, Arguments::integer)?, Riders::of(given)?);
    // Most owners who find their own lease busy have asked for nothing: they need no write lock.
    if asked.is_none() {
        let found = store.in_snapshot(|| store.request_of(name))?;
        if found.is_none_or(|(requester, _)| requester != who.owner) {
            return Ok(vec![]);
        }
    }
    let accepted = |lease: Lease<&str>| (lease.token, case("Acquired", lease));
    at_one_time(store, |_| {
        let found = match asked {
            Some(asked) if who.token > Some(asked) => {
                store
                    .renew(name, who, ttl_ms, When::Now, |answer| answer.renewed().map(accepted))?
            }
            _ => store.accept(name, who.owner, ttl_ms, When::Now, accepted)?,
        };
        let Some((token, row)) = found else { return Ok((false, vec![])) };
        riders.store(store, name, token)?;
        Ok((true, vec![row]))
    })
}

/// What is stored in the commit of a claim: its last three arguments.
struct Riders<'a> {
    value: Value<'a>,
    progress_within_ms: Option<i64>,
    max_time_ms: Option<i64>,
}

impl<'a> Riders<'a> {
    fn of(given: Arguments<'a>) -> Result<Self, Misuse> {
        let number = |at| given.optional(at, Arguments::integer);
        let (progress_within_ms, max_time_ms) = (number(6)?, number(7)?);
        Ok(Riders { value: given.value(5), progress_within_ms, max_time_ms })
    }

    fn store(&self, store: &Store, name: &str, token: i64) -> Result<(), Error> {
        if self.value != Value::Null {
            let _ = store.attach(name, token, self.value, When::Now)?;
        }
        if self.progress_within_ms.is_some() || self.max_time_ms.is_some() {
            let end_ms = |time_ms| When::Now.now_ms().saturating_add(time_ms);
            let not_after_ms = self.max_time_ms.map(end_ms);
            let _ = store.limit(name, token, self.progress_within_ms, not_after_ms, When::Now)?;
        }
        Ok(())
    }
}

/// The live lease with its value, in one snapshot and at one time; no row where nobody has it.
pub(super) fn leader(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, when) = (given.text(0)?, When::At(given.when(1)?.now_ms()));
    let found = store.in_snapshot(|| {
        let found = store.inspect(name, when, |found| lease(found.into_owned()))?;
        let value = store.value(name, when, |value| value.into())?;
        Ok(found.map(|row| [row, vec![value.unwrap_or(OwnedValue::Null)]].concat()))
    })?;
    Ok(found.into_iter().collect())
}
