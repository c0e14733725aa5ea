//! Leases.

use litelease_core::BreakResult;

use super::rows::{
    claimed, lease, number, on_grant, rejected, released, renewed, text, transferred, truth,
};
use super::{Answer, Arguments, Misuse};
use crate::schema::{RESOURCES, is_there};
use crate::statements::execute_once;
use crate::{BootRecord, ForeignLock, OwnedValue, Store, When};

pub(super) fn bootstrap(store: &Store, _: Arguments<'_>) -> Result<Answer, Misuse> {
    store.bootstrap()?;
    Ok(vec![])
}

/// Settings for a program that owns the file.
pub(super) fn own(store: &Store, _: Arguments<'_>) -> Result<Answer, Misuse> {
    store.own()?;
    Ok(vec![])
}

pub(super) fn claim(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, owner, ttl_ms) = (given.text(0)?, given.text(1)?, given.integer(2)?);
    let min_token = given.optional(4, Arguments::integer)?.unwrap_or(0);
    let when = given.when(3)?;
    Ok(vec![store.claim(name, owner, ttl_ms, when, min_token, claimed)?])
}

pub(super) fn claim_from_dead(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, owner, ttl_ms) = (given.text(0)?, given.text(1)?, given.integer(2)?);
    let (when, dead) = (given.when(3)?, given.who(4, 5)?);
    Ok(vec![store.claim_from_dead(name, owner, ttl_ms, when, dead, claimed)?])
}

pub(super) fn ensure(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, owner, ttl_ms) = (given.text(0)?, given.text(1)?, given.integer(2)?);
    Ok(vec![store.ensure(name, owner, ttl_ms, given.when(3)?, claimed)?])
}

pub(super) fn attach(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, token, value) = (given.text(0)?, given.integer(1)?, given.value(2));
    let answer = store.attach(name, token, value, given.when(3)?)?;
    Ok(vec![on_grant(store, name, answer)?])
}

/// No row where the live grant has none.
pub(super) fn value(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, when) = (given.text(0)?, given.when(1)?);
    let found: Option<OwnedValue> =
        store.in_snapshot(|| store.value(name, when, |found| found.into()))?;
    Ok(found.into_iter().map(|value| vec![value]).collect())
}

pub(super) fn renew(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, who, ttl_ms) = (given.text(0)?, given.who(1, 4)?, given.integer(2)?);
    let answer = store.renew(name, who, ttl_ms, given.when(3)?, |answer| answer.into_owned())?;
    Ok(vec![renewed(store, name, answer)?])
}

/// name, token and end of each live lock of sayt2's tracker.
pub(super) fn foreign_locks(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let locks = store.foreign_locks(given.when(0)?.now_ms())?.into_iter();
    let row = |lock: ForeignLock| {
        vec![text(lock.name), text(lock.token), OwnedValue::Integer(lock.end_ms)]
    };
    Ok(locks.map(row).collect())
}

pub(super) fn release(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, who) = (given.text(0)?, given.who(1, 3)?);
    let answer = store.release(name, who, given.when(2)?, |answer| answer.into_owned())?;
    Ok(vec![released(store, name, answer)?])
}

pub(super) fn transfer(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, who, new_owner) = (given.text(0)?, given.who(1, 5)?, given.text(2)?);
    let (ttl_ms, when) = (given.integer(3)?, given.when(4)?);
    let answer =
        store.transfer(name, who, new_owner, ttl_ms, when, |answer| answer.into_owned())?;
    Ok(vec![transferred(store, name, answer)?])
}

pub(super) fn break_lease(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let name = given.text(0)?;
    let answer = store.break_lease(name, given.when(1)?, |answer| answer.into_owned())?;
    Ok(vec![match answer {
        BreakResult::Broken { owner, killed } => {
            vec![text("Broken"), text(owner), OwnedValue::Integer(killed)]
        }
        BreakResult::Rejected { reason, current } => rejected(store, name, reason, current)?,
    }])
}

/// No row where nobody has it.
pub(super) fn inspect(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let found = store.inspect(given.text(0)?, given.when(1)?, |found| lease(found.into_owned()))?;
    Ok(found.into_iter().collect())
}

/// No row where it was never claimed.
pub(super) fn token(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let newest = store.token(given.text(0)?)?;
    Ok(newest.into_iter().map(|token| vec![OwnedValue::Integer(token)]).collect())
}

/// The live leases, in the order of their names.
pub(super) fn leases(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (prefix, now_ms) = (given.optional(0, Arguments::text)?, given.when(1)?.now_ms());
    let rows = store.list()?;
    let live = rows.iter().filter(|row| row.name.starts_with(prefix.unwrap_or("")));
    Ok(live.filter_map(|row| litelease_core::inspect(row.row(), now_ms)).map(lease).collect())
}

pub(super) fn purge(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let purged = store.purge(given.integer(0)?, given.when(1)?)?;
    Ok(number(i64::try_from(purged).unwrap_or(i64::MAX)))
}

pub(super) fn raise(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    store.raise(given.integer(0)?)?;
    Ok(vec![])
}

pub(super) fn raise_name(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    store.raise_name(given.text(0)?, given.integer(1)?, When::Now)?;
    Ok(vec![])
}

/// The largest token that was seen, if any.
pub(super) fn restore_fence(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let above = given.optional(0, Arguments::integer)?;
    Ok(number(store.restore_fence(above, When::Now)?))
}

/// Begins a transaction of the caller's, with the write lock and the present boot durably recorded.
pub(super) fn begin(store: &Store, _: Arguments<'_>) -> Result<Answer, Misuse> {
    store.settle()?;
    // Not the text of our own transactions: the caller may change the schema in this one.
    let begin = || execute_once(store.connection, "BEGIN IMMEDIATE TRANSACTION", &[]);
    let has_recorded = store.epoch_state.has_recorded.get();
    // Most files of other writers have no leases, and are not looked at any closer.
    match has_recorded || is_there(store.connection, &RESOURCES).unwrap_or(true) {
        true => store.open_recorded(begin)?,
        false => begin()?,
    }
    Ok(vec![])
}

/// Records the present boot, if the file has leases.
pub(super) fn record_boot(store: &Store, _: Arguments<'_>) -> Result<Answer, Misuse> {
    store.record_boot_before_transaction()?;
    Ok(vec![])
}

pub(super) fn is_boot_recorded(store: &Store, _: Arguments<'_>) -> Result<Answer, Misuse> {
    Ok(vec![vec![truth(store.boot_record()? == BootRecord::Durable)]])
}
