//! The history.

use super::answers::{Form, optional, optional_text, text};
use super::{Arguments, Listing, collected};
use crate::{Error, HistoryFilter, HistoryRow, OwnedValue, Store};

pub(super) fn keep_history<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    store.keep_history(u32::try_from(given.integer(0)).unwrap_or(u32::MAX)).map(F::plain)
}

/// The history, the newest row first.
pub(super) const HISTORY: Listing = Listing {
    columns: "id INTEGER, at_ms INTEGER, kind TEXT, object TEXT, name TEXT, owner TEXT, \
              token INTEGER, since_ms INTEGER, number INTEGER, result INTEGER, actor TEXT, \
              note TEXT",
    order: None,
    rows: |store, given, _| {
        let (name, since_ms) = (given.optional_text(0), given.optional(1));
        let filter = HistoryFilter { name, since_ms, ..HistoryFilter::default() };
        Ok(collected(store.history(filter, usize::MAX)?.into_iter().map(history_row)))
    },
};

fn history_row(row: HistoryRow) -> Vec<OwnedValue> {
    vec![
        OwnedValue::Integer(row.id),
        OwnedValue::Integer(row.at_ms),
        text(row.kind),
        text(row.object),
        text(row.name),
        optional_text(row.owner),
        optional(row.token),
        optional(row.since_ms),
        optional(row.number),
        optional(row.result),
        optional_text(row.actor),
        optional_text(row.note),
    ]
}
