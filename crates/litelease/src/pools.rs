//! Pools of numbered slots, for all handles.

use std::time::Duration;

use litelease_store::When;

use crate::leases::in_ms;
use crate::{BorrowOptions, Borrowed, Leases, PoolInfo, Result, SlotInfo, SlotRow};

/// The verbs on pools, through any handle.
///
/// A pool is `count` numbered slots. Borrowing lends out the lowest free one for a bounded time,
/// under a fencing token that is larger than every earlier one of any pool in the file. An id is
/// any text; if the pool is also served over HTTP, it is a UUID in lower case.
///
/// ```
/// # litelease_doctest::memory!(db);
/// let pools = db.pools();
/// pools.register("importers", 4)?;
/// if let Some(borrowed) = pools.borrow("importers", Duration::from_secs(30))? {
///     println!("slot {}, token {}", borrowed.slot.position, borrowed.slot.token);
///     pools.return_slot("importers", &borrowed.lease_id)?;
/// }
/// # Ok::<(), litelease::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Pools<'l> {
    pub(crate) leases: &'l Leases,
    pub(crate) when: When,
}

impl Leases {
    /// Returns the verbs on pools of numbered slots, in this handle's connection and transaction.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// db.pools().register("importers", 4)?;
    /// let tx = db.transaction()?;
    /// let borrowed = tx.pools().borrow("importers", Duration::from_secs(30))?;
    /// drop(tx); // rolled back, the borrow with it
    /// assert_eq!(db.pools().info("importers")?.unwrap().in_use, 0);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn pools(&self) -> Pools<'_> {
        Pools { leases: self, when: self.when() }
    }
}

impl Pools<'_> {
    /// Returns the same verbs at a given Unix time in milliseconds, for tests and simulations.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let pools = db.pools();
    /// pools.register("printer", 1)?;
    /// let ttl = Duration::from_millis(50);
    /// pools.at(100).borrow("printer", ttl)?;
    /// assert_eq!(pools.at(149).borrow("printer", ttl)?, None);
    /// let next = pools.at(150).borrow("printer", ttl)?.unwrap();
    /// assert_eq!((next.slot.position, next.slot.token), (0, 2));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn at(self, now_ms: i64) -> Self {
        Pools { when: When::At(now_ms), ..self }
    }

    /// Makes a pool of `count` slots (0 to 1,000,000), or changes how many it has.
    ///
    /// If the pool gets smaller, borrowers keep their slots; no further slot is lent until fewer
    /// than `count` are in use.
    pub fn register(&self, id: &str, count: i64) -> Result<PoolInfo> {
        self.leases.run(|store| store.pool(id, count, self.when))
    }

    /// Returns how many slots a pool has and how many are lent out, if there is such a pool. Takes
    /// no write lock.
    pub fn info(&self, id: &str) -> Result<Option<PoolInfo>> {
        self.leases.run(|store| store.pool_info(id, self.when))
    }

    /// Borrows the lowest free slot for `ttl`, if there is one.
    ///
    /// Inside a transaction, use slot and token only after COMMIT.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let pools = db.pools();
    /// pools.register("printer", 1)?;
    /// let ttl = Duration::from_secs(30);
    /// let borrowed = pools.borrow("printer", ttl)?.unwrap();
    /// assert_eq!((borrowed.slot.position, borrowed.slot.token), (0, 1));
    /// assert_eq!(pools.borrow("printer", ttl)?, None);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn borrow(&self, id: &str, ttl: Duration) -> Result<Option<Borrowed>> {
        self.borrow_with(id, ttl, BorrowOptions::new())
    }

    /// Borrows like [`borrow`](Pools::borrow), with a note for operators or an idempotency key.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let pools = db.pools();
    /// # pools.register("importers", 4)?;
    /// let ttl = Duration::from_secs(30);
    /// let first = pools.borrow_with("importers", ttl, BorrowOptions::new().key("attempt-17"))?;
    /// let again = pools.borrow_with("importers", ttl, BorrowOptions::new().key("attempt-17"))?;
    /// assert_eq!(first, again);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn borrow_with(
        &self,
        id: &str,
        ttl: Duration,
        options: BorrowOptions<'_>,
    ) -> Result<Option<Borrowed>> {
        self.leases.run(|store| store.borrow_slot(id, in_ms(ttl), self.when, options))
    }

    /// Returns a slot to its pool. The result says whether the borrower still had it. Repeating it
    /// is harmless.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let pools = db.pools();
    /// # pools.register("importers", 4)?;
    /// let borrowed = pools.borrow("importers", Duration::from_secs(30))?.unwrap();
    /// assert!(pools.return_slot("importers", &borrowed.lease_id)?);
    /// assert!(!pools.return_slot("importers", &borrowed.lease_id)?);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn return_slot(&self, id: &str, lease: &str) -> Result<bool> {
        self.leases.run(|store| store.return_slot(id, lease, self.when))
    }

    /// Prolongs a live lease on a slot to at least `ttl` from now, under the same token. Returns
    /// `None` if the lease is over.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let pools = db.pools();
    /// # pools.register("importers", 4)?;
    /// let borrowed = pools.borrow("importers", Duration::from_secs(30))?.unwrap();
    /// let renewed = pools.renew("importers", &borrowed.lease_id, Duration::from_secs(60))?;
    /// assert_eq!(renewed.unwrap().token, borrowed.slot.token);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn renew(&self, id: &str, lease: &str, ttl: Duration) -> Result<Option<SlotInfo>> {
        self.leases.run(|store| store.renew_slot(id, lease, in_ms(ttl), self.when))
    }

    /// Returns the slot of a lease, also after its expiry (see `expires_at_ms`). Returns `None`
    /// once it was returned or lent again.
    pub fn slot(&self, id: &str, lease: &str) -> Result<Option<SlotInfo>> {
        self.leases.run(|store| store.slot(id, lease))
    }

    /// Lists the slots that are lent out, by position, without the UUIDs of their leases.
    pub fn slots(&self, id: &str) -> Result<Vec<SlotRow>> {
        self.leases.run(|store| store.slots(id, self.when))
    }

    /// Lists the pools whose id begins with `prefix` and of which slots are lent out, by id.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let pools = db.pools();
    /// pools.register("import/a", 4)?;
    /// pools.register("import/b", 4)?;
    /// pools.borrow("import/a", Duration::from_secs(30))?;
    /// let in_use = pools.in_use("import/")?;
    /// assert_eq!((in_use.len(), in_use[0].0.as_str(), in_use[0].1.in_use), (1, "import/a", 1));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn in_use(&self, prefix: &str) -> Result<Vec<(String, PoolInfo)>> {
        self.leases.run(|store| store.pools_in_use(prefix, "", usize::MAX, self.when))
    }

    /// Returns when the next lease of a pool expires, if it has one: try to borrow again then.
    pub fn next_expiry(&self, id: &str) -> Result<Option<i64>> {
        self.leases.run(|store| store.next_expiry(id))
    }

    /// Returns the newest token of any pool of the file, or the file's floor if that is larger.
    /// Every later token is larger.
    ///
    /// A program that stores it elsewhere can detect a file that was restored from a backup.
    pub fn newest_token(&self) -> Result<i64> {
        self.leases.run(|store| store.newest_pool_token())
    }

    /// Deletes a pool and ends its leases. Returns whether there was such a pool.
    ///
    /// Its tokens are never granted again, not even if a pool is registered under the same id.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let pools = db.pools();
    /// # pools.register("importers", 4)?;
    /// pools.borrow("importers", Duration::from_secs(30))?;
    /// assert!(pools.delete("importers")?);
    /// pools.register("importers", 4)?;
    /// let next = pools.borrow("importers", Duration::from_secs(30))?.unwrap();
    /// assert_eq!(next.slot.token, 2);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn delete(&self, id: &str) -> Result<bool> {
        self.leases.run(|store| store.delete_pool(id))
    }
}
