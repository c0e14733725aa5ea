//! The hold: acquires a name in some place, keeps the grant alive in the background, and reports in
//! time when it is lost.
//!
//! A place is a file, a server or an engine. It implements [`Place`] for the thread that asks and
//! [`Rows`] for the keeper's thread; a worker uses [`Deliveries`], a scheduler `Ticks`. This crate
//! decides nothing about rows and knows no SQL. It counts trust on a [`Clock`] that is passed in,
//! so that tests step a clock instead of sleeping. Most programs want the `litelease` crate.
//!
//! # The states of a hold
//! ```text
//!          acquire, keep            release, hand_over, drop
//!   free ────────────────▶ held ────────────────────────────▶ released
//!                          │  ▲                                  if the place is locked, the keeper
//!          a third of the  │  │ granted the ttl                  releases the row later
//!          ttl is over     ▼  │
//!                        renewing ───────────────────────────▶ lost
//!                          │  ▲     the place refuses, or        ▲
//!             granted less │  │     its row is gone              │
//!             than the ttl ▼  │ a third of that is over          │
//!                       cut short ───────────────────────────────┤
//!                                   from all three: the trust    │
//!                                   window is over               │
//!   held ──▶ pending commit ─────────────────────────────────────┘
//!     ▲        │                    both windows are over, or a ROLLBACK after the first
//!     └────────┘ COMMIT in time
//! ```
//! - *renewing*: the keeper has sent a renewal. The holder goes on, trusted by the last one.
//! - *cut short*: a limit of the grant or of the place left less than the ttl, so the end is near.
//! - *pending commit*: a transaction of the holder's own has renewed the row and is open. After the
//!   end of the old window the hold is neither trusted nor lost until the transaction ends, or the
//!   window of the new renewal does.
//!
//! | event | trust window |
//! |---|---|
//! | grant, or renewal by the ttl | ends at its *start* + ttl - margin (a tenth, at least 50 ms) |
//! | renewal by less than the ttl | ends at its start + what was granted - margin, never earlier |
//! | COMMIT of the holder's own renewal, in its window | ends as after that renewal |
//! | a renewal fails, or its answer is lost | stays; the keeper tries again until it is over |
//! | a renewal is answered after the window | stays over: the hold is lost |
//! | a limit refuses a renewal | stays; the hold is lost at its end unless the limit is lifted |
//! | progress, a request, a notification | stays |
//!
//! Limits are those of the row, and those that the hold keeps itself ([`HoldLimits`]).
//!
//! A hold that is lost stays lost, whatever the place says later.

mod cancel;
mod clock;
#[cfg(feature = "file")]
pub mod file;
mod held;
mod hold;
mod hold_error;
mod identity;
mod keeper;
mod loss;
mod lost;
mod notify;
mod place;
mod process_keeper;
mod rows;
#[cfg(feature = "schedules")]
pub mod schedule;
#[cfg(feature = "schedules")]
mod scheduler;
mod wait;
mod worker;

pub use cancel::Cancel;
pub use clock::{Clock, SystemClock};
pub use held::{Held, abandon, held_from, hold, hold_of, keep};
pub use hold::{HandoverRequest, HeldGrant, Hold, HoldLimits, Renewal, Window};
pub use hold_error::HoldError;
pub use identity::{HolderKind, Identity, short_owner, unique};
pub use keeper::{Keeper, Kept};
pub use litelease_sys::{Liveness, PidScope, ProcessGroup, Wakeup};
pub use loss::Loss;
pub use lost::{LossSignal, Lost};
pub use notify::Notifier;
pub use place::{Acquired, Attach, Attached, Claimed, Granted, Home, Place, Wish, acquire};
pub use process_keeper::{NoKeeper, ProcessKeeper, this_process};
pub use rows::{Current, Due, Notice, Rows};
#[cfg(feature = "schedules")]
pub use scheduler::{Begun, HeldTick, Job, JobLoop, TickWish, Ticks, WorkEnd};
pub use wait::{DeathCheck, Waiter, time_to_next_read};
pub use worker::{Deliveries, Delivery, Received, Settled, Work, WorkOptions, WorkerCounts, cut};
