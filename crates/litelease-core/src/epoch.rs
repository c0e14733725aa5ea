//! The epoch: what a file keeps besides its rows, so that no accident to the file brings a token
//! back.
//!
//! A power cut may take commits that were acknowledged, and a backup may bring back an old file.
//! Then the rows no longer have the newest token. The floor stands in for them: every new token is
//! larger. Its upper bits count accidents that may have happened; they are the epoch.

use crate::Refusal;

/// How many tokens fit into an epoch, as a power of two. With 32 bits there are 2²¹ epochs below
/// 2⁵³, the largest number up to which JavaScript and many readers of JSON have every integer.
const EPOCH_BITS: u32 = 32;

/// How many epochs the fence of a restored file skips: more boots than lie between a backup and its
/// return.
const RESTORE_EPOCHS: i64 = 1 << 14;

/// Returns how many epochs lie between a token's epoch and 2⁵³: 0 if the token is in the last one,
/// or above.
///
/// ```
/// # use litelease_core::epochs_left;
/// assert_eq!(epochs_left(1), (1 << 21) - 1);
/// assert_eq!(epochs_left((1 << 53) - 1), 0);
/// assert_eq!(epochs_left(i64::MAX), 0);
/// ```
pub fn epochs_left(token: i64) -> i64 {
    let last = (1 << (53 - EPOCH_BITS)) - 1;
    (last - (token >> EPOCH_BITS)).max(0)
}

/// Returns the floor of the epoch that follows a token's: tokens above it are larger than all of
/// that epoch.
///
/// ```
/// # use litelease_core::next_epoch;
/// assert_eq!(next_epoch(41)?, 1 << 32);
/// assert_eq!(next_epoch(1 << 32)?, 2 << 32);
/// assert!(next_epoch(i64::MAX).is_err());
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn next_epoch(token: i64) -> Result<i64, Refusal> {
    Epoch { floor: token, boot: 0 }.floor_after(1)
}

/// Checks whether a token above `min_token` leaves room for more in the epoch of `newest`, the
/// newest token of a file: it is in the lower half of that epoch, or below.
///
/// A token beyond the epoch raises the tokens of every name in the file. So does, soon, one at the
/// end of it.
///
/// ```
/// # use litelease_core::leaves_room;
/// assert!(leaves_room(1 << 30, 41));
/// assert!(!leaves_room((1 << 32) - 2, 41));
/// assert!(!leaves_room((1 << 32) - 1, 41));
/// assert!(leaves_room((1 << 32) - 1, 1 << 32));
/// ```
pub fn leaves_room(min_token: i64, newest: i64) -> bool {
    let half = 1 << (EPOCH_BITS - 1);
    min_token < (newest >> EPOCH_BITS << EPOCH_BITS).saturating_add(half)
}

/// The floor of a file's tokens, and the boot of the machine that its epoch belongs to.
///
/// A file that has none is like one with floor 0 and no boot.
///
/// ```
/// # use litelease_core::{CommitContext, Epoch};
/// let context = CommitContext { boot: 7, may_lose_commits: true, is_own: true };
/// // The first grant on a connection that can lose commits records an epoch, and then they are free.
/// let epoch = Epoch::default().needed(1, context)?.unwrap();
/// assert_eq!(epoch, Epoch { floor: 0, boot: 7 });
/// assert_eq!(epoch.needed(2, context)?, None);
/// // The next boot cannot know what was lost, so numbers go on far above.
/// let next = epoch.needed(3, CommitContext { boot: 8, ..context })?.unwrap();
/// assert_eq!(next, Epoch { floor: 1 << 32, boot: 8 });
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Epoch {
    /// Every new token is larger. Its epoch is that of every token granted so far, or a later one.
    pub floor: i64,
    /// The boot in which grants may have been lost: 0 if there is none. It is negative while the
    /// epoch itself may still get lost: it was made in a caller's transaction, or its commit may
    /// not have been synced yet.
    pub boot: i64,
}

/// Where a grant is about to be stored.
///
/// ```
/// # use litelease_core::CommitContext;
/// let in_a_transaction_of_the_callers = CommitContext { boot: 7, may_lose_commits: true, is_own: false };
/// # assert!(!in_a_transaction_of_the_callers.is_own);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitContext {
    /// The present boot; 0 where nothing outlives it, as in memory.
    pub boot: i64,
    /// A power cut can take commits that were acknowledged.
    pub may_lose_commits: bool,
    /// The epoch can be stored in a commit of its own, which no power cut takes.
    pub is_own: bool,
}

impl Epoch {
    /// Returns the epoch that must be stored before `token` may be granted, or `None` if this one
    /// will do.
    pub fn needed(self, token: i64, context: CommitContext) -> Result<Option<Epoch>, Refusal> {
        // Inside a caller's transaction even a strong commit leaves it unsure: a process that is
        // killed between writing and syncing records an epoch that others of this boot see, and
        // that a power cut can still take.
        let ours = if context.is_own { context.boot } else { -context.boot };
        let mut needed = match self.boot {
            // Nothing can be lost here, and nothing could before.
            0 if !context.may_lose_commits => self,
            0 => Epoch { boot: ours, ..self },
            boot if boot == context.boot => self,
            boot if boot == -context.boot => Epoch { boot: ours, ..self },
            // Nothing is granted here any more, so nothing can have been lost.
            _ if self.is_retired() => Epoch { boot: ours, ..self },
            _ => Epoch { floor: self.floor_after(1)?, boot: ours },
        };
        if !needed.is_enough_for(token) {
            needed.floor = token >> EPOCH_BITS << EPOCH_BITS;
            // An epoch of this boot is not enough if this commit may get lost.
            needed.boot = if needed.boot == 0 { 0 } else { ours };
        }
        Ok((needed != self).then_some(needed))
    }

    /// Returns the epoch that `bootstrap` stores, or `None` if this boot is recorded already.
    ///
    /// It records the boot on a strong connection, too. A weaker one may join later and grant
    /// inside a transaction, where nothing can be made durable first; and the durable rows are then
    /// the same whether it has granted something or not.
    ///
    /// ```
    /// # use litelease_core::{CommitContext, Epoch};
    /// let strong = CommitContext { boot: 7, may_lose_commits: false, is_own: true };
    /// assert_eq!(Epoch::default().recording(strong)?, Some(Epoch { floor: 0, boot: 7 }));
    /// assert_eq!(Epoch { floor: 0, boot: 7 }.recording(strong)?, None);
    /// # Ok::<(), litelease_core::Refusal>(())
    /// ```
    pub fn recording(self, context: CommitContext) -> Result<Option<Epoch>, Refusal> {
        self.needed(0, CommitContext { may_lose_commits: context.boot != 0, ..context })
    }

    /// Returns the epoch with a floor of at least `floor`.
    ///
    /// ```
    /// # use litelease_core::{CommitContext, Epoch};
    /// let context = CommitContext { boot: 7, may_lose_commits: false, is_own: true };
    /// assert_eq!(Epoch::default().raised(41, context)?, Epoch { floor: 41, boot: 0 });
    /// # Ok::<(), litelease_core::Refusal>(())
    /// ```
    pub fn raised(self, floor: i64, context: CommitContext) -> Result<Epoch, Refusal> {
        let epoch = self.needed(floor, context)?.unwrap_or(self);
        Ok(Epoch { floor: epoch.floor.max(floor), ..epoch })
    }

    /// Returns the epoch of a file that grants nothing any more: no token is larger than its floor.
    ///
    /// ```
    /// # use litelease_core::{CommitContext, Epoch};
    /// let context = CommitContext { boot: 7, may_lose_commits: true, is_own: true };
    /// let retired = Epoch::default().retired(context)?;
    /// assert_eq!(retired, Epoch { floor: i64::MAX, boot: 7 });
    /// // It stays so in the next boot, and `bootstrap` goes on.
    /// let next = retired.recording(CommitContext { boot: 8, ..context })?;
    /// assert_eq!(next, Some(Epoch { floor: i64::MAX, boot: 8 }));
    /// # Ok::<(), litelease_core::Refusal>(())
    /// ```
    pub fn retired(self, context: CommitContext) -> Result<Epoch, Refusal> {
        self.raised(i64::MAX, context)
    }

    /// Checks whether the file grants nothing any more.
    ///
    /// ```
    /// # use litelease_core::Epoch;
    /// assert!(Epoch { floor: i64::MAX, boot: 0 }.is_retired());
    /// assert!(!Epoch { floor: i64::MAX - 1, boot: 0 }.is_retired());
    /// ```
    #[inline]
    pub fn is_retired(self) -> bool {
        self.floor == i64::MAX
    }

    /// Checks whether the epoch of a token is not above the floor's: then a later epoch is above
    /// both.
    ///
    /// ```
    /// # use litelease_core::Epoch;
    /// assert!(Epoch::default().is_enough_for((1 << 32) - 1));
    /// assert!(!Epoch::default().is_enough_for(1 << 32));
    /// ```
    #[inline]
    pub fn is_enough_for(self, token: i64) -> bool {
        token >> EPOCH_BITS <= self.floor >> EPOCH_BITS
    }

    /// Returns a floor far above everything granted since a backup, of which this is the epoch, and
    /// above `newest`: the newest token of the backup, or one that was seen elsewhere if that is
    /// larger.
    ///
    /// ```
    /// # use litelease_core::Epoch;
    /// assert_eq!(Epoch::default().floor_after_restore(41)?, 1 << 46);
    /// # Ok::<(), litelease_core::Refusal>(())
    /// ```
    pub fn floor_after_restore(self, newest: i64) -> Result<i64, Refusal> {
        Epoch { floor: self.floor.max(newest), ..self }.floor_after(RESTORE_EPOCHS)
    }

    fn floor_after(self, epochs: i64) -> Result<i64, Refusal> {
        let epoch = (self.floor >> EPOCH_BITS) + epochs;
        match epoch <= i64::MAX >> EPOCH_BITS {
            true => Ok(epoch << EPOCH_BITS),
            false => Err(Refusal::TokenExhausted),
        }
    }
}
