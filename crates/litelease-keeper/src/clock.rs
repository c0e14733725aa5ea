//! The clock that trust is measured with.

use std::time::Duration;

/// A clock that nobody sets. Its times count from some moment in the past that stays the same.
pub trait Clock: Send + Sync {
    /// The time now.
    fn now(&self) -> Duration;
}

/// The system's clock that counts the time asleep, too: a machine that was suspended has not stopped the
/// time of others.
///
/// ```
/// # use litelease_keeper::{Clock, SystemClock};
/// let earlier = SystemClock.now();
/// assert!(SystemClock.now() >= earlier);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SystemClock;

#[cfg(target_os = "linux")]
const COUNTS_SLEEP: libc::clockid_t = libc::CLOCK_BOOTTIME;
// On macOS this one counts sleep; elsewhere it is the best there is.
#[cfg(not(target_os = "linux"))]
const COUNTS_SLEEP: libc::clockid_t = libc::CLOCK_MONOTONIC;

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is ours to write to, and the clock exists on every system this is built for.
        unsafe { libc::clock_gettime(COUNTS_SLEEP, &mut time) };
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn the_system_clock_is_the_one_that_counts_the_time_asleep() {
        // /proc/uptime counts it, too; the usual monotonic clock does not.
        let uptime = || -> f64 {
            let text = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
            text.split(' ').next().and_then(|seconds| seconds.parse().ok()).unwrap_or(-1.0)
        };
        let (before, now, after) = (uptime(), SystemClock.now().as_secs_f64(), uptime());
        assert!(before - 0.02 <= now && now <= after + 0.02, "{before} {now} {after}");
    }
}
