//! Counts and lists the items of queues, in a file on a connection of its own that only reads.

use std::path::Path;

use litelease::rusqlite::{Connection, OpenFlags};
use litelease::{Error, ItemInfo, Litelease, QueueInfo};
use litelease_store::{ItemPlace, Store, When};
use serde_json::{Value, json};

use crate::access::Which;
use crate::answer::seconds;
use crate::file;

/// A look at queues, at a time.
pub(crate) type Look = Box<dyn FnOnce(&Litelease, i64) -> Result<Value, Error> + Send>;

/// Looks at the queues of a file, on a connection of its own.
pub(crate) fn look_in(path: &Path, look: Look, now_ms: i64) -> Result<Value, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Litelease::from_connection(Connection::open_with_flags(path, flags)?);
    file::set_timeout(&db, file::TIMEOUT)?;
    look(&db, now_ms)
}

/// Returns one queue, or a page of queues.
pub(crate) fn count(
    db: &Litelease,
    names: &Which,
    after: Option<&str>,
    limit: usize,
    now_ms: i64,
) -> Result<Value, Error> {
    let found = match names {
        Which::One(queue) => db.queue(queue).at(now_ms).info()?.into_iter().collect(),
        Which::Under(prefix) => {
            db.with_store(|store| store.queues_under(prefix, after, limit, When::At(now_ms)))?
        }
    };
    let next = found.last().filter(|_| found.len() >= limit).map(|last| last.queue.clone());
    let next = next.filter(|_| matches!(names, Which::Under(_)));
    Ok(json!({ "queues": found.iter().map(queue).collect::<Vec<_>>(), "next": next }))
}

/// Returns a page of the items of a queue.
pub(crate) fn list(
    db: &Litelease,
    queue: &str,
    after: Option<ItemPlace>,
    limit: usize,
    now_ms: i64,
) -> Result<Value, Error> {
    let page = |store: &Store| store.items_page(queue, after, limit, When::At(now_ms));
    let (items, next) = db.with_store(page)?;
    let items: Vec<Value> = items.iter().map(|info| item(info, now_ms)).collect();
    Ok(json!({ "items": items, "next": next.map(|next| next.to_string()) }))
}

fn item(info: &ItemInfo, now_ms: i64) -> Value {
    json!({
        "id": info.id,
        "state": info.state.word(),
        "attempt": info.attempt,
        "visible_in": info.visible_at_ms.map(|at_ms| seconds(at_ms.saturating_sub(now_ms))),
        "age": seconds(now_ms.saturating_sub(info.sent_at_ms)),
        "key": info.key,
        "note": info.note,
    })
}

fn queue(info: &QueueInfo) -> Value {
    json!({
        "queue": info.queue,
        "visible": info.visible,
        "delayed": info.delayed,
        "leased": info.leased,
        "dead": info.dead,
        "oldest": info.oldest_ms.map(seconds),
        "max_attempts": info.max_attempts,
    })
}
