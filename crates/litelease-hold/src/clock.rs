//! The clock that measures trust windows.

use std::time::Duration;

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

#[cfg(target_os = "linux")]
const COUNTS_SLEEP: libc::clockid_t = libc::CLOCK_BOOTTIME;
// On macOS this clock counts suspend. Other systems without the first clock have no better one.
#[cfg(not(target_os = "linux"))]
const COUNTS_SLEEP: libc::clockid_t = libc::CLOCK_MONOTONIC;

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is a valid place to write to, and the clock exists on every supported
        // system.
        unsafe { libc::clock_gettime(COUNTS_SLEEP, &mut time) };
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn the_system_clock_is_the_one_that_counts_the_time_asleep() {
        // /proc/uptime counts suspend, too; CLOCK_MONOTONIC does not.
        let uptime = || -> f64 {
            let text = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
            text.split(' ').next().and_then(|seconds| seconds.parse().ok()).unwrap_or(-1.0)
        };
        let (before, now, after) = (uptime(), SystemClock.now().as_secs_f64(), uptime());
        assert!(before - 0.02 <= now && now <= after + 0.02, "{before} {now} {after}");
    }
}
