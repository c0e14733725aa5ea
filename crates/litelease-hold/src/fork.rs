//! Calls before and after a fork of this process.

/// Calls `before` in the thread that forks, just before it does, and `after` in the same thread of
/// both processes. A program that is started without a fork calls neither.
///
/// Call it once per pair: calls add up. If the system has no memory left, neither is called.
pub fn at_fork(before: extern "C" fn(), after: extern "C" fn()) {
    // SAFETY: both functions live as long as the program.
    let _ = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
}
