//! Held slots of a pool: borrowed, kept alive by the keeper, and returned at the end.

use std::ops::Deref;

use litelease_hold::file::SlotWish;
use litelease_hold::{Held, HoldLimits};

use crate::{HoldError, HoldOptions, Litelease, Lost};

/// A slot that this process holds. Dropping it returns the slot. Made by
/// [`Litelease::hold_slot`].
///
/// ```
/// # litelease_doctest::file!(db);
/// db.pools().register("importers", 2)?;
/// let options = HoldOptions::new(Duration::from_secs(30));
/// let slot: HeldSlot = db.hold_slot("importers", options, "")?.unwrap();
/// assert_eq!(slot.position(), 0);
/// slot.check()?;
/// # Ok::<(), litelease::HoldError>(())
/// ```
#[derive(Debug)]
#[must_use = "a slot that is dropped is returned"]
pub struct HeldSlot {
    held: Held,
    position: i64,
}

impl Litelease {
    /// Borrows a slot and keeps it alive in the background until it is returned or lost. Returns
    /// `None` if no slot came free in the time to [wait](HoldOptions::wait); waiters are not
    /// queued. A slot has no value, no group and no requests, so options for those are ignored. Its
    /// limits are not stored: the hold keeps them itself.
    ///
    /// `note` tells operators who holds the slot, and why. If it is the text of an
    /// [`Identity`](crate::Identity) that holds, as `litelease run --slots` writes it, a successor
    /// takes the slot over when that process is dead.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// db.pools().register("importers", 1)?;
    /// let options = HoldOptions::new(Duration::from_secs(30));
    /// let slot = db.hold_slot("importers", options.clone(), "nightly")?;
    /// assert!(db.hold_slot("importers", options, "nightly")?.is_none());
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn hold_slot(
        &self,
        pool: &str,
        options: HoldOptions,
        note: &str,
    ) -> std::result::Result<Option<HeldSlot>, HoldError> {
        let HoldOptions { ttl, wait, cancel, progress_within, max_time, .. } = options;
        let limits = HoldLimits { progress_within, max_time };
        let (note, cancel) = (Some(note), cancel.as_ref());
        let wish = SlotWish { pool, ttl, wait, note, limits, cancel };
        let held = self.of_file()?.hold_slot(&wish)?;
        Ok(held.map(|(held, position)| HeldSlot { held, position }))
    }
}

impl HeldSlot {
    /// Returns the number of the slot: 0 is the first.
    pub fn position(&self) -> i64 {
        self.position
    }

    /// Returns the slot to its pool. Tries again for a while if the file is locked.
    pub fn give_back(self) -> std::result::Result<(), Lost> {
        self.held.release()
    }
}

impl Deref for HeldSlot {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

/// Leaves out the position.
impl From<HeldSlot> for Held {
    fn from(slot: HeldSlot) -> Self {
        slot.held
    }
}
