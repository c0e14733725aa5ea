//! Leases with expiry and fencing tokens, in the SQLite file an app already has.
//!
//! A lease says who owns a name right now. It ends when its holder releases it or when its time is
//! up, so a holder that dies does not block others for long. Every grant carries a token that is
//! larger than all earlier ones of that name, so a holder that merely slept can be told from its
//! successor.
//!
//! ```
//! use std::time::Duration;
//! use litelease::{ClaimResult, Litelease};
//!
//! # fn main() -> litelease::Result<()> {
//! # litelease_doctest::path!(path);
//! let db = Litelease::open(path)?; // sets no pragma, creates no table
//! db.bootstrap()?;
//! match db.claim("scheduler", "worker-a", Duration::from_secs(30))? {
//!     ClaimResult::Acquired(lease) => println!("got token {}", lease.token),
//!     ClaimResult::Busy(current) => println!("currently owned by {}", current.owner),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The verbs (`claim`, `renew`, `release`, `transfer`, `inspect` and the rest) are those of
//! [`Leases`]. All handles have them: a [`Litelease`] that owns its connection, a [`LiteleaseRef`]
//! on a connection or transaction of yours, a [`RawLitelease`] on one of `sqlx` or of C code, a
//! [`Transaction`] or a [`Savepoint`].
//!
//! To stop an old owner there are guarded tables ([`guard`](Leases::guard)), checkpoints
//! ([`checkpoint`](Leases::checkpoint)) and gates ([`Gate`]). If several clients may work at a
//! time, use a pool of numbered slots: [`Pools`]. For background jobs there are queues: [`Queue`].
//! The feature `credentials` signs grants for services that cannot see the file.

mod cached;
mod connection_cache;
#[cfg(feature = "credentials")]
pub mod credentials;
mod election;
mod error;
mod fences;
mod file;
pub mod functions;
mod gate;
mod handle;
mod history;
mod hold;
mod hold_error;
mod inner;
mod keep;
mod leases;
mod limit;
mod linked_sqlite;
mod pools;
mod queue;
mod raw;
mod read;
mod request;
mod retire;
#[cfg(feature = "schedules")]
mod scheduler;
mod session;
mod shards;
mod single_writer;
mod slots;
mod tick;
mod tracker;
mod transaction;
mod value;
mod wait;
mod watch;
mod worker;

pub use cached::Cached;
pub use election::{Election, Leader, LeaderInfo, Observed, Observer};
pub use error::{Error, Result};
pub use fences::{Checkpoint, is_stale};
pub use gate::Gate;
pub use handle::{Litelease, LiteleaseRef};
pub use hold::{Held, HoldOptions};
pub use hold_error::HoldError;
pub use leases::{Leases, LeasesAt};
pub use litelease_core::{
    AckResult, AdmitResult, BreakResult, CancelResult, CheckpointResult, ClaimResult,
    ClaimTickResult, FinishTickResult, Grant, GrantRef, GrantResult, ItemState, KEPT, Lease,
    LeaseRow, NewestTick, PoolInfo, Reason, ReleaseResult, RenewResult, RequestResult, SlotInfo,
    StaleReason, Status, TakenOver, Tick, TickChange, TickInfo, TickOutcome, TickRequest,
    TickResult, TickState, TransferResult,
};
#[doc(hidden)]
pub use litelease_core::{
    HISTORY_KINDS, InvalidPermission, MAX_SHARDS, Permission, Scope, backoff, is_live, leaves_room,
    pool_label, pool_of_name,
};
pub use litelease_hold::file::ShardsOptions;
#[cfg(feature = "schedules")]
pub use litelease_hold::schedule::{InvalidSchedule, Schedule};
pub use litelease_hold::{Cancel, Identity, Liveness, Loss, LossSignal, Lost, WorkerCounts};
#[doc(hidden)]
pub use litelease_hold::{HolderKind, ProcessGroup};
#[doc(hidden)]
pub use litelease_store::{Actor, DEFAULT_KEEP, LeftBehind, SideTableInfo};
pub use litelease_store::{
    BootRecord, BorrowOptions, Borrowed, EpochInfo, Guard, GuardInfo, HistoryFilter, HistoryRow,
    ItemInfo, QueueInfo, Reader, RetireResult, Retirement, SlotRow,
};
pub use litelease_sys::write_lock::{
    Error as LockError, Holder, LockState, OwnedLock, Waiting, WriteLock,
};
pub use pools::Pools;
pub use queue::{GiveBackOptions, Item, ItemName, Queue, SendOptions};
pub use raw::RawLitelease;
pub use request::RequestInfo;
pub use rusqlite;
#[cfg(feature = "schedules")]
pub use scheduler::{JobOptions, JobTick, RunningScheduler, Scheduler};
pub use session::Session;
pub use shards::{ShardEvent, Shards};
pub use single_writer::{SingleWriter, Synchronous, WriteError, WriteGuard, WriterOptions};
pub use slots::HeldSlot;
pub use tracker::{Tracker, TrackerGuard};
pub use transaction::{Savepoint, Transaction};
pub use value::{LeasesUnder, ListedLease};
pub use watch::Watch;
pub use worker::{DrainSignal, RunningWorker, WorkItem, Worker, WorkerOptions};

/// Returns the system clock's Unix time in milliseconds, as Litelease reads it.
///
/// ```
/// # litelease_doctest::memory!(db);
/// let thirty_days_ms = 30 * 24 * 60 * 60 * 1000;
/// db.purge(litelease::now_ms() - thirty_days_ms)?;
/// # Ok::<(), litelease::Error>(())
/// ```
pub fn now_ms() -> i64 {
    litelease_store::When::Now.now_ms()
}

/// Closes the connections of this process's keeper, for a program that is about to end.
#[doc(hidden)]
pub fn close_keepers() {
    litelease_hold::file::FILES.stop();
}
