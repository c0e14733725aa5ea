//! The list of table-valued functions: what each is called, its columns and its rows.

use std::iter;

use crate::{Error, Failure, GuardInfo, SlotRow, Store, Value, When, code};
use litelease_core::{Row, SlotInfo};

use crate::sql::arguments::whole;
use crate::sql::functions::Answer;
use crate::sql::table::{Given, Range, Rows, TableFunction};
use crate::sql::{read, request};

/// Every table-valued function.
pub(crate) const TABLES: &[TableFunction] = &[
    TableFunction {
        name: c"litelease_leases",
        definition: c"CREATE TABLE leases (name TEXT, owner TEXT, token INTEGER, \
                      expires_at_ms INTEGER, remaining_ms INTEGER, state TEXT, value, now_ms INTEGER HIDDEN)",
        arguments: &[7],
        order: Some(0),
        rows: leases,
    },
    TableFunction {
        name: c"litelease_guards",
        definition: c"CREATE TABLE guards (table_name TEXT, name TEXT, column_name TEXT, \
                      strict INTEGER, state TEXT, refusals INTEGER)",
        arguments: &[],
        order: None,
        rows: |store, _, _| Ok(collected(store.guards()?.into_iter().map(guard))),
    },
    TableFunction {
        name: c"litelease_checkpoint_get",
        definition: c"CREATE TABLE checkpoint (value, token INTEGER, updated_at_ms INTEGER, \
                      name TEXT HIDDEN)",
        arguments: &[3],
        order: None,
        rows: checkpoint,
    },
    TableFunction {
        name: c"litelease_slot",
        definition: c"CREATE TABLE slot (position INTEGER, token INTEGER, expires_at_ms INTEGER, \
                      pool_id TEXT HIDDEN, lease_id TEXT HIDDEN)",
        arguments: &[3, 4],
        order: None,
        rows: slot,
    },
    TableFunction {
        name: c"litelease_slots",
        definition: c"CREATE TABLE slots (position INTEGER, token INTEGER, expires_at_ms INTEGER, \
                      remaining_ms INTEGER, note TEXT, kept_since_ms INTEGER, pool_id TEXT HIDDEN, \
                      now_ms INTEGER HIDDEN)",
        arguments: &[6, 7],
        order: None,
        rows: slots,
    },
    read::READERS,
    request::REQUESTED,
];

/// Every lease, with how it stands at the time that is given.
fn leases(store: &Store, given: &[Given<'_>], range: Range<'_>) -> Result<Rows, Error> {
    let now_ms = time(given.first())?;
    let mut walk = store.walk(range.from, range.to)?;
    let next = move || {
        let next = walk.next();
        next.map(|next| next.map(|(row, value)| lease(row, value, now_ms))).transpose()
    };
    Ok(Box::new(iter::from_fn(next)))
}

/// Rows that were read to the end.
pub(crate) fn collected(rows: impl IntoIterator<Item = Vec<Answer>>) -> Rows {
    let rows: Vec<_> = rows.into_iter().map(Ok).collect();
    Box::new(rows.into_iter())
}

fn lease(row: Row<'_>, value: Value<'_>, now_ms: i64) -> Vec<Answer> {
    let tenure = row.state().and_then(|state| state.tenure());
    let expiry = tenure.map(|tenure| tenure.expires_at_ms);
    let number = |number: Option<i64>| number.map_or(Answer::Null, Answer::Integer);
    let text = |text: Option<&str>| text.map_or(Answer::Null, |text| Answer::Text(text.into()));
    vec![
        text(Some(row.name())),
        text(tenure.map(|tenure| tenure.owner)),
        number(row.token()),
        number(expiry),
        // A lease that is over has no time left; one without an owner has none to speak of.
        number(expiry.map(|expiry| expiry.saturating_sub(now_ms).max(0))),
        text(row.status(now_ms).map(|status| status.word())),
        // A value ends with its grant.
        if row.live(now_ms).is_some() { value.into() } else { Answer::Null },
        number(Some(now_ms)),
    ]
}

fn guard(guard: GuardInfo) -> Vec<Answer> {
    let state = if guard.is_intact { "intact" } else { "missing" };
    // Only a guard by connection can count.
    let refusals = guard.column.is_none().then_some(guard.refusals);
    vec![
        Answer::Text(guard.table),
        Answer::Text(guard.name),
        guard.column.map_or(Answer::Null, Answer::Text),
        Answer::Integer(i64::from(guard.strict)),
        Answer::Text(state.into()),
        refusals.map_or(Answer::Null, |count| {
            Answer::Integer(i64::try_from(count).unwrap_or(i64::MAX))
        }),
    ]
}

/// The latest checkpoint of the name that is given, if there is one.
fn checkpoint(store: &Store, given: &[Given<'_>], _: Range<'_>) -> Result<Rows, Error> {
    let [Given::Value(Value::Text(name))] = given else {
        return Err(complaint("name must be TEXT: FROM litelease_checkpoint_get(name)"));
    };
    let last = store.last_checkpoint(name, |token, value, updated_at_ms| {
        let (token, at) = (Answer::Integer(token), Answer::Integer(updated_at_ms));
        vec![value.into(), token, at, Answer::Text((*name).into())]
    })?;
    Ok(collected(last))
}

/// The slot of a lease, if it has one.
fn slot(store: &Store, given: &[Given<'_>], _: Range<'_>) -> Result<Rows, Error> {
    let [Given::Value(Value::Text(id)), Given::Value(Value::Text(lease))] = given else {
        return Err(complaint("id and lease must be TEXT: FROM litelease_slot(id, lease)"));
    };
    let columns = |slot: SlotInfo| {
        let numbers = [Answer::Integer(slot.position), Answer::Integer(slot.token), expiry(slot)];
        numbers.into_iter().chain([id, lease].map(|text| Answer::Text((*text).into()))).collect()
    };
    Ok(collected(store.slot(id, lease)?.map(columns)))
}

/// The slots of a pool that are lent out at the time that is given.
fn slots(store: &Store, given: &[Given<'_>], _: Range<'_>) -> Result<Rows, Error> {
    let [Given::Value(Value::Text(id)), now] = given else {
        return Err(complaint("id must be TEXT: FROM litelease_slots(id[, now_ms])"));
    };
    let now_ms = time(Some(now))?;
    let slots = store.slots(id, When::At(now_ms))?;
    let columns = |SlotRow { slot, note, kept_since_ms }: SlotRow| {
        let remaining_ms = slot.expires_at_ms.saturating_sub(now_ms);
        vec![
            Answer::Integer(slot.position),
            Answer::Integer(slot.token),
            expiry(slot),
            if slot.is_kept() { Answer::Null } else { Answer::Integer(remaining_ms) },
            note.map_or(Answer::Null, Answer::Text),
            kept_since_ms.map_or(Answer::Null, Answer::Integer),
            Answer::Text((*id).into()),
            Answer::Integer(now_ms),
        ]
    };
    Ok(collected(slots.into_iter().map(columns)))
}

/// The expiry of a slot: NULL if it is kept.
fn expiry(slot: SlotInfo) -> Answer {
    if slot.is_kept() { Answer::Null } else { Answer::Integer(slot.expires_at_ms) }
}

/// A time that may have been left out or be NULL: then it is the system clock's.
pub(crate) fn time(given: Option<&Given<'_>>) -> Result<i64, Error> {
    let given = match given {
        None | Some(Given::Nothing | Given::Value(Value::Null)) => return Ok(When::Now.now_ms()),
        Some(Given::Value(value)) => whole(*value),
        Some(Given::BadText) => None,
    };
    given.ok_or_else(|| complaint("now_ms must be an INTEGER, or NULL for the system clock"))
}

pub(crate) fn complaint(message: &str) -> Error {
    Error::Sqlite(Failure { code: code::ERROR, message: message.into() })
}
