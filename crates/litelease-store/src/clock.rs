//! The time that a verb decides at: the system clock's, or the caller's.

use std::time::{SystemTime, UNIX_EPOCH};

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
    /// This time, or the system clock's.
    pub fn now_ms(self) -> i64 {
        match self {
            When::At(now_ms) => now_ms,
            When::Now => match SystemTime::now().duration_since(UNIX_EPOCH) {
                // As 64 bits, which is cheaper than the 128 of `as_millis` and lasts as long.
                Ok(since) => i64::try_from(since.as_secs())
                    .unwrap_or(i64::MAX)
                    .saturating_mul(1000)
                    .saturating_add(i64::from(since.subsec_millis())),
                Err(before) => {
                    i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |ms| -ms)
                }
            },
        }
    }
}
