//! Pools of numbered slots.

use litelease_core::SlotInfo;

use super::answers::{Form, optional, optional_text};
use super::{Answer, Arguments, Listing, collected};
use crate::{BorrowOptions, Error, OwnedValue, SlotRow, Store, When};

pub(super) fn pool<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    store.pool(given.text(0), given.integer(1), given.when(2)).map(F::plain)
}

/// The id of the lease; none where nothing is free.
pub(super) fn borrow<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let options = BorrowOptions { note: given.optional_text(3), key: given.optional_text(4) };
    store.borrow_slot(given.text(0), given.integer(1), given.when(2), options).map(F::plain)
}

/// The slot of a lease, if it has one.
pub(super) const SLOT: Listing = Listing {
    columns: "position INTEGER, token INTEGER, expires_at_ms INTEGER",
    order: None,
    rows: |store, given, _| {
        Ok(collected(store.slot(given.text(0), given.text(1))?.map(|slot| slot_row(slot).to_vec())))
    },
};

/// The slots of a pool that are lent out at the time that is given.
pub(super) const SLOTS: Listing = Listing {
    columns: "position INTEGER, token INTEGER, expires_at_ms INTEGER, remaining_ms INTEGER, \
              note TEXT, kept_since_ms INTEGER",
    order: None,
    rows: |store, given, _| {
        let now_ms = given.when(1).now_ms();
        let row = |SlotRow { slot, note, kept_since_ms }: SlotRow| {
            let left_ms = (!slot.is_kept()).then(|| slot.expires_at_ms.saturating_sub(now_ms));
            let rest = [optional(left_ms), optional_text(note), optional(kept_since_ms)];
            slot_row(slot).into_iter().chain(rest).collect()
        };
        Ok(collected(store.slots(given.text(0), When::At(now_ms))?.into_iter().map(row)))
    },
};

/// Position, token and expiry, which is NULL if the slot is kept.
fn slot_row(slot: SlotInfo) -> [OwnedValue; 3] {
    let expiry = (!slot.is_kept()).then_some(slot.expires_at_ms);
    [Some(slot.position), Some(slot.token), expiry].map(optional)
}

pub(super) fn return_slot<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    store.return_slot(given.text(0), given.text(1), given.when(2)).map(F::plain)
}

/// The token; none where the lease is over.
pub(super) fn renew_slot<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    store.renew_slot(given.text(0), given.text(1), given.integer(2), given.when(3)).map(F::plain)
}

pub(super) fn keep_slot<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    store.keep_slot(given.text(0), given.text(1), given.when(2)).map(F::plain)
}

pub(super) fn free_kept_slot(store: &Store, given: &Arguments<'_>) -> Result<Answer, Error> {
    store.free_kept_slot(given.text(0), given.integer(1), given.integer(2)).map(Form::plain)
}

pub(super) fn delete_pool<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    store.delete_pool(given.text(0)).map(F::plain)
}
