//! Time and threads: renews grants in the background, reports when one is lost, and waits for
//! others.
//!
//! This crate decides nothing about rows and knows no SQL. The caller passes the rows as [`Rows`]
//! and the time as a [`Clock`], so that tests step a clock instead of sleeping. Most programs want
//! the `litelease` crate.

#[cfg_attr(not(target_os = "linux"), path = "bell_elsewhere.rs")]
mod bell;
mod clock;
mod fork;
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
pub use clock::{Clock, SystemClock};
pub use fork::at_fork;
pub use held::{Held, end, held_from, hold, hold_of, keep};
pub use hold::{HandoverRequest, HeldGrant, Hold, Renewal, Window};
pub use hold_error::HoldError;
pub use identity::{HolderKind, Identity, Liveness, PidScope, unique};
pub use keeper::{Keeper, Kept};
pub use loss::Loss;
pub use lost::{LossSignal, Lost};
pub use notify::Notifier;
pub use place::{Acquired, Attach, Attached, Claimed, Granted, Home, Place, Wish, acquire};
pub use process::ProcessGroup;
pub use process_keeper::{NoKeeper, ProcessKeeper};
pub use rows::{Current, Due, Notice, Rows};
pub use wait::{DeathCheck, Waiter, nap};
pub use worker::{Deliveries, Delivery, Received, Settled, Work, WorkOptions, WorkerCounts, cut};
