//! The hold: acquires a name in some place, keeps the grant alive in the background, and reports in
//! time when it is lost.
//!
//! A place is a file, a server or an engine. It implements [`Place`] for the thread that asks and
//! [`Rows`] for the keeper's thread; a worker uses [`Deliveries`]. This crate decides nothing about
//! rows and knows no SQL. It counts trust on a [`Clock`] that is passed in, so that tests step a
//! clock instead of sleeping. Most programs want the `litelease` crate.
//!
//! ```text
//!            acquire                  renewal granted: trusted until its START + ttl - margin
//!   free ────────────▶ granted        ┌──────────┐
//!                         │ keep      ▼          │
//!                         └────────▶ held ───────┘
//!                                     │ │ │
//!      renewal refused, or row gone   │ │ │  release, hand_over, drop
//!   lost ◀────────────────────────────┘ │ └───────────────────────────▶ given up
//!     ▲                                 │                                (a leftover, if the
//!     │  the trust window is over       │                                 place is locked)
//!     └─────────────────────────────────┘
//! ```
//!
//! - A renewal that fails, or whose answer is late or lost, changes nothing: the keeper tries again
//!   until the window is over.
//! - A renewal that is granted less than the ttl prolongs trust by what was granted.
//! - A hold with limits of its own ([`HoldLimits`]) refuses itself the renewals past them, and is
//!   lost at the end of its window.
//! - While a transaction of the holder's own that renews the lease is open, the hold is neither
//!   trusted nor lost after the end of its window: the COMMIT decides.
//! - A hold that is lost stays lost, whatever the place says later.

#[cfg_attr(not(target_os = "linux"), path = "bell_elsewhere.rs")]
mod bell;
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
mod process;
mod process_keeper;
mod rows;
mod wait;
#[cfg_attr(not(target_os = "linux"), path = "watch_elsewhere.rs")]
mod watch;
mod worker;

pub use bell::Bell;
pub use cancel::Cancel;
pub use clock::{Clock, SystemClock};
pub use held::{Held, abandon, held_from, hold, hold_of, keep};
pub use hold::{HandoverRequest, HeldGrant, Hold, HoldLimits, Renewal, Window};
pub use hold_error::HoldError;
pub use identity::{HolderKind, Identity, Liveness, PidScope, short_owner, unique};
pub use keeper::{Keeper, Kept};
pub use loss::Loss;
pub use lost::{LossSignal, Lost};
pub use notify::Notifier;
pub use place::{Acquired, Attach, Attached, Claimed, Granted, Home, Place, Wish, acquire};
pub use process::ProcessGroup;
pub use process_keeper::{NoKeeper, ProcessKeeper, this_process};
pub use rows::{Current, Due, Notice, Rows};
pub use wait::{DeathCheck, Waiter, nap};
pub use worker::{Deliveries, Delivery, Received, Settled, Work, WorkOptions, WorkerCounts, cut};
