//! Gives the service more than the public verbs: the store under a handle, batches, and
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

    /// Notifies the processes that wait at this file, once the change is committed.
    pub fn notify_waiters(&self) {
        self.notify();
    }

    /// Begins a batch: a transaction with many changes, which are stored all or not at all. If one
    /// of them fails, the caller calls `rollback_batch`.
    pub fn begin_batch(&self) -> Result<()> {
        into_rusqlite(self.store().begin_batch()).map(litelease_store::Batch::leave_open)
    }

    /// Commits the batch that `begin_batch` has begun, and wakes processes that wait for a name
    /// that it has freed. No transaction is open afterwards, even if this fails.
    pub fn commit_batch(&self) -> Result<()> {
        into_rusqlite(self.store().commit())?;
        self.committed();
        Ok(())
    }

    /// Rolls back the batch that `begin_batch` has begun, unless SQLite has already done so by
    /// itself.
    pub fn rollback_batch(&self) -> Result<()> {
        into_rusqlite(self.store().rollback())
    }
}
