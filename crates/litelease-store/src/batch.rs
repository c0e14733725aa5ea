//! A transaction for many changes of pools, which are stored all or not at all.
//!
//! No other connection writes while it is open. So the batch caches what it has read, and stores
//! the counts of a pool once, before the commit.

use std::mem;

use litelease_core::{CommitContext, Epoch};

use crate::pool_rows::PoolRow;
use crate::{Error, Store};

/// An open transaction for many changes of pools. Dropping it rolls back.
///
/// A change that fails half way is not undone by itself, so the caller must not commit the batch
/// after an error.
#[must_use = "a batch that is dropped is rolled back"]
pub struct Batch<'s> {
    store: &'s Store,
}

impl Batch<'_> {
    /// Commits. No transaction is open afterwards, even after an error; the errors are those of
    /// [`Store::commit`].
    pub fn commit(self) -> Result<(), Error> {
        let store = self.store;
        self.leave_open();
        store.commit()
    }

    /// Leaves the transaction open, for a caller that cannot keep a borrow of the store.
    /// [`Store::commit`] or [`Store::rollback`] ends it.
    pub fn leave_open(self) {
        mem::forget(self);
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        // A rollback that fails is made up for before the next verb.
        let _ = self.store.rollback();
    }
}

/// Values that the open batch caches.
pub(crate) struct BatchCache {
    /// The commit context of the batch.
    context: CommitContext,
    /// The pool that was used last.
    pool: Option<Known>,
    /// The newest token of any slot.
    newest: Option<i64>,
    epoch: Option<Epoch>,
    /// Random digits for the leases to come.
    digits: String,
}

/// How many leases a batch has random digits for at a time.
const LEASES: i64 = 64;

/// A pool as it is at one time.
struct Known {
    id: String,
    now_ms: i64,
    row: PoolRow,
    /// The pool as it is stored, without the changes that were counted since.
    stored: PoolRow,
}

impl Store {
    /// Opens a batch.
    pub fn begin_batch(&self) -> Result<Batch<'_>, Error> {
        self.begin()?;
        // From here on, an error drops the batch and so rolls back.
        let batch = Batch { store: self };
        let context = self.boundary().and_then(|boundary| self.commit_context(boundary))?;
        let (pool, newest, epoch, digits) = (None, None, None, String::new());
        *self.batch.borrow_mut() = Some(BatchCache { context, pool, newest, epoch, digits });
        Ok(batch)
    }

    /// Returns the commit context of the open batch, if there is one.
    pub(crate) fn context_in_batch(&self) -> Option<CommitContext> {
        self.in_batch(|batch| batch.context)
    }

    /// Returns the pool called `id` at this time, if the open batch knows it.
    pub(crate) fn known_pool(&self, id: &str, now_ms: i64) -> Option<PoolRow> {
        let batch = self.batch.borrow();
        let known = batch.as_ref()?.pool.as_ref()?;
        (known.now_ms == now_ms && known.id == id).then_some(known.row)
    }

    /// Takes note of a pool that was read.
    pub(crate) fn know_pool(&self, id: &str, now_ms: i64, row: PoolRow) {
        self.in_batch(|batch| {
            batch.pool = Some(Known { id: id.into(), now_ms, row, stored: row });
        });
    }

    /// Counts slots that were lent out or given back. False if there is no batch to do so: then it
    /// is to be stored.
    pub(crate) fn count_in_batch(&self, row: PoolRow) -> bool {
        let mut batch = self.batch.borrow_mut();
        let known = batch.as_mut().and_then(|batch| batch.pool.as_mut());
        match known.filter(|known| known.row.number == row.number) {
            Some(known) => {
                known.row = row;
                true
            }
            None => false,
        }
    }

    /// Stores the counts, and removes the pool from the cache: another call is about to change it,
    /// or the batch ends.
    pub fn store_counts(&self) -> Result<(), Error> {
        match self.in_batch(|batch| batch.pool.take()).flatten() {
            Some(known) => self.store_count(known.stored, known.row),
            None => Ok(()),
        }
    }

    /// Returns 32 random digits. `read` reads those of many leases at once.
    pub(crate) fn digits_in_batch(
        &self,
        read: impl FnOnce(i64) -> Result<String, Error>,
    ) -> Result<String, Error> {
        let mut batch = self.batch.borrow_mut();
        let Some(BatchCache { digits, .. }) = &mut *batch else { return read(1) };
        if digits.is_empty() {
            *digits = read(LEASES)?;
        }
        Ok(digits.split_off(digits.len().saturating_sub(32)))
    }

    /// Returns the cached newest token of any slot, or reads and caches it.
    pub(crate) fn newest_in_batch(
        &self,
        read: impl FnOnce() -> Result<i64, Error>,
    ) -> Result<i64, Error> {
        let known = self.in_batch(|batch| batch.newest).flatten();
        let newest = known.map_or_else(read, Ok)?;
        self.know_newest(Some(newest));
        Ok(newest)
    }

    /// Takes note of the newest token, or that it may be another one now.
    pub(crate) fn know_newest(&self, newest: Option<i64>) {
        self.in_batch(|batch| batch.newest = newest);
    }

    /// Returns the cached epoch, or reads and caches it.
    pub(crate) fn epoch_in_batch(
        &self,
        read: impl FnOnce() -> Result<Epoch, Error>,
    ) -> Result<Epoch, Error> {
        let known = self.in_batch(|batch| batch.epoch).flatten();
        let epoch = known.map_or_else(read, Ok)?;
        self.in_batch(|batch| batch.epoch = Some(epoch));
        Ok(epoch)
    }

    /// Forgets the epoch that the batch has read: it is another one now.
    pub(crate) fn forget_epoch(&self) {
        self.in_batch(|batch| batch.epoch = None);
    }

    /// Does `work` with the open batch, if there is one.
    fn in_batch<T>(&self, work: impl FnOnce(&mut BatchCache) -> T) -> Option<T> {
        self.batch.borrow_mut().as_mut().map(work)
    }
}
