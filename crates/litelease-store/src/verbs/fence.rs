//! Guards, presented tokens, checkpoints and gates.

use litelease_core::{AdmitResult, CheckpointResult};

use super::rows::{number, optional_text, stale, text, truth};
use super::{Answer, Arguments, Misuse};
use crate::{Guard, OwnedValue, Store};

pub(super) fn guard(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let guard = match given.optional(2, Arguments::text)? {
        Some(column) => Guard::by_column(column),
        None => Guard::by_connection(),
    };
    let is_strict = given.optional(3, Arguments::integer)? == Some(1);
    let guard = if is_strict { guard.strict() } else { guard };
    store.guard(given.text(0)?, given.text(1)?, &guard)?;
    Ok(vec![])
}

pub(super) fn unguard(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let taken = store.unguard(given.text(0)?, given.optional(1, Arguments::text)?)?;
    Ok(number(i64::try_from(taken).unwrap_or(i64::MAX)))
}

pub(super) fn guards(store: &Store, _: Arguments<'_>) -> Result<Answer, Misuse> {
    let rows = store.guards()?.into_iter().map(|guard| {
        vec![
            text(guard.table),
            text(guard.name),
            optional_text(guard.column),
            truth(guard.strict),
            truth(guard.is_intact),
            OwnedValue::Integer(i64::try_from(guard.refusals).unwrap_or(i64::MAX)),
        ]
    });
    Ok(rows.collect())
}

pub(super) fn present(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    Ok(vec![vec![truth(store.present(given.text(0)?, given.integer(1)?)?)]])
}

pub(super) fn withdraw(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    store.withdraw(given.text(0)?)?;
    Ok(vec![])
}

pub(super) fn checkpoint(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, token, value) = (given.text(0)?, given.integer(1)?, given.value(2));
    Ok(vec![match store.checkpoint(name, token, value, given.when(3)?)? {
        CheckpointResult::Stored => vec![text("Stored")],
        CheckpointResult::Stale { newest } => stale(newest),
    }])
}

/// No row where there is none.
pub(super) fn last_checkpoint(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let found = store.last_checkpoint(given.text(0)?, |token, value, at_ms| {
        vec![OwnedValue::Integer(token), value.into(), OwnedValue::Integer(at_ms)]
    })?;
    Ok(found.into_iter().collect())
}

pub(super) fn admit(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    Ok(vec![match store.admit(given.text(0)?, given.integer(1)?)? {
        AdmitResult::Admitted => vec![text("Admitted")],
        AdmitResult::Stale { newest } => stale(Some(newest)),
    }])
}
