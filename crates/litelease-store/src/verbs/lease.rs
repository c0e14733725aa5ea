//! Leases.

use std::iter;

use litelease_core::LeaseRow;

use super::answers::{Form, lease, optional, optional_text, text};
use super::{Answer, Arguments, Listing, Range, RowIterator};
use crate::list::WalkedRow;
use crate::schema::{RESOURCES, is_there};
use crate::statements::execute_once;
use crate::{BootRecord, Error, ForeignLock, OwnedValue, Store, When};

pub(super) fn bootstrap<F: Form>(store: &Store, _: &Arguments<'_>) -> Result<F, Error> {
    store.bootstrap().map(F::plain)
}

/// Settings for a program that owns the file.
pub(super) fn own(store: &Store, _: &Arguments<'_>) -> Result<Answer, Error> {
    store.own().map(Form::plain)
}

pub(super) fn claim<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let (name, owner, ttl_ms) = (given.text(0), given.text(1), given.integer(2));
    let (when, min_token) = (given.when(3), given.optional(4).unwrap_or(0));
    store.claim(name, owner, ttl_ms, when, min_token, |answer| F::plain(answer))
}

pub(super) fn claim_from_dead(store: &Store, given: &Arguments<'_>) -> Result<Answer, Error> {
    let (name, owner, ttl_ms) = (given.text(0), given.text(1), given.integer(2));
    let (when, dead) = (given.when(3), given.who(4, 5));
    store.claim_from_dead(name, owner, ttl_ms, when, dead, |answer| Form::plain(answer))
}

pub(super) fn ensure<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let (name, owner, ttl_ms) = (given.text(0), given.text(1), given.integer(2));
    store.ensure(name, owner, ttl_ms, given.when(3), |answer| F::plain(answer))
}

pub(super) fn attach<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let (name, token) = (given.text(0), given.integer(1));
    let attached = store.attach(name, token, given.any(2), given.when(3))?;
    F::finish(F::draft(attached), store, name)
}

pub(super) fn value<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let (name, when) = (given.text(0), given.when(1));
    let found: Option<OwnedValue> =
        store.in_snapshot(|| store.value(name, when, |found| found.into()))?;
    Ok(F::plain(found))
}

pub(super) fn renew<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let (name, who, ttl_ms) = (given.text(0), given.who(1, 4), given.integer(2));
    let draft = store.renew(name, who, ttl_ms, given.when(3), |answer| F::draft(answer))?;
    F::finish(draft, store, name)
}

pub(super) fn release<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let (name, who) = (given.text(0), given.who(1, 3));
    let draft = store.release(name, who, given.when(2), |answer| F::draft(answer))?;
    F::finish(draft, store, name)
}

pub(super) fn transfer<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let (name, who, new_owner) = (given.text(0), given.who(1, 5), given.text(2));
    let (ttl_ms, when) = (given.integer(3), given.when(4));
    let draft = store.transfer(name, who, new_owner, ttl_ms, when, |answer| F::draft(answer))?;
    F::finish(draft, store, name)
}

pub(super) fn break_lease<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let name = given.text(0);
    let draft = store.break_lease(name, given.when(1), |answer| F::draft(answer))?;
    F::finish(draft, store, name)
}

pub(super) fn owner(store: &Store, given: &Arguments<'_>) -> Result<OwnedValue, Error> {
    let owner = store.inspect(given.text(0), given.when(1), |lease| text(lease.owner))?;
    Ok(owner.unwrap_or_default())
}

/// No row if the name is free.
pub(super) fn inspect(store: &Store, given: &Arguments<'_>) -> Result<Answer, Error> {
    let (row, now_ms) = (store.row(given.text(0))?, given.when(1).now_ms());
    Ok(row.iter().filter_map(|row| live(row, now_ms)).collect())
}

pub(super) fn token<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    store.token(given.text(0)).map(F::plain)
}

/// The live leases under a prefix, in the order of their names.
pub(super) fn live_leases(store: &Store, given: &Arguments<'_>) -> Result<Answer, Error> {
    let (prefix, now_ms) = (given.text(0), given.when(1).now_ms());
    let rows = store.list()?;
    let live_rows = rows.iter().filter(|row| row.name.starts_with(prefix));
    Ok(live_rows.filter_map(|row| live(row, now_ms)).collect())
}

/// A lease that is live, and when its grant began.
fn live(row: &LeaseRow, now_ms: i64) -> Option<Vec<OwnedValue>> {
    Some([lease(row.row().live(now_ms)?), vec![optional(row.since_ms)]].concat())
}

/// Every lease, with its state at the given time.
pub(super) const LEASES: Listing = Listing {
    columns: "name TEXT, owner TEXT, token INTEGER, expires_at_ms INTEGER, remaining_ms INTEGER, \
              state TEXT, value, since_ms INTEGER",
    order: Some(0),
    rows: leases,
};

fn leases(store: &Store, given: &Arguments<'_>, range: Range<'_>) -> Result<RowIterator, Error> {
    let now_ms = given.when(0).now_ms();
    let mut walk = store.walk(range.from, range.to)?;
    let next = move || {
        let next = walk.next();
        next.map(|next| next.map(|walked| lease_row(walked, now_ms))).transpose()
    };
    Ok(Box::new(iter::from_fn(next)))
}

fn lease_row(walked: WalkedRow<'_>, now_ms: i64) -> Vec<OwnedValue> {
    let WalkedRow { row, since_ms, value, .. } = walked;
    let tenure = row.state().and_then(|state| state.tenure());
    let expiry = tenure.map(|tenure| tenure.expires_at_ms);
    vec![
        text(row.name()),
        optional_text(tenure.map(|tenure| tenure.owner)),
        optional(row.token()),
        optional(expiry),
        // A lease that is over has no time left; one without an owner has none to speak of.
        optional(expiry.map(|expiry| expiry.saturating_sub(now_ms).max(0))),
        optional_text(row.status(now_ms).map(|status| status.word())),
        // A value ends with its grant.
        if row.live(now_ms).is_some() { value.into() } else { OwnedValue::Null },
        optional(since_ms.filter(|_| tenure.is_some())),
    ]
}

pub(super) fn purge<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    store.purge(given.integer(0), given.when(1)).map(F::plain)
}

pub(super) fn raise<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let floor = given.integer(0);
    store.raise(floor).map(|()| F::plain(floor))
}

pub(super) fn raise_name<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let floor = given.integer(1);
    store.raise_name(given.text(0), floor, When::Now).map(|()| F::plain(floor))
}

/// The largest token that was seen, if any.
pub(super) fn restore_fence<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    store.restore_fence(given.optional(0), When::Now).map(F::plain)
}

/// Begins a transaction of the caller's, with the write lock and the present boot durably recorded.
pub(super) fn begin(store: &Store, _: &Arguments<'_>) -> Result<Answer, Error> {
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
pub(super) fn record_boot(store: &Store, _: &Arguments<'_>) -> Result<Answer, Error> {
    store.record_boot_before_transaction()?;
    Ok(vec![])
}

pub(super) fn is_boot_recorded(store: &Store, _: &Arguments<'_>) -> Result<Answer, Error> {
    Ok(Form::plain(store.boot_record()? == BootRecord::Durable))
}

/// name, token and end of each live lock of sayt2's tracker.
pub(super) fn foreign_locks(store: &Store, given: &Arguments<'_>) -> Result<Answer, Error> {
    let locks = store.foreign_locks(given.when(0).now_ms())?.into_iter();
    let row = |lock: ForeignLock| {
        vec![text(lock.name), text(lock.token), OwnedValue::Integer(lock.end_ms)]
    };
    Ok(locks.map(row).collect())
}

pub(super) fn now(_: &Store, _: &Arguments<'_>) -> Result<OwnedValue, Error> {
    Ok(OwnedValue::Integer(When::Now.now_ms()))
}

pub(super) fn version(_: &Store, _: &Arguments<'_>) -> Result<OwnedValue, Error> {
    Ok(text(env!("CARGO_PKG_VERSION")))
}
