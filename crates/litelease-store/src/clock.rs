//! The time that a verb decides at: the system clock's, or the caller's.

/// The time that a verb decides at.
///
/// ```
/// # use litelease_store::When;
/// assert_eq!(When::At(100).now_ms(), 100);
/// assert!(When::Now.now_ms() > 1_700_000_000_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The system clock, read once the write lock is held.
    Now,
    /// This Unix time in milliseconds.
    At(i64),
}

impl When {
    /// Returns this time, or the system clock's.
    #[inline]
    pub fn now_ms(self) -> i64 {
        match self {
            When::At(now_ms) => now_ms,
            When::Now => system_ms(),
        }
    }
}

/// Reads the system clock. The standard library does it too, in three times as many instructions,
/// and each verb asks once or twice.
#[cfg(unix)]
fn system_ms() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: there is room for the time, and this clock is there on every system.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
    now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000)
}

#[cfg(not(unix))]
fn system_ms() -> i64 {
    use std::time::{SystemTime, UNIX_EPOCH};
    let in_ms = |time: std::time::Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => in_ms(since),
        Err(before) => -in_ms(before.duration()),
    }
}
