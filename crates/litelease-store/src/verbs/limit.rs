//! Limits, progress, requests and handoff.

use litelease_core::{Request, RequestResult};

use super::rows::{lease, on_grant, rejected, text, transferred, truth};
use super::{Answer, Arguments, Misuse};
use crate::{OwnedValue, Store, When};

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

/// The new grant, and the one that was ended, if there was one.
pub(super) fn take_over(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, owner, ttl_ms) = (given.text(0)?, given.text(1)?, given.integer(2)?);
    let taken = store.take_over(name, owner, ttl_ms, given.when(3)?, |taken| taken.into_owned())?;
    Ok([Some(taken.lease), taken.from].into_iter().flatten().map(lease).collect())
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
