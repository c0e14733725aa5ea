//! Limits, progress, requests and handoff.

use litelease_core::Request;

use super::answers::{Form, lease, text};
use super::{Answer, Arguments, Listing, collected};
use crate::{Error, OwnedValue, Store, When};

pub(super) fn limit<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let (name, token) = (given.text(0), given.integer(1));
    let (within, end) = (given.optional(2), given.optional(3));
    let limited = store.limit(name, token, within, end, given.when(4))?;
    F::finish(F::draft(limited), store, name)
}

pub(super) fn progress<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let (name, token) = (given.text(0), given.integer(1));
    let noted = store.progress(name, token, given.when(2))?;
    F::finish(F::draft(noted), store, name)
}

pub(super) fn request<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let (name, requester, within_ms) = (given.text(0), given.text(1), given.integer(2));
    let draft =
        store.request(name, requester, within_ms, given.when(3), |answer| F::draft(answer))?;
    F::finish(draft, store, name)
}

pub(super) fn withdraw_request<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    store.withdraw_request(given.text(0), given.text(1)).map(F::plain)
}

/// The open request for the live grant of the name that is given, if there is one.
pub(super) const REQUESTED: Listing = Listing {
    columns: "requester TEXT, until_ms INTEGER, token INTEGER",
    order: None,
    rows: |store, given, _| {
        let row = |requester: &str, request: Request| {
            let numbers = [request.until_ms, request.token].map(OwnedValue::Integer);
            [vec![text(requester)], numbers.to_vec()].concat()
        };
        Ok(collected(store.requested(given.text(0), given.when(1), row)?))
    },
};

pub(super) fn hand_over<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let (name, who, ttl_ms) = (given.text(0), given.who(1, 4), given.integer(2));
    let draft = store.hand_over(name, who, ttl_ms, given.when(3), |answer| F::draft(answer))?;
    F::finish(draft, store, name)
}

pub(super) fn take_over<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let (name, owner, ttl_ms) = (given.text(0), given.text(1), given.integer(2));
    store.take_over(name, owner, ttl_ms, given.when(3), |taken| F::plain(taken))
}

/// The live lease with its value, in one snapshot and at one time; no row if the name is free.
pub(super) fn leader(store: &Store, given: &Arguments<'_>) -> Result<Answer, Error> {
    let (name, when) = (given.text(0), When::At(given.when(1).now_ms()));
    let found = store.in_snapshot(|| {
        let found = store.inspect(name, when, |found| lease(found.into_owned()))?;
        let value = store.value(name, when, |value| value.into())?;
        Ok(found.map(|row| [row, vec![value.unwrap_or(OwnedValue::Null)]].concat()))
    })?;
    Ok(found.into_iter().collect())
}
