//! The clock that measures trust windows.

use std::time::Duration;

use litelease_sys::monotonic;

/// A monotonic clock. Its times count from a fixed moment in the past.
pub trait Clock: Send + Sync {
    /// Returns the current time.
    fn now(&self) -> Duration;

    /// Sleeps for this long on this clock.
    fn sleep(&self, time: Duration);
}

/// The system's monotonic clock that also counts suspend: while this machine sleeps, leases go on
/// expiring.
///
/// ```
/// # use litelease_hold::{Clock, SystemClock};
/// let earlier = SystemClock.now();
/// assert!(SystemClock.now() >= earlier);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        monotonic()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}
