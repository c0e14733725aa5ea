//! The signal by which a holder learns that its lease is lost.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{Clock, Hold, Loss};

/// A held lease that can no longer be trusted.
///
/// ```
/// # use litelease_hold::{Loss, Lost};
/// let lost = Lost { name: "books".into(), reason: Loss::Broken };
/// assert_eq!(lost.to_string(), "the lease on \"books\" is lost: broken by an operator");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The name that was held.
    pub name: String,
    /// The reason.
    pub reason: Loss,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the lease on {:?} is lost: {}", self.name, self.reason)
    }
}

impl std::error::Error for Lost {}

#[cfg(feature = "rusqlite")]
impl From<Lost> for litelease_store::Error<rusqlite::Error> {
    fn from(lost: Lost) -> Self {
        litelease_store::Error::Hold { kind: "Lost", error: Box::new(lost) }
    }
}

/// Reports the loss of a held lease to any thread. A hold's method `lost` returns it.
///
/// ```
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use litelease_hold::{Clock, HeldGrant, Hold, Loss, LossSignal, Renewal, SystemClock, Window};
/// # let ttl = Duration::from_secs(60);
/// # let secret = String::new();
/// # let grant = HeldGrant { name: "books".into(), owner: "a".into(), token: 1, ttl, secret };
/// # let window = Window::new(ttl).unwrap();
/// # let hold = Arc::new(Hold::new(grant, window, SystemClock.now(), Renewal::whole(0)));
/// let lost = LossSignal::new(hold.clone(), Arc::new(SystemClock)); // held.lost()
/// assert_eq!(lost.reason(), None);
/// assert!(lost.trusted_for() <= Duration::from_secs(54));
/// assert_eq!(lost.wait_timeout(Duration::from_millis(1)), None);
/// hold.fail(Loss::Broken);
/// assert_eq!(lost.reason(), Some(Loss::Broken));
/// ```
#[derive(Clone)]
pub struct LossSignal {
    hold: Arc<Hold>,
    clock: Arc<dyn Clock>,
}

impl LossSignal {
    /// Returns the signal of a hold whose trust this clock measures.
    pub fn new(hold: Arc<Hold>, clock: Arc<dyn Clock>) -> Self {
        LossSignal { hold, clock }
    }

    /// Returns why the grant is lost or, before that, why the last renewal failed.
    pub fn reason(&self) -> Option<Loss> {
        self.hold.check(self.clock.now()).err().or_else(|| self.hold.trouble())
    }

    /// Returns for how long the grant can be trusted from now on if no further renewal succeeds.
    pub fn trusted_for(&self) -> Duration {
        let now = self.clock.now();
        match self.hold.check(now) {
            Ok(()) => self.hold.trusted_until().saturating_sub(now),
            Err(_) => Duration::ZERO,
        }
    }

    /// Waits until the lease is lost. Returns `None` if its holder releases it first.
    ///
    /// ```no_run
    /// # use litelease_hold::LossSignal;
    /// # fn watch(lost: LossSignal) {
    /// std::thread::spawn(move || {
    ///     if let Some(reason) = lost.wait() {
    ///         eprintln!("stop: {reason}");
    ///     }
    /// });
    /// # }
    /// ```
    pub fn wait(&self) -> Option<Loss> {
        self.wait_timeout(Duration::MAX)
    }

    /// Waits like [`wait`](LossSignal::wait), for at most `timeout`.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<Loss> {
        let begin = self.clock.now();
        loop {
            let now = self.clock.now();
            let left = timeout.saturating_sub(now - begin);
            // This thread also looks at the time itself, because the keeper may be stuck in a
            // system call.
            let trusted = self.hold.trusted_until().saturating_sub(now);
            let step = trusted.max(Duration::from_millis(10)).min(Duration::from_secs(1)).min(left);
            let loss = self.hold.wait_lost(step);
            let is_over = self.hold.is_ended() || left.is_zero();
            if loss.is_some() || is_over {
                return loss;
            }
            let _ = self.hold.check(self.clock.now());
        }
    }
}

impl fmt::Debug for LossSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LossSignal").field("hold", &self.hold).finish_non_exhaustive()
    }
}
