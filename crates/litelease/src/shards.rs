//! Shards: the members of a group share a number of leases evenly, and move them when members come
//! and go.

use std::time::Duration;

use litelease_hold::file::{self, ShardsOptions};
use rusqlite::ToSql;

use crate::fences::{as_value, owned};
use crate::file::file_of;
use crate::session::caller;
use crate::{Checkpoint, HoldError, Litelease, Lost};

type Result<T, E = HoldError> = std::result::Result<T, E>;

/// A change of the shards that a member has.
///
/// ```
/// # use litelease::{Loss, ShardEvent};
/// let lost = ShardEvent::Lost { shard: 3, reason: Loss::Expired };
/// assert_ne!(lost, ShardEvent::Requested { shard: 3, until_ms: 1_000 });
/// ```
pub type ShardEvent = file::ShardEvent<Checkpoint>;

/// A member of a group that shares shards. Made by [`Shards::join`].
///
/// ```
/// use std::time::Duration;
/// use litelease::{Litelease, ShardEvent, Shards, ShardsOptions};
///
/// # fn main() -> Result<(), litelease::HoldError> {
/// # litelease_doctest::path!(path);
/// let db = Litelease::open_own(&path)?;
/// let shards = Shards::join(&db, "orders", 2, ShardsOptions::new("a", Duration::from_secs(10)))?;
/// for _ in 0..2 {
///     match shards.next(Duration::from_secs(60))? {
///         Some(ShardEvent::Assigned { shard, .. }) => shards.checkpoint(shard, 17)?,
///         other => panic!("{other:?}"),
///     }
/// }
/// shards.leave()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a member that is dropped leaves"]
pub struct Shards(file::Shards);

impl Shards {
    /// Joins a group of members that share `count` shards. The member is a
    /// [`Session`](crate::Session) under `GROUP/member/ID`, and shard number k is the lease
    /// `GROUP/shard/k`.
    ///
    /// Fails with [`HoldError::Busy`] if another process is this member, and with
    /// [`HoldError::ShardCount`] if a live member has joined with another count. Neither group nor
    /// id may contain a slash or be empty, and `count` is at most 10,000.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let options = |id| ShardsOptions::new(id, Duration::from_secs(10));
    /// let a = Shards::join(&db, "orders", 8, options("a"))?;
    /// let b = Shards::join(&db, "orders", 9, options("b"));
    /// assert!(matches!(b, Err(HoldError::ShardCount { count: 8, .. })));
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn join(db: &Litelease, group: &str, count: usize, options: ShardsOptions) -> Result<Self> {
        if db.store().is_in_transaction() {
            return Err(HoldError::InTransaction);
        }
        Ok(Shards(file::Shards::join(&caller(&file_of(db)?), group, count, options)?))
    }

    /// Waits for the next event, for at most `timeout`. Once the member is lost, and all events
    /// were returned, it fails with [`HoldError::Lost`].
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let shards = Shards::join(&db, "orders", 1, ShardsOptions::new("a", Duration::from_secs(10)))?;
    /// let event = shards.next(Duration::from_secs(60))?;
    /// assert_eq!(event, Some(ShardEvent::Assigned { shard: 0, token: 1, checkpoint: None }));
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn next(&self, timeout: Duration) -> Result<Option<ShardEvent>> {
        let event = self.0.next(timeout)?;
        Ok(event.map(|event| {
            event.map(|(token, value, updated_at_ms)| Checkpoint {
                token,
                value: owned(value.value()),
                updated_at_ms,
            })
        }))
    }

    /// Checks whether a shard is this member's and can still be trusted.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let shards = Shards::join(&db, "orders", 1, ShardsOptions::new("a", Duration::from_secs(10)))?;
    /// shards.next(Duration::from_secs(60))?;
    /// shards.check(0)?;
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn check(&self, shard: usize) -> Result<(), Lost> {
        self.0.check(shard)
    }

    /// Stores a checkpoint of a shard under its token: where the next member goes on. Fails with
    /// [`HoldError::Lost`] if the shard is no longer this member's.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let shards = Shards::join(&db, "orders", 1, ShardsOptions::new("a", Duration::from_secs(10)))?;
    /// shards.next(Duration::from_secs(60))?;
    /// shards.checkpoint(0, "page 17")?;
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn checkpoint(&self, shard: usize, value: impl ToSql) -> Result<()> {
        let value = value.to_sql()?;
        Ok(self.0.checkpoint(&caller(self.0.file()), shard, as_value(&value, "a checkpoint")?)?)
    }

    /// Hands a shard over to the member that has requested it, in one commit. Returns whether one
    /// had. Store the last checkpoint before.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let shards = Shards::join(&db, "orders", 1, ShardsOptions::new("a", Duration::from_secs(10)))?;
    /// shards.next(Duration::from_secs(60))?;
    /// assert!(!shards.hand_over(0)?, "there is no request");
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn hand_over(&self, shard: usize) -> Result<bool> {
        Ok(self.0.hand_over(&caller(self.0.file()), shard)?)
    }

    /// Leaves the group: releases the member and all its shards in one commit. Dropping it does so,
    /// too, and ignores errors.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let shards = Shards::join(&db, "orders", 1, ShardsOptions::new("a", Duration::from_secs(10)))?;
    /// shards.next(Duration::from_secs(60))?;
    /// shards.leave()?;
    /// assert_eq!([db.owner("orders/member/a")?, db.owner("orders/shard/0")?], [None, None]);
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn leave(self) -> Result<(), Lost> {
        self.0.leave(&caller(self.0.file()))
    }
}
