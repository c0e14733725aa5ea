//! The locks of sayt2's tracker, which keeps them in a table of its own.

use crate::sqlite::Value;
use crate::{Error, Store};

/// Checks whether the file has the table.
const HAS_TABLE: &str = "SELECT count(*) FROM pragma_table_info('locks', 'main')
WHERE name IN ('name', 'lock', 'lock_at', 'expire_at')";

/// Reads the locks that are live, each with its end in Unix milliseconds.
const LIVE: &str = "SELECT name, lock, end_ms FROM (
  SELECT name, lock, CAST((julianday(expire_at) - 2440587.5) * 86400000 AS INTEGER) AS end_ms
  FROM main.locks WHERE lock IS NOT NULL
) WHERE end_ms > ?1 ORDER BY name";

/// A lock of sayt2's tracker.
///
/// ```
/// # use litelease_store::ForeignLock;
/// let lock = ForeignLock { name: "books".into(), token: "f85d".into(), end_ms: 1_000 };
/// assert_eq!(lock.name, "books");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignLock {
    /// The name that is locked.
    pub name: String,
    /// The token that unlocks it.
    pub token: String,
    /// When it ends, in Unix milliseconds.
    pub end_ms: i64,
}

impl Store {
    /// Reads the locks of sayt2's tracker in this file that are live at `now_ms`. Needs no write
    /// lock.
    pub fn foreign_locks(&self, now_ms: i64) -> Result<Vec<ForeignLock>, Error> {
        self.with_context("read the locks of sayt2", None, || {
            let mut found = self.connection.prepare(HAS_TABLE)?;
            let mut found = found.run(&[])?;
            if !found.step()? || found.column(0).and_then(Value::integer) != Some(4) {
                return Ok(Vec::new());
            }
            let mut statement = self.connection.prepare(LIVE)?;
            let mut run = statement.run(&[Value::Integer(now_ms)])?;
            let mut locks = Vec::new();
            while run.step()? {
                let text = |index| run.column(index).and_then(Value::text).map(str::to_owned);
                let end_ms = run.column(2).and_then(Value::integer);
                if let (Some(name), Some(token), Some(end_ms)) = (text(0), text(1), end_ms) {
                    locks.push(ForeignLock { name, token, end_ms });
                }
            }
            Ok(locks)
        })
    }
}
