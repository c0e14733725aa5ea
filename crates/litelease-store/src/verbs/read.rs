//! Shared reads.

use super::rows::{text, truth};
use super::{Answer, Arguments, Misuse};
use crate::{OwnedValue, Store, When};

/// The version; no row while a writer has the name.
pub(super) fn read(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let version = store.read(given.text(0)?, given.text(1)?, given.integer(2)?, given.when(3)?)?;
    Ok(version.into_iter().map(|version| vec![OwnedValue::Integer(version)]).collect())
}

pub(super) fn unread(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    Ok(vec![vec![truth(store.unread(given.text(0)?, given.text(1)?)?)]])
}

pub(super) fn readers(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let readers = store.readers(given.text(0)?, given.when(1)?)?.into_iter();
    Ok(readers.map(|one| vec![text(one.reader), OwnedValue::Integer(one.expires_at_ms)]).collect())
}

pub(super) fn drained(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let drained = store.drained(given.text(0)?, given.integer(1)?, given.when(2)?)?;
    Ok(vec![vec![truth(drained)]])
}

/// In the transaction that writes: whether the writer may, and then forgets the readers that it has
/// waited for.
pub(super) fn drain(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, token) = (given.text(0)?, given.integer(1)?);
    let is_drained = store.drained(name, token, When::Now)?;
    if is_drained {
        store.forget_readers(name)?;
    }
    Ok(vec![vec![truth(is_drained)]])
}

/// Wakes those who wait at the file, without having freed anything: readers look whether a writer
/// has come.
pub(super) fn ring(_: &Store, _: Arguments<'_>) -> Result<Answer, Misuse> {
    Ok(vec![])
}
