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
                Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
                Err(before) => {
                    i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |ms| -ms)
                }
            },
        }
    }
}
