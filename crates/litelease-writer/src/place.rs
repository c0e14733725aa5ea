//! A place in the system's queue for the lock.
//!
//! Polling starves: whoever has just unlocked asks again long before the others wake up. The system's own queue is
//! fair, but a thread that waits in it cannot be called back at a deadline. So another thread waits there. When
//! the deadline comes first, its place serves the next one who asks through the same handle; if nobody does, it
//! gives the lock back unused at once. There is never more than one such thread per handle; that of a handle which is
//! gone stays until it has got the lock and given it back.

use std::fs::File;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use crate::file;

/// At most one thread that waits for the lock.
#[derive(Debug, Default)]
pub(crate) struct Place {
    state: Mutex<State>,
    changed: Condvar,
    /// The file that is waited for.
    id: Mutex<Option<(u64, u64)>>,
}

#[derive(Debug, Default)]
enum State {
    /// Nobody waits.
    #[default]
    Empty,
    /// A thread waits, and somebody wants what it will get, or does not any more.
    Waiting { wanted: bool },
    /// It has got the lock, or an error.
    Done(io::Result<File>),
}

impl Place {
    /// Waits until `file` is locked, in the queue of the system. `None` if the deadline came first.
    ///
    /// The file that comes back may be another one that was opened from the same path before.
    pub(crate) fn wait(
        self: &Arc<Self>,
        file: File,
        deadline: Instant,
    ) -> io::Result<Option<File>> {
        let mut state = self.state();
        match *state {
            State::Empty => {
                let place = Arc::clone(self);
                *self.id.lock().unwrap_or_else(PoisonError::into_inner) = Some(file::id(&file)?);
                let thread = thread::Builder::new().name("litelease-writer".into());
                thread.spawn(move || place.queue(file))?;
                *state = State::Waiting { wanted: true };
            }
            State::Waiting { .. } => *state = State::Waiting { wanted: true },
            State::Done(_) => {}
        }
        loop {
            if let State::Done(_) = *state {
                let State::Done(done) = std::mem::take(&mut *state) else { continue };
                return done.map(Some);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                *state = State::Waiting { wanted: false };
                return Ok(None);
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The file that an earlier wait has left a thread in the queue for.
    pub(crate) fn id(&self) -> Option<(u64, u64)> {
        match *self.state() {
            State::Empty => None,
            _ => *self.id.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// What the waiting thread does.
    fn queue(&self, file: File) {
        let locked = loop {
            match file.lock() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => break done,
            }
        };
        let mut state = self.state();
        *state = match *state {
            State::Waiting { wanted: true } => State::Done(locked.map(|()| file)),
            // Nobody waits any more: closing the file frees the lock.
            _ => State::Empty,
        };
        drop(state);
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
