//! Unix systems other than Linux. What they cannot tell is unknown: no process counts as dead
//! because of that, and waiters poll.

mod clock;
mod files;
mod parent;
mod processes;
mod wakeup;
mod watch;

pub use clock::{monotonic, random_bytes};
pub use files::network_filesystem;
pub use parent::{adopt_orphans, die_with};
pub(crate) use processes::scope;
pub use processes::{ProcessGroup, ProcessInfo, liveness_of, start_of};
pub use wakeup::Wakeup;
pub use watch::watch;

/// True where [`watch`] nudges its listeners.
pub const IS_NOTIFIED: bool = false;

pub use crate::unix::*;
