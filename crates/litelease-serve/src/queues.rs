//! Counts the items of queues, on a connection of its own that only reads.

use std::path::Path;

use litelease::rusqlite::{Connection, OpenFlags};
use litelease::{Error, Litelease, QueueInfo};
use serde_json::{Value, json};

use crate::access::Which;
use crate::answer::seconds;
use crate::file;

/// Returns one queue, or a page of queues.
pub(crate) fn count(
    path: &Path,
    names: &Which,
    after: Option<&str>,
    limit: usize,
    now_ms: i64,
) -> Result<Value, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Litelease::from_connection(Connection::open_with_flags(path, flags)?);
    file::set_timeout(&db, file::TIMEOUT)?;
    let found = match names {
        Which::One(queue) => db.queue(queue).at(now_ms).info()?.into_iter().collect(),
        Which::Under(prefix) => db.at(now_ms).queues_under(prefix, after, limit)?,
    };
    let next = found.last().filter(|_| found.len() >= limit).map(|last| last.queue.clone());
    let next = next.filter(|_| matches!(names, Which::Under(_)));
    Ok(json!({ "queues": found.iter().map(queue).collect::<Vec<_>>(), "next": next }))
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
