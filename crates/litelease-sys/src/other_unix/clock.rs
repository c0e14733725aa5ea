//! The monotonic clock, and random bits.

use std::time::Duration;

use crate::unix::elapsed;

/// Returns the time since a fixed moment in the past. On macOS this clock also counts the time
/// asleep; elsewhere there is no better one.
pub fn monotonic() -> Duration {
    elapsed(libc::CLOCK_MONOTONIC)
}

/// Returns 128 random bits from the system, if it has any.
pub fn random_bytes() -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    // SAFETY: the buffer is writable and has the given length.
    let filled = unsafe { libc::getentropy(bytes.as_mut_ptr().cast(), bytes.len()) };
    (filled == 0).then_some(bytes)
}
