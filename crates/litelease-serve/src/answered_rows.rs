//! Answers to requests with an idempotency key, kept for a day.
//!
//! Rows are in the order of time, so the oldest are the first: each new answer deletes two that are
//! too old. A purge deletes the others.

use litelease::{Error, Litelease};
use litelease_store::{ANSWERED, ServiceStatement, Value};

/// How long an answer is kept.
pub(crate) const KEPT_MS: i64 = 24 * 60 * 60 * 1000;

const FIND: ServiceStatement = ServiceStatement {
    place: 5,
    table: &ANSWERED,
    verb: "look for an answer",
    sql: "SELECT answer FROM main.litelease_answered WHERE request = ?1 AND at_ms > ?2",
};

// An older answer to the same request is deleted, so that the rows stay in the order of time.
const STORE: ServiceStatement = ServiceStatement {
    place: 6,
    table: &ANSWERED,
    verb: "store an answer",
    sql: "INSERT OR REPLACE INTO main.litelease_answered (request, at_ms, answer)
VALUES (?1, ?2, ?3)",
};

const TRIM: ServiceStatement = ServiceStatement {
    place: 7,
    table: &ANSWERED,
    verb: "store an answer",
    sql: "DELETE FROM main.litelease_answered
WHERE number IN (SELECT number FROM main.litelease_answered ORDER BY number LIMIT 2) AND at_ms <= ?1",
};

/// Returns the answer that was given to a request within the last day, if there is one.
pub(crate) fn find(db: &Litelease, request: &[u8], now_ms: i64) -> Result<Option<String>, Error> {
    let values = [Value::Blob(request), Value::Integer(now_ms.saturating_sub(KEPT_MS))];
    db.with_store(|store| {
        store.service_row(&FIND, None, &values, |row| {
            row.column(0).and_then(Value::text).map(str::to_owned)
        })
    })
}

/// Stores the answer to a request, and deletes two that are too old. Call it in a transaction,
/// after [`find`].
pub(crate) fn store(
    db: &Litelease,
    request: &[u8],
    answer: &str,
    now_ms: i64,
) -> Result<(), Error> {
    let values = [Value::Blob(request), Value::Integer(now_ms), Value::Text(answer)];
    db.with_store(|store| {
        store.service_write(&TRIM, None, &[Value::Integer(now_ms.saturating_sub(KEPT_MS))])?;
        store.service_write_row(&STORE, None, &values)
    })
}
