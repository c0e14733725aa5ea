//! The turn on a connection: one call at a time, even if threads share it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crate::python::api::{Raised, check_signals, without_gil};

/// How often a waiting thread lets Python handle signals.
const LOOK: Duration = Duration::from_millis(50);

/// How long a thread waits for the `finish` block of another thread: as long as Python's
/// connections wait for a lock.
const BLOCK_PATIENCE: Duration = Duration::from_secs(5);

/// How long an interpreter that ends waits for the calls of other threads. CPython ends a thread
/// that comes back to it later on the spot, which this library would not survive.
const PATIENCE: Duration = Duration::from_secs(30);

/// The calls of one interpreter. A process may have several, and each ends by itself.
#[derive(Default)]
pub(crate) struct Calls {
    running: AtomicUsize,
    /// Counts forks: a call of the parent's is not the child's.
    forks: AtomicUsize,
    is_ending: AtomicBool,
    /// The thread that ends the interpreter. It may still make calls.
    ender: OnceLock<ThreadId>,
}

/// The lock of one connection. Threads get it in the order in which they came.
#[derive(Default)]
pub(crate) struct Turn {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    holder: Option<ThreadId>,
    waiting: VecDeque<ThreadId>,
    /// The thread whose `finish` block is open. Calls of other threads would become part of its
    /// transaction.
    block: Option<ThreadId>,
}

/// A turn that was taken. It is given back when this is dropped.
pub(crate) struct Taken<'t> {
    turn: &'t Turn,
    _counted: Counted<'t>,
}

/// A call that is under way or waits for its turn.
pub(crate) struct Counted<'c> {
    calls: &'c Calls,
    forks: usize,
}

/// The reason why a turn could not be taken.
pub(crate) enum NoTurn {
    /// The thread has it already.
    Reentered,
    /// The interpreter ends.
    Ending,
    /// A signal handler has raised.
    Raised,
    /// Another thread has a `finish` block open.
    Blocked,
}

impl Turn {
    /// Waits for the turn, without the GIL. A call that ends a `finish` block may come from any
    /// thread.
    pub(crate) fn take<'t>(
        &'t self,
        calls: &'t Calls,
        ends_block: bool,
    ) -> Result<Taken<'t>, NoTurn> {
        let me = thread::current().id();
        let counted = calls.count();
        let mut waiter = Waiter { turn: self, me, ends_block, is_waiting: false };
        let mut blocked_since = None;
        loop {
            if calls.are_ending() {
                return Err(NoTurn::Ending);
            }
            if waiter.try_take()? {
                return Ok(Taken { turn: self, _counted: counted });
            }
            without_gil(|| {
                let state = self.state();
                blocked_since = state.block.map(|_| blocked_since.unwrap_or_else(Instant::now));
                if !state.is_free_for(me, ends_block) {
                    drop(self.changed.wait_timeout(state, LOOK));
                }
            });
            if blocked_since.is_some_and(|since| since.elapsed() >= BLOCK_PATIENCE) {
                return Err(NoTurn::Blocked);
            }
            check_signals().map_err(|Raised| NoTurn::Raised)?;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread's entry in the queue, which it leaves when this is dropped.
struct Waiter<'t> {
    turn: &'t Turn,
    me: ThreadId,
    ends_block: bool,
    is_waiting: bool,
}

impl Waiter<'_> {
    fn try_take(&mut self) -> Result<bool, NoTurn> {
        let mut state = self.turn.state();
        if state.holder == Some(self.me) {
            return Err(NoTurn::Reentered);
        }
        if state.is_free_for(self.me, self.ends_block) {
            state.holder = Some(self.me);
            return Ok(true);
        }
        if !self.is_waiting {
            state.waiting.push_back(self.me);
            self.is_waiting = true;
        }
        Ok(false)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.is_waiting {
            self.turn.state().waiting.retain(|waiting| *waiting != self.me);
            self.turn.changed.notify_all();
        }
    }
}

impl State {
    fn is_free_for(&self, thread: ThreadId, ends_block: bool) -> bool {
        let is_next = self.waiting.front().is_none_or(|first| *first == thread);
        // Threads that wait for a block to end must not keep it from ending.
        let may_go = self.block.map_or(is_next, |owner| ends_block || owner == thread);
        self.holder.is_none() && may_go
    }
}

impl Taken<'_> {
    /// Records whether a `finish` block is open now, begun by this thread.
    pub(crate) fn set_block(&self, is_open: bool) {
        self.turn.state().block = is_open.then(|| thread::current().id());
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.turn.state().holder = None;
        self.turn.changed.notify_all();
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        // A child that was forked inside a call has forgotten it.
        if self.calls.forks.load(Ordering::SeqCst) == self.forks {
            self.calls.running.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Calls {
    /// Counts a call that needs no turn. Returns `None` once the interpreter ends.
    pub(crate) fn begin(&self) -> Option<Counted<'_>> {
        let counted = self.count();
        (!self.are_ending()).then_some(counted)
    }

    fn count(&self) -> Counted<'_> {
        self.running.fetch_add(1, Ordering::SeqCst);
        Counted { calls: self, forks: self.forks.load(Ordering::SeqCst) }
    }

    /// Checks whether another thread ends the interpreter.
    pub(crate) fn are_ending(&self) -> bool {
        let me = thread::current().id();
        self.is_ending.load(Ordering::SeqCst) && self.ender.get() != Some(&me)
    }

    /// Waits until no other thread is in a call, and lets no other thread begin one.
    pub(crate) fn end(&self) {
        let _ = self.ender.set(thread::current().id());
        self.is_ending.store(true, Ordering::SeqCst);
        without_gil(|| {
            let deadline = Instant::now() + PATIENCE;
            while self.running.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
        });
    }

    /// In a forked child there are no other threads.
    pub(crate) fn begin_anew(&self) {
        self.forks.fetch_add(1, Ordering::SeqCst);
        self.running.store(0, Ordering::SeqCst);
    }
}
