//! Held slots of a pool: borrowed, kept alive by the keeper, and returned at the end.

use std::ops::Deref;
use std::time::Duration;

use litelease_hold::file::{GrantKind, open_rows};
use litelease_hold::{
    Acquired, Cancel, Clock, Granted, Held, HoldLimits, SystemClock, Window, keep,
};

use crate::file::file_of;
use crate::{
    BorrowOptions, Borrowed, HoldError, HoldOptions, Identity, Lease, Litelease, Lost, Result,
    SlotInfo, SlotRow,
};

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

/// Returns the id of the pool that `litelease run --slots` and the service use for a name. No UUID
/// looks like it, so nobody reaches it by the URL of a pool.
#[doc(hidden)]
pub fn pool_of_name(name: &str) -> String {
    format!("name:{name}")
}

/// The shortest time between two checks whether holders are dead, however often the file changes.
const DEATH_CHECK: Duration = Duration::from_millis(250);

impl Litelease {
    /// Borrows a slot and keeps it alive in the background until it is returned or lost. Returns
    /// `None` if no slot came free in the time to [wait](HoldOptions::wait); waiters are not
    /// queued. A slot has no value, no group and no requests, so options for those are ignored. Its
    /// limits are not stored: the hold keeps them itself.
    ///
    /// `note` tells operators who and why. If it is the text of an [`Identity`] that holds, as
    /// `litelease run --slots` notes it, a successor takes the slot over when that process is dead.
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
        let first = limits.first(ttl);
        Window::new(first).ok_or(HoldError::TtlTooShort(first))?;
        Window::new(ttl).ok_or(HoldError::TtlTooShort(ttl))?;
        if self.store().is_in_transaction() {
            return Err(HoldError::InTransaction);
        }
        let file = file_of(self)?;
        let home = file.home("slots")?;
        let begin = SystemClock.now();
        let (watch, mut next_death_check) = (self.watch(), begin);
        let (borrowed, start) = loop {
            let (seen, start) = (watch.changes(), SystemClock.now());
            let options = BorrowOptions::new().note(note);
            if let Some(borrowed) = self.pools().borrow_with(pool, first, options)? {
                break (borrowed, start);
            }
            if start >= next_death_check {
                next_death_check = start + DEATH_CHECK;
                if self.free_dead_slots(pool)? {
                    continue;
                }
            }
            let left = wait.saturating_sub(SystemClock.now().saturating_sub(begin));
            if left.is_zero() || cancel.as_ref().is_some_and(Cancel::is_cancelled) {
                return Ok(None);
            }
            let next_ms = self.pools().next_expiry(pool)?.unwrap_or(i64::MAX);
            watch.wait_unless(cancel.as_ref(), seen, next_ms, left);
        };
        let Borrowed { lease_id, slot: SlotInfo { position, token, expires_at_ms, .. }, .. } =
            borrowed;
        let owner = format!("slot {position}");
        let lease = Lease { name: pool.into(), owner, token, expires_at_ms };
        let lasts = (first < ttl).then_some(first);
        let granted = Granted { secret: lease_id.clone(), lasts, limits, ..Granted::whole(lease) };
        let patience = self.store().connection().busy_timeout();
        let rows = || open_rows(&file, GrantKind::Slots, patience);
        match keep(&home, Acquired { granted, start }, ttl, rows) {
            Ok(held) => Ok(Some(HeldSlot { held, position })),
            Err(error) => {
                // No keeper would keep it alive.
                let _ = self.pools().return_slot(pool, &lease_id);
                Err(error.into())
            }
        }
    }
}

impl Litelease {
    /// Frees the slots of a pool whose holder is dead by its note. Returns whether there was one.
    fn free_dead_slots(&self, pool: &str) -> Result<bool> {
        let holder = |row: &SlotRow| row.note.as_deref().and_then(Identity::parse);
        let mut is_freed = false;
        for row in self.pools().slots(pool)? {
            if !row.slot.is_kept() && holder(&row).is_some_and(|holder| holder.is_dead()) {
                is_freed |= self.pools().break_slot(pool, row.slot.position, row.slot.token)?;
            }
        }
        Ok(is_freed)
    }
}

impl HeldSlot {
    /// Returns the number of the slot: 0 is the first.
    pub fn position(&self) -> i64 {
        self.position
    }

    /// Returns the slot. Tries again for a while if the file is locked.
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

/// Without its position.
impl From<HeldSlot> for Held {
    fn from(slot: HeldSlot) -> Self {
        slot.held
    }
}
