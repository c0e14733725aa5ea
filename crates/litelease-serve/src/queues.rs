//! Counts and lists the items of queues and the held slots of pools by name, in a file on a
//! connection of its own that only reads.

use std::path::Path;

use litelease::rusqlite::{Connection, OpenFlags};
use litelease::{Error, ItemInfo, Litelease, QueueInfo, pool_of_name};
use litelease_store::{ItemPlace, Store, When};
use serde_json::{Value, json};

use crate::access::Which;
use crate::answer::{counts, held_slot, seconds};
use crate::file;

/// A look at queues or pools, at a time.
pub(crate) type Look = Box<dyn FnOnce(&Litelease, i64) -> Result<Value, Error> + Send>;

/// Looks at the queues or pools of a file, on a connection of its own.
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

/// Returns the pools by name of which slots are held. No id of a pool without a name is shown: it
/// may be a secret.
pub(crate) fn pools(
    db: &Litelease,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
    now_ms: i64,
) -> Result<Value, Error> {
    let (prefix, after) = (pool_of_name(prefix), after.map(pool_of_name).unwrap_or_default());
    let when = When::At(now_ms);
    let found = db.with_store(|store| store.pools_in_use(&prefix, &after, limit, when))?;
    let name = |id: &str| id[pool_of_name("").len()..].to_owned();
    let next = found.last().filter(|_| found.len() >= limit).map(|(id, _)| name(id));
    let pools = found.iter().map(|(id, info)| {
        let mut pool = counts(*info);
        pool["name"] = name(id).into();
        pool
    });
    Ok(json!({ "pools": pools.collect::<Vec<_>>(), "next": next }))
}

/// Returns the held slots of the pool of a name, from a position on.
pub(crate) fn slots(
    db: &Litelease,
    name: &str,
    from: i64,
    limit: usize,
    now_ms: i64,
) -> Result<Value, Error> {
    let id = pool_of_name(name);
    let Some(info) = db.pools().at(now_ms).info(&id)? else {
        return Ok(json!({ "pools": [], "next": null }));
    };
    let held = db.with_store(|store| store.slots_from(&id, from, limit, When::At(now_ms)))?;
    let next = held.last().filter(|_| held.len() >= limit).map(|row| row.slot.position.to_string());
    let mut pool = counts(info);
    pool["name"] = name.into();
    pool["slots"] = held.iter().map(|row| held_slot(row, now_ms)).collect();
    Ok(json!({ "pools": [pool], "next": next }))
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
