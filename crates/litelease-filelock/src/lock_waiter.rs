//! A place in the queue for the lock.
//!
//! A thread that waits for a file cannot be called back at a deadline. So another thread waits. When the deadline
//! comes first, its place serves the next one who asks through the same handle; if nobody does, it is given up unused
//! at once. There is never more than one such thread per handle; that of a handle which is gone stays until its turn
//! comes.

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
    /// Nobody waits.
    Empty,
    /// A thread waits, and somebody wants what it will get, or does not any more.
    Waiting { wanted: bool },
    /// It has got the lock, or an error.
    Done(Result<File, Error>),
}

/// How long the queue is trusted at first. It moves on whenever somebody unlocks, unless its head is stopped.
const PATIENCE: Duration = Duration::from_millis(50);

impl LockWaiter {
    /// A place in the queue for the lock on this file.
    pub(crate) fn new(side: SideFile) -> Self {
        LockWaiter { side, state: Mutex::new(State::Empty), changed: Condvar::new() }
    }

    /// Waits in the queue until the lock is had. `None` if the deadline came first.
    ///
    /// The head of the queue may be stopped, or wait for a file that is no longer at the path. So the lock on `file` is
    /// tried past the queue as well: seldom, and ever more seldom, for that is not fair, and at the deadline.
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

    /// What the waiting thread does.
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
                // Closing it would not do: a process that was forked off meanwhile may have it open, too.
                let _ = file.unlock();
                State::Empty
            }
            (_, Err(_)) => State::Empty,
        };
        drop(state);
        self.changed.notify_all();
        drop(head);
    }

    /// Gives up the place if nobody wants it any more.
    fn is_given_up(&self) -> bool {
        let mut state = self.state();
        let is_unwanted = matches!(*state, State::Waiting { wanted: false });
        if is_unwanted {
            *state = State::Empty;
        }
        is_unwanted
    }

    /// Opens the file as late as that: it may be another one than when the waiting began.
    fn lock(&self) -> Result<File, Error> {
        let file = self.side.open()?;
        file::lock(&file, &self.side)?;
        Ok(file)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
