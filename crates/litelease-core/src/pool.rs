//! The rule of pools: numbered slots, each a lease with a token of its own.
//!
//! The store frees expired slots before it asks for another one.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;

use crate::{Refusal, Term, is_live};

/// The largest number of slots that a pool may have.
pub const MAX_COUNT: i64 = 1_000_000;

/// The most bytes that a note or a key may have.
pub const MAX_TEXT: usize = 200;

/// The expiry of a slot that is kept: no borrow and no renewal can reach it.
pub const KEPT: i64 = i64::MAX;

/// A slot that is lent out.
///
/// ```
/// # use litelease_core::SlotInfo;
/// let slot = SlotInfo { position: 0, token: 7, expires_at_ms: 150 };
/// assert!(slot.is_live(149));
/// assert!(!slot.is_live(150), "at the very instant of expiry the slot is free");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotInfo {
    /// Which one: 0 is the first.
    pub position: i64,
    /// The fencing token: larger than that of every earlier grant of every slot in the file.
    pub token: i64,
    /// The first millisecond (Unix time) at which the slot is free again. [`KEPT`] if it is kept
    /// until it is returned.
    pub expires_at_ms: i64,
}

/// How many slots a pool has, and how many of them are lent out.
///
/// ```
/// # use litelease_core::PoolInfo;
/// let shrunk = PoolInfo { count: 1, in_use: 3 };
/// assert_eq!(shrunk.available(), 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolInfo {
    /// How many slots there are.
    pub count: i64,
    /// How many are lent out. It exceeds `count` for a while when a pool was made smaller.
    pub in_use: i64,
}

/// The state of a pool that a borrow depends on, after expired slots were freed.
///
/// ```
/// # use litelease_core::{PoolInfo, PoolSnapshot};
/// let info = PoolInfo { count: 4, in_use: 2 };
/// assert_eq!(PoolSnapshot { info, lowest: 1 }.lowest_free(), Some(1));
/// let shrunk = PoolInfo { count: 1, in_use: 2 };
/// assert_eq!(PoolSnapshot { info: shrunk, lowest: 0 }.lowest_free(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSnapshot {
    /// The pool.
    pub info: PoolInfo,
    /// The lowest position that is not lent out, whether the pool has so many or not.
    pub lowest: i64,
}

impl SlotInfo {
    /// Checks whether the slot is still the borrower's at `now_ms`.
    pub fn is_live(&self, now_ms: i64) -> bool {
        is_live(self.expires_at_ms, now_ms) || self.is_kept()
    }

    /// Checks whether the slot is kept: the borrower has it until it is returned.
    ///
    /// ```
    /// # use litelease_core::{KEPT, SlotInfo};
    /// let slot = SlotInfo { position: 0, token: 7, expires_at_ms: KEPT };
    /// assert!(slot.is_kept() && slot.is_live(i64::MAX));
    /// ```
    pub fn is_kept(&self) -> bool {
        self.expires_at_ms == KEPT
    }
}

impl PoolInfo {
    /// Returns how many slots can be borrowed right now.
    pub fn available(&self) -> i64 {
        (self.count - self.in_use).max(0)
    }
}

impl PoolSnapshot {
    /// Returns the position that the next borrower gets. None while as many are lent out as there
    /// are slots, also where a pool was made smaller and low positions are free.
    pub fn lowest_free(&self) -> Option<i64> {
        (self.info.available() > 0 && self.lowest < self.info.count).then_some(self.lowest)
    }
}

/// Lends out the lowest free slot under a new token, which exceeds `newest`, the newest one of any
/// pool of the file, and `floor`.
///
/// ```
/// # use litelease_core::{PoolInfo, PoolSnapshot, Term, borrow_slot};
/// let snapshot = PoolSnapshot { info: PoolInfo { count: 1, in_use: 0 }, lowest: 0 };
/// let slot = borrow_slot(snapshot, Term::new(50, 100)?, 6, 0)?.unwrap();
/// assert_eq!((slot.position, slot.token, slot.expires_at_ms), (0, 7, 150));
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn borrow_slot(
    snapshot: PoolSnapshot,
    term: Term,
    newest: i64,
    floor: i64,
) -> Result<Option<SlotInfo>, Refusal> {
    let Some(position) = snapshot.lowest_free() else { return Ok(None) };
    let token = newest.max(floor).checked_add(1).ok_or(Refusal::TokenExhausted)?;
    Ok(Some(SlotInfo { position, token, expires_at_ms: term.until_ms() }))
}

/// Prolongs a live lease on a slot under the same token. It never shortens one and never revives
/// one.
///
/// ```
/// # use litelease_core::{SlotInfo, Term, renew_slot};
/// let slot = SlotInfo { position: 0, token: 7, expires_at_ms: 150 };
/// assert_eq!(renew_slot(slot, Term::new(10, 120)?), Some(slot), "not shortened");
/// assert_eq!(renew_slot(slot, Term::new(10, 150)?), None, "not revived");
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn renew_slot(slot: SlotInfo, term: Term) -> Option<SlotInfo> {
    let expires_at_ms = slot.expires_at_ms.max(term.until_ms());
    slot.is_live(term.now_ms()).then_some(SlotInfo { expires_at_ms, ..slot })
}

/// Returns the term of a borrow or renewal of a slot. It refuses one that would end at [`KEPT`],
/// which is no time but a mark.
///
/// ```
/// # use litelease_core::{Refusal, slot_term};
/// assert!(slot_term(50, 100).is_ok());
/// assert!(matches!(slot_term(i64::MAX - 100, 100), Err(Refusal::TimeOverflow { .. })));
/// ```
pub fn slot_term(ttl_ms: i64, now_ms: i64) -> Result<Term, Refusal> {
    match Term::new(ttl_ms, now_ms)? {
        term if term.until_ms() == KEPT => Err(Refusal::TimeOverflow { now_ms, ttl_ms }),
        term => Ok(term),
    }
}

/// Keeps a live lease on a slot until it is returned, under the same token. It never revives one;
/// keeping twice is a yes.
///
/// ```
/// # use litelease_core::{KEPT, SlotInfo, keep_slot};
/// let slot = SlotInfo { position: 0, token: 7, expires_at_ms: 150 };
/// let kept = SlotInfo { expires_at_ms: KEPT, ..slot };
/// assert_eq!(keep_slot(slot, 149), Some(kept));
/// assert_eq!(keep_slot(slot, 150), None, "not revived");
/// assert_eq!(keep_slot(kept, 150), Some(kept));
/// ```
pub fn keep_slot(slot: SlotInfo, now_ms: i64) -> Option<SlotInfo> {
    slot.is_live(now_ms).then_some(SlotInfo { expires_at_ms: KEPT, ..slot })
}

/// Returns the id of the pool that `litelease run --slots` and the service use for a name. It does
/// not look like a UUID, so no URL of a pool leads to it.
pub fn pool_of_name(name: &str) -> String {
    format!("name:{name}")
}

/// Returns what a pool is called for people. A UUID is a secret, so a pool that has one is known by
/// four characters of its hash, which tell few pools apart and open none.
///
/// ```
/// # use litelease_core::pool_label;
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
