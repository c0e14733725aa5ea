//! A lock across processes, on a file of its own. Waiters queue fairly, the system frees the lock
//! when its holder dies, and a timeout names the holder.
//!
//! It knows nothing of SQLite. Most programs want `litelease::SingleWriter`, which is
//! built on it.

mod error;
mod file;
mod holder;
mod lock;
mod lock_waiter;
mod owned;
mod queue;
mod sliced;
mod turn;

pub use error::Error;
pub use holder::Holder;
pub use lock::{LockState, Locked, Waiting, WriteLock};
pub use owned::OwnedLock;
pub use sliced::SlicedLock;
