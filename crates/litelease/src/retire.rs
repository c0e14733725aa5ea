//! Retiring a file whose leases go on elsewhere.

use crate::{Leases, LeftBehind, Result, RetireResult, Retirement};

/// Retiring a file.
impl Leases {
    /// Retires the file: nothing is granted here any more, because its leases go on at `moved_to`,
    /// with tokens above `floor`. What is live may still be renewed and released, guards go on, and
    /// `break_lease` ends leases.
    ///
    /// Every grant is refused with [`TokenExhausted`](crate::Error::TokenExhausted) from now on,
    /// and there is no way back. `floor` must not be smaller than any token of the file; see
    /// [`EpochInfo::next_floor`](crate::EpochInfo::next_floor). Raise the floor of the other place
    /// first: `litelease move` does all of it. Repeating the call is harmless.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let ttl = Duration::from_secs(30);
    /// let lease = db.claim("import", "a", ttl)?.acquired().unwrap();
    /// let floor = db.epoch()?.next_floor().unwrap();
    /// assert!(matches!(db.retire(floor, "etcd://10.0.0.1:2379/jobs")?, RetireResult::Retired(_)));
    /// assert!(matches!(db.claim("report", "b", ttl), Err(Error::TokenExhausted { .. })));
    /// assert!(matches!(db.renew(&lease, ttl)?, RenewResult::Renewed(_)));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn retire(&self, floor: i64, moved_to: &str) -> Result<RetireResult> {
        self.run(|store| store.retire(floor, moved_to))
    }

    /// Returns where the leases of this file went, if it is retired.
    pub fn retirement(&self) -> Result<Option<Retirement>> {
        self.run(|store| store.retirement())
    }

    /// Returns what stays in the file when its leases go on elsewhere.
    #[doc(hidden)]
    pub fn left_behind(&self) -> Result<LeftBehind> {
        self.run(|store| store.left_behind())
    }

    /// Returns how many slots of all pools are lent out.
    #[doc(hidden)]
    pub fn slots_in_use(&self) -> Result<i64> {
        self.run(|store| store.slots_in_use(self.when()))
    }

    /// Ends every lease on a slot that is not kept.
    #[doc(hidden)]
    pub fn free_slots(&self) -> Result<()> {
        self.run(|store| store.free_slots())
    }
}
