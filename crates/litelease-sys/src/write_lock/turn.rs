//! Turns of the threads that share one handle.

use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Instant;

/// The thread whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    owner: Mutex<Option<ThreadId>>,
    freed: Condvar,
}

/// The reason why this thread did not get its turn.
#[derive(Debug, PartialEq)]
pub(crate) enum NotNow {
    /// It has the turn already.
    Nested,
    /// Other threads had the turn until the deadline.
    TimedOut,
}

impl Turn {
    /// Waits for the turn of this thread.
    pub(crate) fn take(&self, deadline: Instant) -> Result<(), NotNow> {
        let me = thread::current().id();
        let mut owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match *owner {
                None => {
                    *owner = Some(me);
                    return Ok(());
                }
                Some(owner) if owner == me => return Err(NotNow::Nested),
                Some(_) => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NotNow::TimedOut);
            }
            owner = self.freed.wait_timeout(owner, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(crate) fn give_back(&self) {
        *self.owner.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.freed.notify_one();
    }
}
