//! How long a client is waited for.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// The patience with one client, and a timer for as long as it stays.
///
/// Setting a timer for every wait would cost more than most waits. So this one goes off when the time of an earlier wait is
/// up, and only then is set to the end of the present one.
pub(crate) struct Patience {
    limit: Duration,
    timer: Pin<Box<Sleep>>,
}

impl Patience {
    pub(crate) fn new(limit: Duration) -> Self {
        Patience { limit, timer: Box::pin(sleep(limit)) }
    }

    /// When what begins now must be there.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.limit
    }

    /// Waits for it until then, which is no earlier than any deadline before. None if it has not come.
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
            while self.timer.as_mut().poll(context).is_ready() {
                if self.timer.deadline() >= deadline {
                    return Poll::Ready(None);
                }
                self.timer.as_mut().reset(deadline);
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn every_wait_has_all_its_time_and_no_more() {
        const LIMIT: Duration = Duration::from_millis(60);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async {
            let mut patience = Patience::new(LIMIT);
            // What comes in time ends no wait but its own.
            for _ in 0..3 {
                let deadline = patience.deadline();
                assert_eq!(patience.until(deadline, sleep(LIMIT * 2 / 3)).await, Some(()));
            }
            for _ in 0..2 {
                let (started, deadline) = (Instant::now(), patience.deadline());
                let waited = patience.until(deadline, sleep(LIMIT * 100)).await;
                assert_eq!(waited, None);
                assert!((LIMIT..LIMIT * 50).contains(&started.elapsed()));
            }
        });
    }
}
