//! Slots that are kept: the verbs of [`Pools`] on them.

use crate::error::lift;
use crate::{Pools, Result};

impl Pools<'_> {
    /// Keeps a live lease on a slot until it is returned, without expiry. Returns whether the lease
    /// was live; keeping twice is a yes.
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
        lift(self.leases.verbs()?.keep_slot(id, lease, self.when))
    }

    /// Frees a kept slot, for an operator who has its position and token from
    /// [`slots`](Pools::slots). Returns whether the slot was kept under this token.
    ///
    /// The borrower is not asked: its token no longer counts once the slot is lent again.
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
        lift(self.leases.verbs()?.free_kept_slot(id, position, token))
    }
}
