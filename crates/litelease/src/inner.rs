//! Gives the service what the public verbs do not: the store under a handle, batches, and
//! notifications.

use litelease_store::Store;

use crate::error::into_rusqlite;
use crate::{Litelease, Result};

/// For `litelease-serve`.
#[doc(hidden)]
impl Litelease {
    /// Calls a verb of the store, and returns its error as one of this crate.
    pub fn with_store<T>(
        &self,
        verb: impl FnOnce(&Store) -> Result<T, litelease_store::Error>,
    ) -> Result<T> {
        self.run(verb)
    }

    /// Notifies the processes that wait at this file, once what was just done is committed.
    pub fn notify_waiters(&self) {
        self.notify();
    }

    /// Opens a batch: a transaction for many changes, which are stored all or not at all. If
    /// anything in it fails, the caller calls `rollback_batch`.
    pub fn begin_batch(&self) -> Result<()> {
        into_rusqlite(self.store().begin_batch()).map(litelease_store::Batch::leave_open)
    }

    /// Commits what `begin_batch` has opened, and wakes processes that wait for a name which it has
    /// freed. Whatever happens, no transaction is open afterwards.
    pub fn commit_batch(&self) -> Result<()> {
        into_rusqlite(self.store().commit())?;
        self.committed();
        Ok(())
    }

    /// Rolls back what `begin_batch` has opened. That SQLite has already done so by itself is fine.
    pub fn rollback_batch(&self) -> Result<()> {
        into_rusqlite(self.store().rollback())
    }
}
