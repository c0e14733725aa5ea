//! The functions of shared reads: `litelease_read` and the rest.

use crate::sql::functions::{Answer, Function, NAME, NOW, READER, TOKEN, TTL, Writes};
use crate::sql::table::{Given, Range, Rows, TableFunction};
use crate::sql::tables::{collected, complaint, time};
use crate::{Error, Store, Value, When};

pub(super) const READ: Function = Function {
    name: "litelease_read",
    arguments: &[NAME, READER, TTL, NOW],
    required: 3,
    kind: Writes::Yes,
    run: |store, given| {
        let (name, reader, ttl_ms) = (given.text(0), given.text(1), given.integer(2));
        let version = store.read(name, reader, ttl_ms, given.when(3))?;
        Ok(version.map_or(Answer::Null, Answer::Integer))
    },
};

pub(super) const UNREAD: Function = Function {
    name: "litelease_unread",
    arguments: &[NAME, READER],
    required: 2,
    kind: Writes::Yes,
    run: |store, given| {
        let given_up = store.unread(given.text(0), given.text(1))?;
        Ok(Answer::Integer(i64::from(given_up)))
    },
};

pub(super) const DRAINED: Function = Function {
    name: "litelease_drained",
    arguments: &[NAME, TOKEN, NOW],
    required: 2,
    kind: Writes::No,
    run: |store, given| {
        let drained = store.drained(given.text(0), given.integer(1), given.when(2))?;
        Ok(Answer::Integer(i64::from(drained)))
    },
};

pub(super) const READERS: TableFunction = TableFunction {
    name: c"litelease_readers",
    definition: c"CREATE TABLE readers (reader TEXT, expires_at_ms INTEGER, remaining_ms INTEGER, \
                  name TEXT HIDDEN, now_ms INTEGER HIDDEN)",
    arguments: &[3, 4],
    order: None,
    rows: readers,
};

/// The live readers of the name that is given, at the time that is given.
fn readers(store: &Store, given: &[Given<'_>], _: Range<'_>) -> Result<Rows, Error> {
    let [Given::Value(Value::Text(name)), now] = given else {
        return Err(complaint("name must be TEXT: FROM litelease_readers(name[, now_ms])"));
    };
    let now_ms = time(Some(now))?;
    let readers = store.readers(name, When::At(now_ms))?.into_iter().map(|reader| {
        vec![
            Answer::Text(reader.reader),
            Answer::Integer(reader.expires_at_ms),
            Answer::Integer(reader.expires_at_ms.saturating_sub(now_ms)),
            Answer::Text((*name).into()),
            Answer::Integer(now_ms),
        ]
    });
    Ok(collected(readers))
}
