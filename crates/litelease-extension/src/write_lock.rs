//! The write lock as C functions, for hosts that write under it on their own SQLite connection,
//! such as Python.
//!
//! A host waits in slices, so that it can run its signal handlers in between. The handle records
//! what it has taken, under a ticket that the host chooses: a host that was interrupted between two
//! calls ends the ticket, and nothing is lost.

use std::ffi::{c_int, c_uchar};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{process, ptr, slice};

use litelease_sys::path_of;
use litelease_sys::write_lock::{Error, LockState, SlicedLock, Waiting, WriteLock};

/// A write lock of the host's.
pub(crate) struct CWriteLock {
    lock: Mutex<SlicedLock>,
    /// The ticket of the present request, or 0. It is written under the lock above.
    ticket: AtomicU64,
    pid: u32,
}

/// The answers of `litelease_write_lock_wait`.
const HELD: c_int = 0;
const NOT_YET: c_int = 1;
const TIMED_OUT: c_int = 2;
const REFUSED: c_int = 3;
const FORKED: c_int = 4;

/// The details of an answer: a text in `text`, cut to `size` bytes, and a number.
#[repr(C)]
pub(crate) struct CNote {
    /// The number of the system's error, or 0. For a holder, its process.
    number: i64,
    /// How many bytes of text there are.
    length: usize,
    text: [c_uchar; 1024],
}

/// Makes a handle on the lock in the file `path`, for users who may write the file `database`.
/// Opens nothing. Returns null if that fails. Waiters queue if `first_ms` is 0, and otherwise poll,
/// with pauses that grow from `first_ms` to `longest_ms`.
///
/// # Safety
/// The pointers must be to as many bytes as the lengths say.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn litelease_write_lock_new(
    path: *const c_uchar,
    path_length: usize,
    database: *const c_uchar,
    database_length: usize,
    first_ms: u64,
    longest_ms: u64,
) -> *mut CWriteLock {
    // SAFETY: as promised.
    let (path, database) =
        unsafe { (as_path(path, path_length), as_path(database, database_length)) };
    let (first, longest) = (Duration::from_millis(first_ms), Duration::from_millis(longest_ms));
    let waiting = match first_ms {
        0 => Waiting::Fair,
        _ => Waiting::Polled { first, longest },
    };
    let made = catch_unwind(|| {
        let lock = Mutex::new(WriteLock::new(path).like(database).into_sliced(waiting));
        Box::new(CWriteLock { lock, ticket: AtomicU64::new(0), pid: process::id() })
    });
    made.map_or(ptr::null_mut(), Box::into_raw)
}

/// Waits for the lock, for at most `slice_ms`, as the request `ticket`, which is any number but 0.
/// A new request ends the one before it, and fails after `timeout_ms`.
///
/// Returns 0 if the lock is held now, 1 if not yet, and an error after which there is no request: 2
/// for a timeout; 3 if the lock file cannot be used, with the system's error number, if there is
/// one, and a text in `note`; 4 in a forked child.
///
/// # Safety
/// `lock` must come from `litelease_write_lock_new` and not be freed yet; `note` must be valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn litelease_write_lock_wait(
    lock: *const CWriteLock,
    ticket: u64,
    timeout_ms: u64,
    slice_ms: u64,
    note: *mut CNote,
) -> c_int {
    // SAFETY: as promised.
    let (lock, note) = unsafe { (&*lock, &mut *note) };
    note.set(0, "");
    if lock.is_inherited() {
        return FORKED;
    }
    let waited = catch_unwind(AssertUnwindSafe(|| {
        let mut sliced = lock.sliced();
        if lock.ticket.swap(ticket, Ordering::SeqCst) != ticket {
            sliced.end();
        }
        sliced.wait(Duration::from_millis(timeout_ms), Duration::from_millis(slice_ms))
    }));
    match waited {
        Ok(Ok(true)) => HELD,
        Ok(Ok(false)) => NOT_YET,
        Ok(Err(Error::Timeout { .. })) => TIMED_OUT,
        Ok(Err(Error::Forked)) => FORKED,
        Ok(Err(error)) => {
            let number = match &error {
                Error::Io { error, .. } => error.raw_os_error().unwrap_or(0),
                _ => 0,
            };
            note.set(number.into(), &error.to_string());
            REFUSED
        }
        Err(_) => {
            note.set(0, "litelease: internal error");
            REFUSED
        }
    }
}

/// Ends the request `ticket`: unlocks, or leaves the queue. Does nothing if another request is the
/// present one, and in a forked child. `_unused` lets a host pass this function as the callback of
/// a weak reference.
///
/// # Safety
/// As for `litelease_write_lock_wait`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn litelease_write_lock_end(
    lock: *const CWriteLock,
    ticket: u64,
    _unused: *const c_uchar,
) {
    // SAFETY: as promised.
    let lock = unsafe { &*lock };
    // Another thread may be waiting under another ticket: that is checked first, without waiting
    // for it.
    if lock.ticket.load(Ordering::SeqCst) != ticket {
        return;
    }
    let _ = catch_unwind(AssertUnwindSafe(|| {
        if lock.is_inherited() {
            // Closes the child's copies. A thread that has the handle locked was not forked with
            // it.
            return lock.lock.try_lock().map_or((), |mut sliced| sliced.end());
        }
        let mut sliced = lock.sliced();
        if lock.ticket.load(Ordering::SeqCst) == ticket {
            sliced.end();
            lock.ticket.store(0, Ordering::SeqCst);
        }
    }));
}

/// Writes the process that holds the lock, and since when, into `note`. Returns 1 if it has signed
/// the lock file, 2 if it has and is gone, so that a process that it forked holds the lock, 3 for a
/// process that has not signed it, and 0 if it is unknown or the lock is free.
///
/// # Safety
/// As for `litelease_write_lock_new`; `note` must be valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn litelease_write_lock_holder(
    path: *const c_uchar,
    path_length: usize,
    note: *mut CNote,
) -> c_int {
    // SAFETY: as promised.
    let (path, note) = unsafe { (as_path(path, path_length), &mut *note) };
    match catch_unwind(|| WriteLock::new(path).state()) {
        Ok(Ok(LockState::Held(Some(holder)))) => {
            note.set(holder.pid.into(), &holder.since);
            if holder.is_gone() { 2 } else { 1 }
        }
        Ok(Ok(LockState::Unsigned(pid))) => {
            note.set(pid.into(), "");
            3
        }
        _ => 0,
    }
}

/// Ends the present request and frees the lock. In a forked child it leaves everything as it is.
///
/// # Safety
/// `lock` must be null, or come from `litelease_write_lock_new`, and not be used any more.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn litelease_write_lock_free(lock: *mut CWriteLock) {
    // SAFETY: as promised.
    if let Some(inherited) = unsafe { lock.as_ref() }.map(CWriteLock::is_inherited)
        && !inherited
    {
        // SAFETY: as promised.
        let lock = unsafe { Box::from_raw(lock) };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(lock)));
    }
}

impl CWriteLock {
    fn is_inherited(&self) -> bool {
        self.pid != process::id()
    }

    fn sliced(&self) -> MutexGuard<'_, SlicedLock> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CNote {
    fn set(&mut self, number: i64, text: &str) {
        let length = text.len().min(self.text.len());
        self.text[..length].copy_from_slice(&text.as_bytes()[..length]);
        (self.number, self.length) = (number, length);
    }
}

/// # Safety
/// The pointer must be to that many bytes, which live as long as the path.
unsafe fn as_path<'a>(start: *const c_uchar, length: usize) -> &'a Path {
    // SAFETY: as promised.
    path_of(unsafe { slice::from_raw_parts(start, length) })
}
