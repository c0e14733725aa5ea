//! The rows of answers that verbs of several kinds have in common.

use litelease_core::{
    ClaimResult, GrantResult, Lease, Reason, ReleaseResult, RenewResult, SlotInfo, TransferResult,
};

use super::Answer;
use crate::{Error, OwnedValue, Store};

pub(super) fn claimed(answer: ClaimResult<&str>) -> Vec<OwnedValue> {
    match answer.into_owned() {
        ClaimResult::Acquired(lease) => case("Acquired", lease),
        ClaimResult::Busy(current) => case("Busy", current),
    }
}

pub(super) fn released(
    store: &Store,
    name: &str,
    answer: ReleaseResult,
) -> Result<Vec<OwnedValue>, Error> {
    match answer {
        ReleaseResult::Released { name, token } => {
            Ok(vec![text("Released"), text(name), OwnedValue::Integer(token)])
        }
        ReleaseResult::Rejected { reason, current } => rejected(store, name, reason, current),
    }
}

pub(super) fn renewed(
    store: &Store,
    name: &str,
    answer: RenewResult,
) -> Result<Vec<OwnedValue>, Error> {
    match answer {
        RenewResult::Renewed(lease) => Ok(case("Renewed", lease)),
        RenewResult::Rejected { reason, current } => rejected(store, name, reason, current),
    }
}

pub(super) fn transferred(
    store: &Store,
    name: &str,
    answer: TransferResult,
) -> Result<Vec<OwnedValue>, Error> {
    match answer {
        TransferResult::Transferred(lease) => Ok(case("Transferred", lease)),
        TransferResult::Rejected { reason, current } => rejected(store, name, reason, current),
    }
}

pub(super) fn on_grant(
    store: &Store,
    name: &str,
    answer: GrantResult,
) -> Result<Vec<OwnedValue>, Error> {
    match answer {
        GrantResult::Done => Ok(vec![text("Done")]),
        GrantResult::Stale { reason } => rejected(store, name, reason, None),
    }
}

/// The reason, the newest token of the name if there is one, and the live lease if there is one.
pub(super) fn rejected(
    store: &Store,
    name: &str,
    reason: Reason,
    current: Option<Lease>,
) -> Result<Vec<OwnedValue>, Error> {
    let word = match reason {
        Reason::NeverClaimed => "NEVER_CLAIMED",
        Reason::HeldBy => "HELD_BY",
        Reason::Superseded { .. } => "SUPERSEDED",
        Reason::UnknownToken => "UNKNOWN_TOKEN",
        Reason::Released => "RELEASED",
        Reason::Expired => "EXPIRED",
        Reason::NoProgress => "NO_PROGRESS",
        Reason::TimeIsUp => "TIME_IS_UP",
        Reason::Requested => "REQUESTED",
        Reason::NotRequested => "NOT_REQUESTED",
    };
    let newest = match (reason, &current) {
        (Reason::NeverClaimed, _) => None,
        (Reason::Superseded { by }, _) => Some(by),
        (_, Some(current)) => Some(current.token),
        _ => store.token(name)?,
    };
    let newest = newest.map_or(OwnedValue::Null, OwnedValue::Integer);
    let row = vec![text("Rejected"), text(word), newest];
    Ok([row, current.map(lease).unwrap_or_default()].concat())
}

pub(super) fn case<S: Into<String>>(word: &str, info: Lease<S>) -> Vec<OwnedValue> {
    let Lease { name, owner, token, expires_at_ms } = info;
    let expiry = OwnedValue::Integer(expires_at_ms);
    vec![text(word), text(name), text(owner), OwnedValue::Integer(token), expiry]
}

pub(super) fn lease<S: Into<String>>(info: Lease<S>) -> Vec<OwnedValue> {
    let mut row = case("", info);
    row.remove(0);
    row
}

pub(super) fn slot_row(slot: SlotInfo) -> Vec<OwnedValue> {
    [slot.position, slot.token, slot.expires_at_ms].map(OwnedValue::Integer).to_vec()
}

pub(super) fn stale(newest: Option<i64>) -> Vec<OwnedValue> {
    vec![text("Stale"), newest.map_or(OwnedValue::Null, OwnedValue::Integer)]
}

pub(super) fn number(number: i64) -> Answer {
    vec![vec![OwnedValue::Integer(number)]]
}

pub(super) fn truth(is_so: bool) -> OwnedValue {
    OwnedValue::Integer(i64::from(is_so))
}

pub(super) fn text(text: impl Into<String>) -> OwnedValue {
    OwnedValue::Text(text.into())
}

pub(super) fn optional_text(given: Option<String>) -> OwnedValue {
    given.map_or(OwnedValue::Null, OwnedValue::Text)
}
