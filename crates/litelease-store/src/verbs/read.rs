//! Shared reads.

use super::answers::{Form, text};
use super::{Answer, Arguments, Listing, collected};
use crate::{Error, OwnedValue, Reader, Store, When};

/// The version; none while a writer has the name.
pub(super) fn read<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let (name, reader, ttl_ms) = (given.text(0), given.text(1), given.integer(2));
    store.read(name, reader, ttl_ms, given.when(3)).map(F::plain)
}

pub(super) fn unread<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    store.unread(given.text(0), given.text(1)).map(F::plain)
}

/// The live readers of the name that is given, at the time that is given.
pub(super) const READERS: Listing = Listing {
    columns: "reader TEXT, expires_at_ms INTEGER, remaining_ms INTEGER",
    order: None,
    rows: |store, given, _| {
        let now_ms = given.when(1).now_ms();
        let row = |Reader { reader, expires_at_ms }| {
            let numbers = [expires_at_ms, expires_at_ms.saturating_sub(now_ms)];
            [vec![text(reader)], numbers.map(OwnedValue::Integer).to_vec()].concat()
        };
        Ok(collected(store.readers(given.text(0), When::At(now_ms))?.into_iter().map(row)))
    },
};

pub(super) fn drained<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    store.drained(given.text(0), given.integer(1), given.when(2)).map(F::plain)
}

/// Checks, in the transaction that writes, whether the writer may write. If so, deletes the readers
/// that it has waited for.
pub(super) fn drain(store: &Store, given: &Arguments<'_>) -> Result<Answer, Error> {
    let (name, token) = (given.text(0), given.integer(1));
    let is_drained = store.drained(name, token, When::Now)?;
    if is_drained {
        store.forget_readers(name)?;
    }
    Ok(Form::plain(is_drained))
}

/// Wakes the waiters of the file although nothing was freed: readers check whether a writer has the
/// name.
pub(super) fn notify(_: &Store, _: &Arguments<'_>) -> Result<Answer, Error> {
    Ok(vec![])
}
