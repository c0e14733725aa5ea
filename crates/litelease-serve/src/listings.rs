//! Counts and lists the items of queues and the held slots of pools by name, in a file on a
//! connection of its own that only reads.

use std::path::Path;

use litelease::rusqlite::{Connection, OpenFlags};
use litelease::{
    Error, HistoryFilter, HistoryRow, ItemInfo, Litelease, PoolInfo, QueueInfo, pool_label,
    pool_of_name,
};
use litelease_store::{ItemCursor, Store, When};
use litelease_wire::{
    Event, History, ItemState, Items, PoolOfLabel, PoolOfName, Queue, Queues, Slots,
};

use crate::access::Which;
use crate::answer::{held_slot, seconds};
use crate::file;

/// Runs a read of a file, on a connection of its own.
pub(crate) fn read_file<T>(
    path: &Path,
    read: impl FnOnce(&Litelease, i64) -> Result<T, Error>,
    now_ms: i64,
) -> Result<T, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Litelease::from_connection(Connection::open_with_flags(path, flags)?);
    file::set_timeout(&db, file::TIMEOUT)?;
    read(&db, now_ms)
}

/// Returns one queue, or a page of queues.
pub(crate) fn queues(
    db: &Litelease,
    names: &Which,
    after: Option<&str>,
    limit: usize,
    now_ms: i64,
) -> Result<Queues, Error> {
    let found = match names {
        Which::One(queue) => db.queue(queue).at(now_ms).info()?.into_iter().collect(),
        Which::Under(prefix) => {
            db.with_store(|store| store.queues_under(prefix, after, limit, When::At(now_ms)))?
        }
    };
    let next = found.last().filter(|_| found.len() >= limit).map(|last| last.queue.clone());
    let next = next.filter(|_| matches!(names, Which::Under(_)));
    Ok(Queues { next, queues: found.into_iter().map(queue).collect() })
}

/// The rows of the history that a client wants.
pub(crate) struct HistoryPage {
    pub(crate) names: Which,
    pub(crate) object: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) since_ms: Option<i64>,
    /// Rows after this id, the oldest first.
    pub(crate) newer: Option<i64>,
    /// The last id of the page before.
    pub(crate) after: Option<i64>,
    pub(crate) limit: usize,
}

/// Returns a page of the history.
pub(crate) fn history(db: &Litelease, page: &HistoryPage) -> Result<History, Error> {
    let (name, prefix) = match &page.names {
        Which::One(name) => (Some(&**name), None),
        Which::Under(prefix) => (None, Some(&**prefix).filter(|prefix| !prefix.is_empty())),
    };
    // Where newer rows are wanted, the pages go on upwards.
    let (after, before) = match page.newer {
        Some(newer) => (Some(page.after.unwrap_or(newer)), None),
        None => (None, page.after),
    };
    let (object, kind) = (page.object.as_deref(), page.kind.as_deref());
    let since_ms = page.since_ms;
    let filter = HistoryFilter { name, prefix, object, kind, since_ms, before, after };
    let rows = db.history(filter, page.limit)?;
    let next = rows.last().filter(|_| rows.len() >= page.limit).map(|row| row.id.to_string());
    let keeps = db.history_keeps()?;
    Ok(History { events: rows.into_iter().map(event).collect(), keeps, next })
}

fn event(row: HistoryRow) -> Event {
    Event {
        held_for: row.held_ms().map(|ms| seconds(ms.max(0))),
        actor: row.actor,
        at_unix_ms: row.at_ms,
        id: row.id,
        kind: row.kind,
        name: row.name,
        note: row.note,
        number: row.number,
        object: row.object,
        owner: row.owner,
        result: row.result,
        token: row.token,
    }
}

/// Returns a page of the items of a queue.
pub(crate) fn items(
    db: &Litelease,
    queue: &str,
    after: Option<ItemCursor>,
    limit: usize,
    now_ms: i64,
) -> Result<Items, Error> {
    let page = |store: &Store| store.items_page(queue, after, limit, When::At(now_ms));
    let (items, next) = db.with_store(page)?;
    let items = items.into_iter().map(|info| item(info, now_ms)).collect();
    Ok(Items { items, next: next.map(|next| next.to_string()) })
}

/// Returns the pools by name of which slots are held. No id of a pool without a name is shown: it
/// may be a secret.
pub(crate) fn pools(
    db: &Litelease,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
    now_ms: i64,
) -> Result<Slots, Error> {
    let (prefix, after) = (pool_of_name(prefix), after.map(pool_of_name).unwrap_or_default());
    let when = When::At(now_ms);
    let found = db.with_store(|store| store.pools_in_use(&prefix, &after, limit, when))?;
    let name = |id: &str| id[pool_of_name("").len()..].to_owned();
    let next = found.last().filter(|_| found.len() >= limit).map(|(id, _)| name(id));
    let pools = found.iter().map(|(id, info)| pool(name(id), *info)).collect();
    Ok(Slots { next, pools })
}

/// How many held slots, and requests that wait, a pool has in the list of all pools.
pub(crate) const MOST_SHOWN: usize = 20;

/// Returns a page of all pools after a number, each with its id, which is not to be shown, and the
/// number of the last one if there may be more.
#[allow(clippy::type_complexity)] // a page
pub(crate) fn all_pools(
    db: &Litelease,
    after: i64,
    limit: usize,
    now_ms: i64,
) -> Result<(Vec<(String, PoolOfLabel)>, Option<String>), Error> {
    let when = When::At(now_ms);
    let found = db.with_store(|store| store.pools_page(after, limit, when))?;
    let next = found.last().filter(|_| found.len() >= limit).map(|(number, ..)| number.to_string());
    let mut pools = Vec::with_capacity(found.len());
    for (_, id, info) in found {
        let held = db.with_store(|store| store.slots_from(&id, 0, MOST_SHOWN, when))?;
        let (available, PoolInfo { count, in_use, .. }) = (info.available(), info);
        let slots = held.iter().map(|row| held_slot(row, now_ms)).collect();
        let (label, waiters, waiting) = (pool_label(&id), 0, None);
        pools.push((id, PoolOfLabel { available, count, in_use, label, slots, waiters, waiting }));
    }
    Ok((pools, next))
}

/// Returns the held slots of the pool of a name, from a position on.
pub(crate) fn slots(
    db: &Litelease,
    name: &str,
    from: i64,
    limit: usize,
    now_ms: i64,
) -> Result<Slots, Error> {
    let id = pool_of_name(name);
    let Some(info) = db.pools().at(now_ms).info(&id)? else {
        return Ok(Slots { next: None, pools: Vec::new() });
    };
    let held = db.with_store(|store| store.slots_from(&id, from, limit, When::At(now_ms)))?;
    let next = held.last().filter(|_| held.len() >= limit).map(|row| row.slot.position.to_string());
    let slots = Some(held.iter().map(|row| held_slot(row, now_ms)).collect());
    Ok(Slots { next, pools: vec![PoolOfName { slots, ..pool(name.into(), info) }] })
}

fn pool(name: String, info: PoolInfo) -> PoolOfName {
    let (available, PoolInfo { count, in_use, .. }) = (info.available(), info);
    PoolOfName { available, count, in_use, name, slots: None }
}

fn item(info: ItemInfo, now_ms: i64) -> ItemState {
    let ItemInfo { id, state, attempt, key, note, .. } = info;
    let visible_in = info.visible_at_ms.map(|at_ms| seconds(at_ms.saturating_sub(now_ms)));
    let age = seconds(now_ms.saturating_sub(info.sent_at_ms));
    ItemState { age, attempt, id, key, note, state: state.word().into(), visible_in }
}

fn queue(info: QueueInfo) -> Queue {
    let QueueInfo { queue, visible, delayed, leased, dead, max_attempts, .. } = info;
    let oldest = info.oldest_ms.map(seconds);
    Queue { dead, delayed, leased, max_attempts, oldest, queue, visible }
}
