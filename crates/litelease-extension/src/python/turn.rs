//! Whose turn it is on a connection: one call at a time, also where threads share it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crate::python::api::{Raised, check_signals, without_gil};

/// How often a waiting thread lets Python handle signals.
const LOOK: Duration = Duration::from_millis(50);

/// How long an interpreter that ends waits for the calls of other threads. When it is gone, a thread that comes back to it
/// is ended on the spot, which this library would not survive.
const PATIENCE: Duration = Duration::from_secs(30);

static RUNNING: AtomicUsize = AtomicUsize::new(0);
static IS_ENDING: AtomicBool = AtomicBool::new(false);

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
}

/// A turn that was taken. It is given back when this is dropped.
pub(crate) struct Taken<'t> {
    turn: &'t Turn,
    _counted: Counted,
}

/// A call that is under way or waits for its turn.
pub(crate) struct Counted;

/// The reason why a turn could not be taken.
pub(crate) enum NoTurn {
    /// The thread has it already.
    Reentered,
    /// The interpreter ends.
    Ending,
    /// A signal handler has raised.
    Raised,
}

thread_local! {
    /// Whether this thread ends the interpreter. It may still make calls.
    static ENDS: Cell<bool> = const { Cell::new(false) };
}

impl Turn {
    /// Waits for the turn, without the GIL.
    pub(crate) fn take(&self) -> Result<Taken<'_>, NoTurn> {
        let me = thread::current().id();
        let counted = Counted::new();
        let mut place = Place { turn: self, me, is_waiting: false };
        loop {
            if is_ending() {
                return Err(NoTurn::Ending);
            }
            if place.try_take()? {
                return Ok(Taken { turn: self, _counted: counted });
            }
            without_gil(|| {
                let state = self.state();
                if !state.is_free_for(me) {
                    drop(self.changed.wait_timeout(state, LOOK));
                }
            });
            check_signals().map_err(|Raised| NoTurn::Raised)?;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread's place in the queue, which it leaves when this is dropped.
struct Place<'t> {
    turn: &'t Turn,
    me: ThreadId,
    is_waiting: bool,
}

impl Place<'_> {
    fn try_take(&mut self) -> Result<bool, NoTurn> {
        let mut state = self.turn.state();
        if state.holder == Some(self.me) {
            return Err(NoTurn::Reentered);
        }
        if state.is_free_for(self.me) {
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

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.is_waiting {
            self.turn.state().waiting.retain(|waiting| *waiting != self.me);
            self.turn.changed.notify_all();
        }
    }
}

impl State {
    fn is_free_for(&self, thread: ThreadId) -> bool {
        let is_next = self.waiting.front().is_none_or(|first| *first == thread);
        self.holder.is_none() && is_next
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.turn.state().holder = None;
        self.turn.changed.notify_all();
    }
}

impl Counted {
    fn new() -> Self {
        RUNNING.fetch_add(1, Ordering::SeqCst);
        Counted
    }

    /// Counts a call that needs no turn. None once the interpreter ends.
    pub(crate) fn call() -> Option<Self> {
        let counted = Counted::new();
        (!is_ending()).then_some(counted)
    }
}

/// Checks whether another thread ends the interpreter.
fn is_ending() -> bool {
    IS_ENDING.load(Ordering::SeqCst) && !ENDS.get()
}

impl Drop for Counted {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until no other thread is in a call, and lets no other thread begin one.
pub(crate) fn end_calls() {
    ENDS.set(true);
    IS_ENDING.store(true, Ordering::SeqCst);
    without_gil(|| {
        let deadline = Instant::now() + PATIENCE;
        while RUNNING.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// In a forked child there are no other threads.
pub(crate) fn begin_anew() {
    RUNNING.store(0, Ordering::SeqCst);
}
