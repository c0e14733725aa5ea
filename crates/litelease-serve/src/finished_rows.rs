//! The request that finished the newest finished tick of each name, and its answer: a client that
//! has lost the answer asks again, and the name may have a new holder by then.

use litelease::{Error, Litelease};
use litelease_store::{FINISHED, ServiceStatement, Value};

const FIND: ServiceStatement = ServiceStatement {
    place: 8,
    table: &FINISHED,
    verb: "look for the finished tick of",
    sql: "SELECT answer FROM main.litelease_finished WHERE name = ?1 AND request = ?2",
};

const STORE: ServiceStatement = ServiceStatement {
    place: 9,
    table: &FINISHED,
    verb: "store the finished tick of",
    sql: "INSERT INTO main.litelease_finished (name, request, answer) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET request = excluded.request, answer = excluded.answer",
};

/// Returns the answer to a request, if it was the last one that finished a tick of this name.
pub(crate) fn find(db: &Litelease, name: &str, request: &[u8]) -> Result<Option<String>, Error> {
    let values = [Value::Text(name), Value::Blob(request)];
    db.with_store(|store| {
        store.service_row(&FIND, Some(name), &values, |row| {
            row.column(0).and_then(Value::text).map(str::to_owned)
        })
    })
}

/// Stores the answer to a request. Call it in a transaction, after [`find`].
pub(crate) fn store(db: &Litelease, name: &str, request: &[u8], answer: &str) -> Result<(), Error> {
    let values = [Value::Text(name), Value::Blob(request), Value::Text(answer)];
    db.with_store(|store| store.service_write_row(&STORE, Some(name), &values))
}
