//! Timeouts that are cheap to set.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// Longer than any wait.
const NEVER: Duration = Duration::from_secs(86_400 * 365 * 30);

/// One timer for all waits of a connection.
///
/// Setting a timer costs more than most waits take. So a timer that is set to an earlier time
/// stays as it is, and is set again only if it goes off before the present wait is over.
#[derive(Default)]
pub(crate) struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Returns when a wait of this length ends.
    pub(crate) fn deadline(limit: Duration) -> Instant {
        let now = Instant::now();
        now.checked_add(limit).unwrap_or(now + NEVER)
    }

    /// Waits for `work`, for at most `limit`. Returns `None` if the time is up.
    pub(crate) async fn within<T>(
        &mut self,
        limit: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        self.until(Timer::deadline(limit), work).await
    }

    /// Waits for `work` until the deadline. Returns `None` if the time is up.
    pub(crate) async fn until<T>(
        &mut self,
        deadline: Instant,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
            if sleep.deadline() > deadline {
                sleep.as_mut().reset(deadline);
            }
            while sleep.as_mut().poll(context).is_ready() {
                if sleep.deadline() == deadline {
                    return Poll::Ready(None);
                }
                sleep.as_mut().reset(deadline);
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tokio::time::sleep;

    use super::*;

    #[test]
    fn every_wait_has_all_its_time_and_no_more() {
        const LIMIT: Duration = Duration::from_millis(60);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async {
            let mut timer = Timer::default();
            // A wait that ends in time does not shorten the next one.
            for _ in 0..3 {
                assert_eq!(timer.within(LIMIT, sleep(LIMIT * 2 / 3)).await, Some(()));
            }
            // Waits that are shorter or longer than the one before.
            for limit in [LIMIT, LIMIT / 3, LIMIT * 2, LIMIT] {
                let started = Instant::now();
                assert_eq!(timer.within(limit, sleep(LIMIT * 100)).await, None);
                assert!((limit..LIMIT * 50).contains(&started.elapsed()), "{limit:?}");
            }
            // Waits while the timer is set to a longer one, or to never.
            for longer in [LIMIT * 100, Duration::MAX] {
                assert_eq!(timer.within(longer, sleep(LIMIT * 2)).await, Some(()));
                let (started, forever) = (Instant::now(), sleep(LIMIT * 100));
                assert_eq!(timer.within(LIMIT, forever).await, None);
                assert!((LIMIT..LIMIT * 50).contains(&started.elapsed()), "{longer:?}");
            }
        });
    }
}
