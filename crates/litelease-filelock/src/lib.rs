//! A lock across processes, on a file of its own: waited for fairly, freed by the system when its holder dies,
//! and with the holder named when waiting was in vain.
//!
//! This crate knows nothing of SQLite. Most programs want `litelease::SingleWriter`, which is built on it.

mod error;
mod file;
mod holder;
mod lock;
mod lock_waiter;
mod owned;
mod queue;
mod turn;

pub use error::Error;
pub use holder::Holder;
pub use lock::{Held, LockState, Waiting, WriteLock};
pub use owned::OwnedLock;
