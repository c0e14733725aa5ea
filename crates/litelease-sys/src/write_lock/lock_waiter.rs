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

use crate::SideFile;

use crate::write_lock::queue::Head;
use crate::write_lock::{Error, file};

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
    /// A thread waits. `wanted` is true while a caller still waits for the lock.
    Waiting { wanted: bool },
    /// The thread has got the lock, or an error.
    Done(Result<File, Error>),
}

/// How long a caller waits before it first tries the lock past the queue. The queue moves with
/// every unlock, unless its head is a stopped process.
const PATIENCE: Duration = Duration::from_millis(50);

/// One caller's wait in the queue. Dropping it gives up the place, or the lock that has come.
///
/// The head of the queue may be a stopped process, or wait for a file that is no longer at the
/// path. So the lock on `file` is also tried past the queue: at growing intervals, because that is
/// unfair, and at the deadline.
#[derive(Debug)]
pub(crate) struct QueuedWait {
    waiter: Arc<LockWaiter>,
    /// There until it is locked.
    file: Option<File>,
    deadline: Instant,
    patience: Duration,
    next_try: Instant,
}

/// How far a wait has come.
#[derive(Debug)]
pub(crate) enum Waited {
    /// The file is locked.
    Locked(File),
    /// The deadline came first.
    TimedOut,
    /// Neither yet: the caller wants the answer now.
    NotYet,
}

impl QueuedWait {
    /// Takes a place in the queue, or takes over the one that an earlier wait has left.
    pub(crate) fn new(
        waiter: &Arc<LockWaiter>,
        file: File,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let mut state = waiter.state();
        if let State::Empty = *state {
            let helper = Arc::clone(waiter);
            let thread = thread::Builder::new().name("litelease lock".into());
            let started = thread.spawn(move || helper.queue());
            started.map_err(|error| file::failed(&waiter.side, error))?;
        }
        *state = State::Waiting { wanted: true };
        drop(state);
        let (patience, waiter) = (PATIENCE, Arc::clone(waiter));
        let (file, next_try) = (Some(file), Instant::now() + patience);
        Ok(QueuedWait { waiter, file, deadline, patience, next_try })
    }

    /// Waits for the lock until the deadline, or until `until` if that is earlier. The place in
    /// the queue is kept in between.
    pub(crate) fn go_on(&mut self, until: Instant) -> Result<Waited, Error> {
        let mut state = self.waiter.state();
        loop {
            let next = until.min(self.deadline).min(self.next_try);
            let left = next.saturating_duration_since(Instant::now());
            let is_waiting = |state: &mut State| matches!(state, State::Waiting { .. });
            let waited = self.waiter.changed.wait_timeout_while(state, left, is_waiting);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            match mem::replace(&mut *state, State::Empty) {
                State::Done(done) => return done.map(Waited::Locked),
                waiting => *state = waiting,
            }
            let now = Instant::now();
            let is_over = now >= self.deadline;
            if is_over || now >= self.next_try {
                if let Some(file) = self.file.take() {
                    if file::try_lock(&file, &self.waiter.side)? {
                        return Ok(Waited::Locked(file));
                    }
                    self.file = Some(file);
                }
                self.patience *= 2;
                self.next_try = now + self.patience;
            }
            if is_over {
                return Ok(Waited::TimedOut);
            }
            if now >= until {
                return Ok(Waited::NotYet);
            }
        }
    }
}

impl Drop for QueuedWait {
    fn drop(&mut self) {
        let mut state = self.waiter.state();
        match &*state {
            State::Empty => {}
            State::Waiting { .. } => *state = State::Waiting { wanted: false },
            State::Done(done) => {
                if let Ok(file) = done {
                    let _ = file.unlock();
                }
                *state = State::Empty;
            }
        }
    }
}

impl LockWaiter {
    /// Creates a waiter for the lock on this file. Queues nowhere yet.
    pub(crate) fn new(side: SideFile) -> Self {
        LockWaiter { side, state: Mutex::new(State::Empty), changed: Condvar::new() }
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
