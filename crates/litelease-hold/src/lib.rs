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
mod hold;
mod identity;
mod keeper;
mod loss;
mod lost;
mod notify;
mod process;
mod process_keeper;
mod wait;
#[cfg_attr(not(target_os = "linux"), path = "watch_elsewhere.rs")]
mod watch;

pub use bell::Bell;
pub use clock::{Clock, SystemClock};
pub use fork::at_fork;
pub use hold::{Asked, HeldGrant, Hold, Renewal, Window};
pub use identity::{HolderKind, Identity, Liveness, PidScope, unique};
pub use keeper::{Due, Handed, Keeper, Kept, Rows, Seen};
pub use loss::Loss;
pub use lost::{LossSignal, Lost};
pub use notify::Notifier;
pub use process::ProcessGroup;
pub use process_keeper::{NoKeeper, ProcessKeeper};
pub use wait::{Examination, Waiter, nap};
