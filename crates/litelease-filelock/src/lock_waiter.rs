//! A place in the queue for the lock.
//!
//! A thread that blocks on a file lock cannot be interrupted at a deadline. So a helper thread
//! blocks. If the deadline comes first, the place in the queue serves the next caller of the same
//! handle; if there is none, it is given up as soon as its turn comes. A handle has at most one
//! such thread. If the handle is dropped, its thread stays until its turn comes.

use std::fs::File;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use litelease_files::SideFile;

use crate::queue::Head;
use crate::{Error, file};

/// At most one thread that waits for the lock.
#[derive(Debug)]
pub(crate) struct LockWaiter {
    side: SideFile,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
enum State {
    /// No thread waits.
    Empty,
    /// A thread waits. `wanted` tells whether a caller still waits for the lock.
    Waiting { wanted: bool },
    /// The thread has got the lock, or an error.
    Done(Result<File, Error>),
}

/// How long a caller waits before it first tries the lock past the queue. The queue moves with
/// every unlock, unless its head is a stopped process.
const PATIENCE: Duration = Duration::from_millis(50);

impl LockWaiter {
    /// Creates a waiter for the lock on this file. Queues nowhere yet.
    pub(crate) fn new(side: SideFile) -> Self {
        LockWaiter { side, state: Mutex::new(State::Empty), changed: Condvar::new() }
    }

    /// Waits in the queue for the lock. Returns `None` if the deadline came first.
    ///
    /// The head of the queue may be a stopped process, or wait for a file that is no longer at the
    /// path. So the lock on `file` is also tried past the queue: at growing intervals, because
    /// that is unfair, and at the deadline.
    pub(crate) fn wait(
        self: &Arc<Self>,
        file: File,
        deadline: Instant,
    ) -> Result<Option<File>, Error> {
        let mut patience = PATIENCE;
        let mut state = self.state();
        if let State::Empty = *state {
            let waiter = Arc::clone(self);
            let thread = thread::Builder::new().name("litelease-filelock".into());
            let started = thread.spawn(move || waiter.queue());
            started.map_err(|error| file::failed(&self.side, error))?;
        }
        loop {
            *state = State::Waiting { wanted: true };
            let left = deadline.saturating_duration_since(Instant::now());
            let is_waiting = |state: &mut State| matches!(state, State::Waiting { .. });
            let waited = self.changed.wait_timeout_while(state, patience.min(left), is_waiting);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if let State::Done(done) = mem::replace(&mut *state, State::Waiting { wanted: false }) {
                *state = State::Empty;
                return done.map(Some);
            }
            if file::try_lock(&file, &self.side)? {
                return Ok(Some(file));
            }
            if left <= patience {
                return Ok(None);
            }
            patience *= 2;
        }
    }

    /// Runs on the helper thread: waits in the queue, then for the lock.
    fn queue(&self) {
        let head = Head::wait(&self.side);
        if self.is_given_up() {
            return;
        }
        let locked = self.lock();
        let mut state = self.state();
        *state = match (&*state, locked) {
            (State::Waiting { wanted: true }, locked) => State::Done(locked),
            (_, Ok(file)) => {
                // Closing the file is not enough if a child was forked meanwhile: it has the file
                // open, too.
                let _ = file.unlock();
                State::Empty
            }
            (_, Err(_)) => State::Empty,
        };
        drop(state);
        self.changed.notify_all();
        drop(head);
    }

    /// Gives up the place if no caller waits any more. Returns whether it did.
    fn is_given_up(&self) -> bool {
        let mut state = self.state();
        let is_unwanted = matches!(*state, State::Waiting { wanted: false });
        if is_unwanted {
            *state = State::Empty;
        }
        is_unwanted
    }

    /// Opens and locks the file. Not earlier: the file may have been replaced while this thread
    /// waited.
    fn lock(&self) -> Result<File, Error> {
        let file = self.side.open()?;
        file::lock(&file, &self.side)?;
        Ok(file)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
