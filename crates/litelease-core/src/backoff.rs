//! Computes how long an item stays hidden after a failed attempt.

use core::time::Duration;

/// Returns how long to hide an item after its `attempt`-th failure: `first`, doubled with every
/// attempt up to `longest`, less up to a half so that items that failed together come back apart.
/// `seed` decides how much less; the token of the delivery is a good one.
///
/// ```
/// # use core::time::Duration;
/// # use litelease_core::backoff;
/// let (first, longest) = (Duration::from_secs(1), Duration::from_secs(60));
/// let third = backoff(first, longest, 3, 17);
/// assert!(third > Duration::from_secs(2) && third <= Duration::from_secs(4));
/// assert!(backoff(first, longest, 1_000, 17) <= longest);
/// ```
pub fn backoff(first: Duration, longest: Duration, attempt: i64, seed: i64) -> Duration {
    let doublings = u32::try_from(attempt.saturating_sub(1).clamp(0, 31)).unwrap_or(31);
    let full = first.saturating_mul(1 << doublings).min(longest);
    // Multiplicative hashing; the upper ten bits are as good as random.
    let dice = (seed as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54;
    full - full / 2048 * dice as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn every_attempt_doubles_the_delay_until_the_longest() {
        for (attempt, full_ms) in
            [(1, 1000), (2, 2000), (3, 4000), (4, 8000), (5, 10_000), (99, 10_000)]
        {
            // Seed 0 takes nothing away.
            assert_eq!(backoff(MS(1000), MS(10_000), attempt, 0), MS(full_ms), "{attempt}");
        }
    }

    #[test]
    fn the_jitter_takes_at_most_a_half_and_spreads_neighbours() {
        let delays: alloc::vec::Vec<_> =
            (1..=100).map(|seed| backoff(MS(1000), MS(10_000), 1, seed)).collect();
        assert!(delays.iter().all(|delay| (MS(500)..=MS(1000)).contains(delay)));
        let spread = delays.iter().max().zip(delays.iter().min());
        assert!(
            spread.is_some_and(|(latest, earliest)| *latest - *earliest > MS(400)),
            "{spread:?}"
        );
    }

    #[test]
    fn extreme_numbers_neither_overflow_nor_exceed_the_longest() {
        for attempt in [i64::MIN, -1, 0, i64::MAX] {
            for seed in [i64::MIN, 0, i64::MAX] {
                assert!(backoff(Duration::MAX, Duration::MAX, attempt, seed) <= Duration::MAX);
                assert_eq!(backoff(Duration::ZERO, Duration::MAX, attempt, seed), Duration::ZERO);
            }
        }
    }
}
