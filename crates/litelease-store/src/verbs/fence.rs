//! Guards, presented tokens, checkpoints and gates.

use super::answers::{Form, optional, optional_text, text, truth};
use super::{Arguments, Listing, collected};
use crate::{Error, Guard, GuardInfo, OwnedValue, Store};

pub(super) fn guard<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let guard = given.optional_text(2).map_or_else(Guard::by_connection, Guard::by_column);
    let guard = if given.integer(3) == 1 { guard.strict() } else { guard };
    store.guard(given.text(0), given.text(1), &guard).map(F::plain)
}

pub(super) fn unguard<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    store.unguard(given.text(0), given.optional_text(1)).map(F::plain)
}

/// Every guard.
pub(super) const GUARDS: Listing = Listing {
    columns: "table_name TEXT, name TEXT, column_name TEXT, strict INTEGER, state TEXT, \
              refusals INTEGER",
    order: None,
    rows: |store, _, _| Ok(collected(store.guards()?.into_iter().map(guard_row))),
};

fn guard_row(guard: GuardInfo) -> Vec<OwnedValue> {
    // Only a guard by connection can count.
    let refusals = guard.column.is_none().then_some(guard.refusals);
    vec![
        text(guard.table),
        text(guard.name),
        optional_text(guard.column),
        truth(guard.strict),
        text(if guard.is_intact { "intact" } else { "missing" }),
        optional(refusals.map(|count| i64::try_from(count).unwrap_or(i64::MAX))),
    ]
}

/// Presents a token, or withdraws the one that was presented.
pub(super) fn present<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let name = given.text(0);
    Ok(match given.optional(1) {
        Some(token) => F::plain(store.present(name, token)?),
        None => {
            store.withdraw(name)?;
            F::plain(None::<i64>)
        }
    })
}

pub(super) fn checkpoint<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let (name, token) = (given.text(0), given.integer(1));
    store.checkpoint(name, token, given.any(2), given.when(3)).map(F::plain)
}

/// The latest checkpoint of the name that is given, if there is one.
pub(super) const CHECKPOINT: Listing = Listing {
    columns: "value, token INTEGER, updated_at_ms INTEGER",
    order: None,
    rows: |store, given, _| {
        let row = |token, value: crate::Value<'_>, updated_at_ms| {
            vec![value.into(), OwnedValue::Integer(token), OwnedValue::Integer(updated_at_ms)]
        };
        Ok(collected(store.last_checkpoint(given.text(0), row)?))
    },
};

pub(super) fn admit<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    store.admit(given.text(0), given.integer(1)).map(F::plain)
}
