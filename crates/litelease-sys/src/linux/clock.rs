//! The clock that counts the time asleep, and random bits.

use std::time::Duration;

use crate::unix::elapsed;

/// Returns the time since a fixed moment in the past, on the monotonic clock that also counts
/// suspend: while this machine sleeps, leases go on expiring.
///
/// ```
/// # use litelease_sys::monotonic;
/// let earlier = monotonic();
/// assert!(monotonic() >= earlier);
/// ```
pub fn monotonic() -> Duration {
    elapsed(libc::CLOCK_BOOTTIME)
}

/// Returns 128 random bits from the system, if it has any.
pub fn random_bytes() -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    // The function of that name is younger than the oldest glibc that release files run on.
    // SAFETY: the buffer is writable and has the given length.
    let filled =
        unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0u32) };
    (filled == 16).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::monotonic;

    #[test]
    fn the_clock_counts_the_time_asleep() {
        // /proc/uptime counts suspend, too; CLOCK_MONOTONIC does not.
        let uptime = || -> f64 {
            let text = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
            text.split(' ').next().and_then(|seconds| seconds.parse().ok()).unwrap_or(-1.0)
        };
        let (before, now, after) = (uptime(), monotonic().as_secs_f64(), uptime());
        assert!(before - 0.02 <= now && now <= after + 0.02, "{before} {now} {after}");
    }
}
