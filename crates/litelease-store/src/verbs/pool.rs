//! Pools of numbered slots.

use super::rows::{optional_text, slot_row, text, truth};
use super::{Answer, Arguments, Misuse};
use crate::{BorrowOptions, OwnedValue, Store};

pub(super) fn pool(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let info = store.pool(given.text(0)?, given.integer(1)?, given.when(2)?)?;
    Ok(vec![vec![OwnedValue::Integer(info.count), OwnedValue::Integer(info.in_use)]])
}

/// No row where there is no such pool.
pub(super) fn pool_info(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let info = store.pool_info(given.text(0)?, given.when(1)?)?;
    let row = |number| OwnedValue::Integer(number);
    Ok(info.map(|info| vec![row(info.count), row(info.in_use)]).into_iter().collect())
}

/// No row where nothing is free.
pub(super) fn borrow(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (id, ttl_ms, when) = (given.text(0)?, given.integer(1)?, given.when(2)?);
    let (note, key) = (given.optional(3, Arguments::text)?, given.optional(4, Arguments::text)?);
    let lent = store.borrow_slot(id, ttl_ms, when, BorrowOptions { key, note })?;
    let row = lent.map(|lent| [vec![text(lent.lease_id)], slot_row(lent.slot)].concat());
    Ok(row.into_iter().collect())
}

pub(super) fn slot(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    Ok(store.slot(given.text(0)?, given.text(1)?)?.map(slot_row).into_iter().collect())
}

pub(super) fn return_slot(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let returned = store.return_slot(given.text(0)?, given.text(1)?, given.when(2)?)?;
    Ok(vec![vec![truth(returned)]])
}

/// No row where it is over.
pub(super) fn renew_slot(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (id, lease, ttl_ms) = (given.text(0)?, given.text(1)?, given.integer(2)?);
    let renewed = store.renew_slot(id, lease, ttl_ms, given.when(3)?)?;
    Ok(renewed.map(slot_row).into_iter().collect())
}

pub(super) fn keep_slot(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let kept = store.keep_slot(given.text(0)?, given.text(1)?, given.when(2)?)?;
    Ok(vec![vec![truth(kept)]])
}

pub(super) fn free_kept_slot(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let freed = store.free_kept_slot(given.text(0)?, given.integer(1)?, given.integer(2)?)?;
    Ok(vec![vec![truth(freed)]])
}

pub(super) fn slots(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let rows = store.slots(given.text(0)?, given.when(1)?)?.into_iter();
    Ok(rows.map(|row| [slot_row(row.slot), vec![optional_text(row.note)]].concat()).collect())
}

pub(super) fn delete_pool(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    Ok(vec![vec![truth(store.delete_pool(given.text(0)?)?)]])
}
