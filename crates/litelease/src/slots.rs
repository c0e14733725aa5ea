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

/// Returns the id of the pool that `litelease run --slots` and the service use for a name. It does
/// not look like a UUID, so no URL of a pool leads to it.
#[doc(hidden)]
pub fn pool_of_name(name: &str) -> String {
    format!("name:{name}")
}

/// Returns what a pool is called for people. A UUID is a secret, so a pool that has one is known by
/// four characters of its hash, which tell few pools apart and open none.
///
/// ```
/// # use litelease::pool_label;
/// assert_eq!(pool_label("printer"), "printer");
/// assert_eq!(pool_label("0b5b1f0e-1111-4222-8333-444455556666").len(), 4);
/// ```
pub fn pool_label(id: &str) -> String {
    let is_hex = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    if id.len() != 36 || !id.bytes().enumerate().all(is_hex) {
        return id.strip_prefix(&pool_of_name("")).unwrap_or(id).to_owned();
    }
    // FNV-1a.
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    format!("{:04x}", (hash ^ hash >> 16 ^ hash >> 32 ^ hash >> 48) & 0xffff)
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
