//! Waiting for a name: woken by the engine, and by the end of the lease that is in the way.

use std::time::Duration;

use litelease_hold::{Examination, Identity, Liveness};

use crate::change::Answered;
use crate::cluster::Cluster;
use crate::engine::Result;
use crate::{ClaimResult, HoldError};

/// A waiter looks this often even if nobody wakes it up.
const POLL: Duration = Duration::from_secs(5);
/// The same if the holder is a process of this machine, whose death is noticed.
const POLL_NEAR: Duration = Duration::from_millis(500);
/// How long a waiter pauses while the engine cannot be reached.
const PAUSE: Duration = Duration::from_millis(100);

impl Cluster {
    /// Claims like [`claim`](Cluster::claim), but waits until the name is free. Returns `Busy`
    /// after `timeout`.
    ///
    /// A release anywhere wakes it at once. A holder that dies is succeeded when its lease is over.
    /// On an engine without a clock, such as etcd, that is when its row was not renewed for a whole
    /// ttl. If it held the name with [`hold`](Cluster::hold) or `litelease run` on this machine,
    /// and in this container, it is succeeded within a second (Linux). Waiters are not queued: the
    /// first to wait need not be the first to get the name.
    ///
    /// While the engine cannot be reached, it goes on waiting. A request that is under way then may
    /// outlast `timeout` by some seconds.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_cluster::*;
    /// # let cluster = Cluster::on(MemoryEngine::new());
    /// let (ttl, wait) = (Duration::from_millis(150), Duration::from_secs(60));
    /// cluster.claim("books", "a", ttl)?;
    /// // It is never renewed, so it is over before the waiting is.
    /// let next = cluster.claim_wait("books", "b", ttl, wait)?;
    /// assert!(matches!(next, ClaimResult::Acquired(lease) if lease.token == 2));
    /// # Ok::<(), litelease_cluster::HoldError>(())
    /// ```
    pub fn claim_wait(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        timeout: Duration,
    ) -> std::result::Result<ClaimResult, HoldError> {
        Ok(self.wait_for(name, owner, ttl, timeout)?.answer)
    }

    pub(crate) fn wait_for(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        timeout: Duration,
    ) -> Result<Answered<ClaimResult>> {
        let host = &self.shared.host;
        let begin = host.counted();
        let mut examination = Examination::default();
        loop {
            let mut asked = self.claim_once(name, owner, ttl, 0);
            if let Ok(Answered { answer: ClaimResult::Busy(current), .. }) = &asked
                && examination.is_dead(host.counted(), &current.owner)
            {
                asked = self.claim_once_from_dead(name, owner, ttl, (&current.clone()).into());
            }
            let left = timeout.saturating_sub(host.counted().saturating_sub(begin));
            match asked {
                Ok(Answered { answer: ClaimResult::Busy(current), version, left_ms, .. })
                    if !left.is_zero() =>
                {
                    let most = if is_near(&current.owner) { POLL_NEAR } else { POLL };
                    let over = u64::try_from(left_ms).unwrap_or(0).max(1);
                    let time = Duration::from_millis(over).min(most).min(left);
                    self.shared.engine.nap(name, version, time);
                }
                Err(error) if error.is_transient() && !left.is_zero() => {
                    host.pause(PAUSE.min(left));
                }
                done => return done,
            }
        }
    }
}

fn is_near(owner: &str) -> bool {
    Identity::parse(owner).is_some_and(|holder| holder.liveness() != Liveness::Unknown)
}
