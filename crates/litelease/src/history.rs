//! The history of a file: what became of its names, queues and pools.

use litelease_store::{Actor, HistoryFilter, HistoryRow};

use crate::{Leases, Result};

/// The history.
impl Leases {
    /// Keeps a history of the newest `rows` rows in the file from now on; 0 stops it, and what was
    /// recorded can still be read.
    ///
    /// From now on every program that changes the file adds to it, in the same commit: grants and
    /// their ends, renewals in the last third of a ttl, ticks, dead items, and what operators do.
    /// Each row deletes the one that is too many. Without a history, no verb costs more.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// db.keep_history(100_000)?;
    /// let lease = db.at(100).claim("nightly", "a", Duration::from_millis(50))?.acquired().unwrap();
    /// db.at(140).renew(&lease, Duration::from_millis(50))?;
    /// db.at(150).release(&lease)?;
    /// let newest_first = db.history(HistoryFilter { name: Some("nightly"), ..Default::default() }, 50)?;
    /// let kinds: Vec<&str> = newest_first.iter().map(|row| row.kind.as_str()).collect();
    /// assert_eq!(kinds, ["released", "renewed_late", "granted"]);
    /// assert_eq!(newest_first[0].held_ms(), Some(50));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn keep_history(&self, rows: u32) -> Result<()> {
        self.run(|store| store.keep_history(rows))
    }

    /// Returns how many rows the history keeps, or `None` if the file has none.
    #[doc(hidden)]
    pub fn history_keeps(&self) -> Result<Option<i64>> {
        self.run(|store| store.history_keeps())
    }

    /// Returns rows of the history, `limit` of them at most: the newest first, or the oldest first
    /// if they are to come after an id.
    pub fn history(&self, filter: HistoryFilter<'_>, limit: usize) -> Result<Vec<HistoryRow>> {
        self.run(|store| store.history(filter, limit))
    }

    /// Makes changes in one transaction, and records who has made them, why, and with which result.
    #[doc(hidden)]
    pub fn acting<T>(&self, actor: &Actor, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut failed = None;
        let done = self.run(|store| {
            store.acting(actor, || {
                // Any error rolls back; this one is answered.
                work().map_err(|error| {
                    failed = Some(error);
                    litelease_store::Error::TransactionEnded
                })
            })
        });
        // The verbs inside could not wake waiters: nothing was committed yet.
        self.committed();
        failed.map_or(done, Err)
    }
}
