//! The time that a verb decides at: the system clock's, or the caller's.

use litelease_sys::unix_ms;

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
            When::Now => unix_ms(),
        }
    }
}
