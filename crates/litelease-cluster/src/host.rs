//! The machine that the verbs run on: its clocks, random numbers and sleep.

use std::hash::{BuildHasher, RandomState};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use litelease_hold::{Clock, SystemClock};

/// The machine as the verbs see it. Tests bring their own.
pub trait Host: Send + Sync {
    /// Returns the Unix time in milliseconds. Where the engine has no clock, it is shown to people,
    /// and decides only about leases that ended long ago.
    fn wall_ms(&self) -> i64;

    /// Returns the time on a clock that is never set and counts suspend. Trust is measured with it.
    fn monotonic(&self) -> Duration;

    /// Returns a positive random number, unique enough to be the id of an attempt.
    fn random_id(&self) -> i64;

    /// Sleeps before another try.
    fn pause(&self, time: Duration);
}

/// The system's clocks.
///
/// ```
/// # use litelease_cluster::{Host, System};
/// assert!(System.wall_ms() > 1_700_000_000_000);
/// assert_ne!(System.random_id(), System.random_id());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct System;

impl Host for System {
    fn wall_ms(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }

    fn monotonic(&self) -> Duration {
        SystemClock.now()
    }

    fn random_id(&self) -> i64 {
        // Each state has keys of its own, which the system's random numbers begin.
        let random = RandomState::new().hash_one(SystemClock.now());
        i64::try_from(random >> 1).unwrap_or(1).max(1)
    }

    fn pause(&self, time: Duration) {
        thread::sleep(time);
    }
}
