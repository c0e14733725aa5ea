//! Ends a wait early, from another thread.

use std::fmt;
use std::sync::mpsc::{TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use crate::Wakeup;

/// Cancels the waits that have a clone of it: they end as if their time were over.
///
/// A grant that arrives at that moment is returned like any other. Dropping it releases it.
///
/// ```
/// # use std::time::Duration;
/// # use litelease_hold::Cancel;
/// let cancel = Cancel::default();
/// std::thread::spawn({
///     let cancel = cancel.clone();
///     move || cancel.cancel()
/// });
/// cancel.sleep(Duration::from_secs(60)); // returns at once
/// assert!(cancel.is_cancelled());
/// ```
#[derive(Clone, Default)]
pub struct Cancel {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_cancelled: bool,
    /// The wakeups on which threads sleep, for `cancel` to wake them.
    wakeups: Vec<Weak<Wakeup>>,
}

impl Cancel {
    /// Ends the waits, now and in future.
    pub fn cancel(&self) {
        let wakeups = {
            let mut state = self.shared.state();
            state.is_cancelled = true;
            std::mem::take(&mut state.wakeups)
        };
        self.shared.changed.notify_all();
        // Also wakes other waiters of the same file, which read it again and wait on.
        wakeups.iter().filter_map(Weak::upgrade).for_each(|wakeup| wakeup.notify());
    }

    /// Checks whether the waits have been cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.shared.state().is_cancelled
    }

    /// Sleeps for this long, or until the wait is cancelled.
    pub fn sleep(&self, time: Duration) {
        let goes_on = |state: &mut State| !state.is_cancelled;
        let slept = self.shared.changed.wait_timeout_while(self.shared.state(), time, goes_on);
        drop(slept.unwrap_or_else(PoisonError::into_inner));
    }

    /// Runs blocking work on a thread of its own. Returns `None` if the wait is cancelled first:
    /// then the thread finishes the work, and its result is dropped.
    pub fn unless_cancelled<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (done, result) = channel();
        let notifies = Notifies(Arc::clone(&self.shared));
        // Dropped in reverse order, also if the work panics: first the sender.
        let body = move || {
            let (_notifies, done) = (notifies, done);
            let _ = done.send(work());
        };
        thread::Builder::new().name("litelease wait".into()).spawn(body).ok()?;
        let mut state = self.shared.state();
        loop {
            match result.try_recv() {
                Ok(result) => return Some(result),
                Err(TryRecvError::Empty) if !state.is_cancelled => {}
                Err(_) => return None,
            }
            let woken = self.shared.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notifies `wakeup` when the wait is cancelled. Returns false if it already is.
    pub(crate) fn notifies(&self, wakeup: &Arc<Wakeup>) -> bool {
        let mut state = self.shared.state();
        let wakeup = Arc::downgrade(wakeup);
        if !state.wakeups.iter().any(|known| known.ptr_eq(&wakeup)) {
            state.wakeups.retain(|known| known.strong_count() > 0);
            state.wakeups.push(wakeup);
        }
        !state.is_cancelled
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the thread that waits for a result.
struct Notifies(Arc<Shared>);

impl Drop for Notifies {
    fn drop(&mut self) {
        // Takes the lock, so that the thread is not between its check and its sleep.
        let _state = self.0.state();
        self.0.changed.notify_all();
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel").field("is_cancelled", &self.is_cancelled()).finish()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::Waiter;

    const FOR_EVER: Duration = Duration::from_secs(24 * 3600);

    #[test]
    fn a_waiter_at_a_file_is_woken_whenever_the_wait_is_cancelled() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x");
        std::fs::write(&file, "").unwrap();
        // Cancels before the thread sleeps, while it does, and in between.
        for pause in [0, 0, 1, 10, 50, 100, 500] {
            let (waiter, cancel) = (Waiter::at(&file), Cancel::default());
            let generation = waiter.generation();
            let waits = thread::spawn({
                let cancel = cancel.clone();
                move || waiter.wait_unless_cancelled(Some(&cancel), generation, FOR_EVER)
            });
            thread::sleep(Duration::from_micros(pause * 100));
            cancel.cancel();
            waits.join().unwrap();
        }
    }

    #[test]
    fn what_blocks_is_left_alone_when_the_wait_is_cancelled() {
        let cancel = Cancel::default();
        assert_eq!(cancel.unless_cancelled(|| 1), Some(1));
        assert_eq!(
            cancel.unless_cancelled(|| -> i32 { std::panic::resume_unwind(Box::new(())) }),
            None
        );
        let ((go_on, blocked), (begun, begins)) = (channel::<()>(), channel());
        let blocks = move || {
            begun.send(()).unwrap();
            blocked.recv().unwrap();
        };
        let waits = thread::spawn({
            let cancel = cancel.clone();
            move || cancel.unless_cancelled(blocks)
        });
        begins.recv().unwrap();
        cancel.cancel();
        assert_eq!(waits.join().unwrap(), None);
        go_on.send(()).unwrap();
        cancel.sleep(FOR_EVER);
    }
}
