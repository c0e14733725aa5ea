//! The write lock for Python's `SingleWriter`: the lock and the queue of the Rust `SingleWriter`
//! and of `litelease write`, and the turns of the threads that share a writer.
//!
//! The capsule of a request records what its block has taken, and gives it back when it is freed.
//! So an exception between two bytecodes loses nothing.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use litelease_sys::write_lock::{Error, LockState, SlicedLock, Waiting, WriteLock};

use crate::python::api::{
    Boxed, InCapsule, Object, Result, boxed, capsule_of, in_box, in_capsule, integer, string, tuple,
};
use crate::python::holds::{SLICE, interruptible};
use crate::python::session::Failed;
use crate::python::this_process;
use crate::python::waiting::seconds;
use crate::python::{Context, raise};

const FORKED: &str =
    "this process was forked since the writer was opened: open a new one in the child";
const REENTERED: &str =
    "this thread already holds the write lock through this writer: use the connection that it has";

/// The lock of a writer. Only the request whose turn it is uses it.
struct PythonLock {
    process: u64,
    /// The request whose turn it is, and its thread.
    turn: Mutex<Option<(u64, ThreadId)>>,
    changed: Condvar,
    lock: Mutex<SlicedLock>,
}

impl InCapsule for PythonLock {
    const NAME: &'static CStr = c"litelease.write_lock";
}

impl PythonLock {
    fn is_inherited(&self) -> bool {
        self.process != this_process()
    }

    fn sliced(&self) -> MutexGuard<'_, SlicedLock> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self) -> MutexGuard<'_, Option<(u64, ThreadId)>> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request of a block. It is over when it is dropped.
struct Request {
    number: u64,
    lock: Arc<PythonLock>,
}

impl Boxed for Request {
    const NAME: &'static CStr = c"litelease.write_request";
}

impl Drop for Request {
    fn drop(&mut self) {
        self.end();
    }
}

impl Request {
    fn has(&self, turn: Option<(u64, ThreadId)>) -> bool {
        turn.is_some_and(|(number, _)| number == self.number)
    }

    /// Unlocks, or leaves the queue, and ends the turn. A forked process only closes its copies.
    fn end(&self) {
        if self.lock.is_inherited() {
            if let (Ok(turn), Ok(mut sliced)) =
                (self.lock.turn.try_lock(), self.lock.lock.try_lock())
                && self.has(*turn)
            {
                sliced.end();
            }
            return;
        }
        let mut turn = self.lock.turn();
        if self.has(*turn) {
            self.lock.sliced().end();
            *turn = None;
            self.lock.changed.notify_all();
        }
    }

    /// Waits for its turn until `until`. Returns whether it has it; none if its thread has it by
    /// another request.
    fn take_turn(&self, until: Instant) -> Option<bool> {
        let (mut turn, me) = (self.lock.turn(), thread::current().id());
        loop {
            match *turn {
                None => {
                    *turn = Some((self.number, me));
                    return Some(true);
                }
                Some((_, thread)) if thread == me => return None,
                Some(_) => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Some(false);
            }
            let waited = self.lock.changed.wait_timeout(turn, left);
            turn = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Makes a lock in a file, for users who may write the database. Its arguments are both paths as
/// bytes, and the first and the longest pause in seconds, or 0 to queue. Opens nothing.
pub(crate) fn lock(_: &'static Context, given: Object) -> Result<Object> {
    let (path, database) = (given.item(0)?, given.item(1)?);
    let (first, longest) = (seconds(&given.item(2)?), seconds(&given.item(3)?));
    let waiting = match first.is_zero() {
        true => Waiting::Fair,
        false => Waiting::Polled { first, longest },
    };
    let sliced = WriteLock::new(path_of(&path)?).like(path_of(&database)?).into_sliced(waiting);
    capsule_of(Arc::new(PythonLock {
        process: this_process(),
        turn: Mutex::default(),
        changed: Condvar::new(),
        lock: Mutex::new(sliced),
    }))
}

/// Makes a request for a lock, which has taken nothing yet.
pub(crate) fn request(_: &'static Context, given: Object) -> Result<Object> {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    let lock = in_capsule::<PythonLock>(&given.item(0)?)?;
    boxed(Request { number: NUMBERS.fetch_add(1, Ordering::Relaxed), lock })
}

/// Waits for the turn of a request among the threads, for so many seconds. Answers whether it has
/// it.
pub(crate) fn turn(context: &'static Context, given: Object) -> Result<Object> {
    let answer =
        wait_in_slices(context, &given, |request, until| match request.take_turn(until) {
            Some(false) => Ok(None),
            Some(true) => Ok(Some(true)),
            None => Err(REENTERED),
        })?;
    match answer {
        Ok(is_taken) => integer(i64::from(is_taken)),
        Err(text) => raise(context, Failed::Kind("LiteleaseError", text.into())),
    }
}

/// Waits for the lock, for so many seconds, once it is the turn of the request. Answers whether it
/// has it, or the number of the system's error and a text.
pub(crate) fn wait(context: &'static Context, given: Object) -> Result<Object> {
    let timeout = seconds(&given.item(1)?);
    let answer = wait_in_slices(context, &given, |request, until| {
        let slice = until.saturating_duration_since(Instant::now());
        let is_held = request.lock.sliced().wait(timeout, slice)?;
        Ok(is_held.then_some(true))
    })?;
    match answer {
        Ok(is_held) => integer(i64::from(is_held)),
        Err(Error::Timeout { .. }) => integer(0),
        Err(error) => {
            let number = match &error {
                Error::Io { error, .. } => error.raw_os_error().unwrap_or(0),
                _ => 0,
            };
            tuple(vec![integer(number.into())?, string(&error.to_string())?])
        }
    }
}

/// Calls `step` with the request until it has an answer or the seconds are over, and lets Python
/// handle signals in between. `step` waits until the instant that it gets.
fn wait_in_slices<E>(
    context: &'static Context,
    given: &Object,
    step: impl Fn(&Request, Instant) -> std::result::Result<Option<bool>, E>,
) -> Result<std::result::Result<bool, E>> {
    let (capsule, time) = (given.item(0)?, seconds(&given.item(1)?));
    let (request, end) = (in_box::<Request>(&capsule)?, Instant::now() + time);
    if request.lock.is_inherited() {
        raise(context, Failed::Kind("LiteleaseError", FORKED.into()))?;
    }
    let (answer, handled) = interruptible(
        context,
        || Ok(()),
        |goes_on| loop {
            match step(request, end.min(Instant::now() + SLICE)).transpose() {
                Some(answer) => break Some(answer),
                None if !goes_on() => break None,
                // A lock has a deadline of its own, and says what it waited for.
                None if Instant::now() >= end + Duration::from_millis(1) => break Some(Ok(false)),
                None => {}
            }
        },
    );
    handled?;
    answer.ok_or_else(|| context.names.ending())
}

/// Checks whether it is the turn of a request.
pub(crate) fn has_turn(_: &'static Context, given: Object) -> Result<Object> {
    let capsule = given.item(0)?;
    let request = in_box::<Request>(&capsule)?;
    let turn = match request.lock.is_inherited() {
        true => request.lock.turn.try_lock().map_or(None, |turn| *turn),
        false => *request.lock.turn(),
    };
    integer(i64::from(request.has(turn)))
}

/// Gives back what a request has taken. Doing it again changes nothing.
pub(crate) fn end(context: &'static Context, given: Object) -> Result<Object> {
    in_box::<Request>(&given.item(0)?)?.end();
    context.names.none()
}

/// Answers the process that holds the lock in a file and since when, or None, and whether it has
/// ended, so that a process which it forked holds the lock. One that has not signed the file has no
/// time.
pub(crate) fn holder(context: &'static Context, given: Object) -> Result<Object> {
    let path = given.item(0)?;
    let (holder, is_gone) = match WriteLock::new(path_of(&path)?).state() {
        Ok(LockState::Held(Some(holder))) => {
            let known = vec![integer(holder.pid.into())?, string(&holder.since)?];
            (tuple(known)?, holder.is_gone())
        }
        Ok(LockState::Unsigned(pid)) => {
            (tuple(vec![integer(pid.into())?, context.names.none()?])?, false)
        }
        _ => (context.names.none()?, false),
    };
    tuple(vec![holder, integer(i64::from(is_gone))?])
}

/// Returns a path that Python has encoded.
fn path_of(given: &Object) -> Result<&Path> {
    Ok(Path::new(OsStr::from_bytes(given.bytes()?)))
}
