//! Slots that are kept, and slots that an operator frees: the verbs of [`Pools`] on them.

use crate::{Pools, Result};

impl Pools<'_> {
    /// Keeps a live lease on a slot until it is returned, without expiry. Returns whether the lease
    /// was live. Repeating it returns true.
    ///
    /// A kept slot counts as in use, survives a resize and, under a new token, `restore_fence`.
    /// [`return_slot`](Pools::return_slot) ends it.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let pools = db.pools();
    /// pools.register("seats", 1)?;
    /// let seat = pools.at(100).borrow("seats", Duration::from_millis(50))?.unwrap();
    /// assert!(pools.at(149).keep("seats", &seat.lease_id)?);
    /// assert_eq!(pools.at(1_000_000).borrow("seats", Duration::from_millis(50))?, None);
    /// assert!(pools.return_slot("seats", &seat.lease_id)?);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn keep(&self, id: &str, lease: &str) -> Result<bool> {
        self.leases.run(|store| store.keep_slot(id, lease, self.when))
    }

    /// Frees a kept slot, for an operator who has its position and token from
    /// [`slots`](Pools::slots). Returns whether the slot was kept under this token.
    ///
    /// The borrower's token no longer counts once the slot is lent again.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let pools = db.pools();
    /// # pools.register("seats", 1)?;
    /// let seat = pools.borrow("seats", Duration::from_secs(30))?.unwrap();
    /// assert!(!pools.free_kept("seats", 0, seat.slot.token)?, "it is lent, but not kept");
    /// pools.keep("seats", &seat.lease_id)?;
    /// for row in pools.slots("seats")?.iter().filter(|row| row.slot.is_kept()) {
    ///     assert!(pools.free_kept("seats", row.slot.position, row.slot.token)?);
    /// }
    /// assert!(!pools.return_slot("seats", &seat.lease_id)?);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn free_kept(&self, id: &str, position: i64, token: i64) -> Result<bool> {
        self.leases.run(|store| store.free_kept_slot(id, position, token))
    }

    /// Ends any holder's lease on a slot, for an operator who has its position and token from
    /// [`slots`](Pools::slots). Returns whether the slot was lent out under this token.
    ///
    /// The holder notices at its next renewal. The next borrower gets a larger token.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let pools = db.pools();
    /// # pools.register("importers", 1)?;
    /// let stuck = pools.borrow("importers", Duration::from_secs(3600))?.unwrap();
    /// assert!(pools.break_slot("importers", 0, stuck.slot.token)?);
    /// assert!(pools.renew("importers", &stuck.lease_id, Duration::from_secs(30))?.is_none());
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn break_slot(&self, id: &str, position: i64, token: i64) -> Result<bool> {
        self.leases.run(|store| store.break_slot(id, position, token, self.when))
    }
}
