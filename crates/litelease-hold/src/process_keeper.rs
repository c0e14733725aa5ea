//! The keeper of a process, with its thread. The first use starts it; a forked process has none.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Clock, Keeper, SystemClock};

/// A keeper that is started by its first use.
///
/// ```
/// # use litelease_hold::ProcessKeeper;
/// static HOLDS: ProcessKeeper = ProcessKeeper::new();
/// let keeper = HOLDS.get()?;
/// # Ok::<(), litelease_hold::NoKeeper>(())
/// ```
#[derive(Debug)]
pub struct ProcessKeeper {
    keeper: Mutex<Option<Arc<Keeper>>>,
    /// The process of the keeper. Checked before the lock, which in a forked process may be held
    /// for ever by a thread that does not exist there.
    process: AtomicU64,
}

/// The lock of a keeper that lives as long as the program.
pub(crate) type KeeperLock = MutexGuard<'static, Option<Arc<Keeper>>>;

/// The reason why there is no keeper.
#[derive(Debug)]
pub enum NoKeeper {
    /// This process was forked from the one that has the keeper.
    Forked,
    /// The system cannot start a thread.
    NoThread(io::Error),
}

/// How many forks lie between the first process that counts them and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Returns a number of this process that no fork of it has. The process id is not enough: two
/// processes can both be the first of their namespaces. Forks are counted where
/// [`let_children_hold`](crate::file::let_children_hold) was called.
///
/// ```
/// assert_eq!(litelease_hold::this_process() as u32, std::process::id());
/// ```
pub fn this_process() -> u64 {
    u64::from(FORKS.load(Ordering::SeqCst)) << 32 | u64::from(std::process::id())
}

/// Counts the fork that has made this process.
pub(crate) fn count_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
}

impl ProcessKeeper {
    /// Returns a keeper that is not started yet.
    pub const fn new() -> Self {
        ProcessKeeper { keeper: Mutex::new(None), process: AtomicU64::new(0) }
    }

    /// Returns the keeper, on the system's clock. Fails in a forked process.
    pub fn get(&self) -> Result<Arc<Keeper>, NoKeeper> {
        self.get_with(|| Arc::new(SystemClock))
    }

    /// Returns the keeper, and starts it with this clock if necessary. Its thread ends when the
    /// last reference to it is dropped. Fails in a forked process.
    pub fn get_with(
        &self,
        clock: impl FnOnce() -> Arc<dyn Clock>,
    ) -> Result<Arc<Keeper>, NoKeeper> {
        match self.process.load(Ordering::SeqCst) {
            pid if pid != 0 && pid != this_process() => return Err(NoKeeper::Forked),
            _ => {}
        }
        let mut keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(keeper) = &*keeper {
            return Ok(keeper.clone());
        }
        let new = Arc::new(Keeper::new(clock()));
        new.start().map_err(NoKeeper::NoThread)?;
        self.process.store(this_process(), Ordering::SeqCst);
        *keeper = Some(new.clone());
        Ok(new)
    }

    /// Keeps other threads from starting or stopping the keeper, during a fork.
    pub(crate) fn lock(&'static self) -> KeeperLock {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins without a keeper in a process that was just forked. The parent's keeper is left
    /// alone: its thread does not exist here, and its locks may be held for ever.
    pub(crate) fn begin_anew(&'static self, mut lock: KeeperLock) {
        std::mem::forget(lock.take());
        self.process.store(0, Ordering::SeqCst);
    }

    /// Stops the keeper and closes its connections, for a program that is about to end. SQLite
    /// leaves the log of a connection that is never closed, and the next program reads all of it.
    ///
    /// The remaining holds are no longer renewed. Returns after a second if a renewal is under way.
    pub fn stop(&self) {
        self.stop_until(Instant::now() + Duration::from_secs(1));
    }

    /// Stops the keeper like [`stop`](ProcessKeeper::stop), and gives up at `deadline`.
    pub(crate) fn stop_until(&self, deadline: Instant) {
        if self.process.load(Ordering::SeqCst) != this_process() {
            return;
        }
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeper) = keeper {
            keeper.close(deadline);
        }
    }

    /// Closes the connections to files in which no name is held any more. They are closed anyhow
    /// within a second; a caller that closes its own expects that no other is left.
    pub fn close_idle(&self) {
        if self.process.load(Ordering::SeqCst) != this_process() {
            return;
        }
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let deadline = Instant::now() + Duration::from_millis(20);
        while keeper.as_ref().is_some_and(|keeper| keeper.close_idle()) && Instant::now() < deadline
        {
            thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Waits for other threads to drop their references, which they have for moments only.
pub(crate) fn unshared<T>(mut shared: Arc<T>, deadline: Instant) -> Option<T> {
    loop {
        shared = match Arc::try_unwrap(shared) {
            Ok(value) => return Some(value),
            Err(shared) if Instant::now() < deadline => shared,
            Err(_) => return None,
        };
        thread::sleep(Duration::from_micros(100));
    }
}

impl Default for ProcessKeeper {
    fn default() -> Self {
        ProcessKeeper::new()
    }
}

impl fmt::Display for NoKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoKeeper::Forked => f.write_str("this is a forked process, which has no keeper"),
            NoKeeper::NoThread(error) => write!(f, "cannot start the keeper's thread: {error}"),
        }
    }
}

impl std::error::Error for NoKeeper {}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::atomic::AtomicBool;

    use super::*;
    use litelease_core::Lease;

    use crate::{Current, Due, HeldGrant, Hold, Loss, Notice, Renewal, Rows, Window};

    /// Rows of a file that is closed when they are dropped.
    struct File(Arc<AtomicBool>);

    impl Drop for File {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    impl Rows for File {
        fn renew(&mut self, due: &[Due<'_>]) -> Vec<Result<Renewal, Loss>> {
            due.iter().map(|_| Err(Loss::Expired)).collect()
        }

        fn release(&mut self, _: &HeldGrant, _: Duration) -> Result<(), Loss> {
            Ok(())
        }

        fn read(&mut self, _: &HeldGrant) -> Current {
            Current::unknown()
        }

        fn hand_over(&mut self, _: &HeldGrant, _: Duration) -> Result<Option<Lease>, Loss> {
            Ok(None)
        }

        fn listen(&mut self, _: Notice) {}

        fn beside(&self) -> Option<Box<dyn Rows>> {
            None
        }

        fn is_moved(&mut self) -> bool {
            false
        }
    }

    /// A thread that waits for a name has the keeper all the while. The end of the program waited
    /// for it, and closed nothing.
    #[test]
    fn the_files_are_closed_although_a_thread_that_waits_has_the_keeper() {
        let keeper = Arc::new(Keeper::new(Arc::new(SystemClock)));
        let process = AtomicU64::new(this_process());
        let keepers = ProcessKeeper { keeper: Mutex::new(Some(keeper)), process };
        let waiting = keepers.get().unwrap();
        let ttl = Duration::from_secs(60);
        let grant =
            HeldGrant { name: "x".into(), owner: "a".into(), token: 1, ttl, secret: "".into() };
        let window = Window::new(ttl).unwrap();
        let hold = Hold::new(grant, window, SystemClock.now(), Renewal::whole(0));
        let is_closed = Arc::new(AtomicBool::new(false));
        let file = File(is_closed.clone());
        let open = || Ok::<_, ()>(Box::new(file) as Box<dyn Rows>);
        drop(waiting.keep("file", hold, open).unwrap());
        assert!(!is_closed.load(Ordering::SeqCst));
        keepers.stop();
        assert!(is_closed.load(Ordering::SeqCst));
        drop(waiting);
    }
}
