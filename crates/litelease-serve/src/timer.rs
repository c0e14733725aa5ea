//! Waiting for something, but not forever.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// A time that nobody waits for.
const NEVER: Duration = Duration::from_secs(86_400 * 365 * 30);

/// The timer of all that one client is waited for, or waits for.
///
/// Setting one for every wait would cost more than most waits. So this one is left as it is where it goes off too early, and
/// is set to the end of the present wait only then.
#[derive(Default)]
pub(crate) struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// When something that may take so long must be there.
    pub(crate) fn deadline(limit: Duration) -> Instant {
        let now = Instant::now();
        now.checked_add(limit).unwrap_or(now + NEVER)
    }

    /// Waits so long for it. None if it has not come.
    pub(crate) async fn within<T>(
        &mut self,
        limit: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        self.until(Timer::deadline(limit), work).await
    }

    /// The same, to the deadline.
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
            // What comes in time ends no wait but its own.
            for _ in 0..3 {
                assert_eq!(timer.within(LIMIT, sleep(LIMIT * 2 / 3)).await, Some(()));
            }
            // Shorter or longer than the one before.
            for limit in [LIMIT, LIMIT / 3, LIMIT * 2, LIMIT] {
                let started = Instant::now();
                assert_eq!(timer.within(limit, sleep(LIMIT * 100)).await, None);
                assert!((limit..LIMIT * 50).contains(&started.elapsed()), "{limit:?}");
            }
            // Also while it is still set to the end of a longer one, or to never.
            for longer in [LIMIT * 100, Duration::MAX] {
                assert_eq!(timer.within(longer, sleep(LIMIT * 2)).await, Some(()));
                let (started, forever) = (Instant::now(), sleep(LIMIT * 100));
                assert_eq!(timer.within(LIMIT, forever).await, None);
                assert!((LIMIT..LIMIT * 50).contains(&started.elapsed()), "{longer:?}");
            }
        });
    }
}
