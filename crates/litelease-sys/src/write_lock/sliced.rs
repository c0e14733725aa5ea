//! A lock that is waited for in slices, for callers that must do something else in between.

use std::fs::File;
use std::mem;
use std::time::{Duration, Instant};

use crate::write_lock::lock::Attempt;
use crate::write_lock::{Error, Waiting, WriteLock};

/// A lock that is waited for in slices: an interpreter runs its signal handlers in between. The
/// place in the queue is kept meanwhile. Created by [`WriteLock::into_sliced`].
///
/// It is not bound to a thread, and has one request at a time. Dropping it unlocks.
///
/// ```
/// use std::time::Duration;
/// use litelease_sys::write_lock::{Waiting, WriteLock};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("data.db.lock");
/// let (timeout, slice) = (Duration::from_secs(30), Duration::from_millis(10));
/// let mut first = WriteLock::new(&path).into_sliced(Waiting::Fair);
/// let mut second = WriteLock::new(&path).into_sliced(Waiting::Fair);
/// assert!(first.wait(timeout, slice)?);
/// assert!(!second.wait(timeout, slice)?, "it is in the queue now");
/// first.end();
/// while !second.wait(timeout, slice)? {}
/// # Ok::<(), litelease_sys::write_lock::Error>(())
/// ```
#[derive(Debug)]
pub struct SlicedLock {
    lock: WriteLock,
    waiting: Waiting,
    request: LockRequest,
}

#[derive(Debug)]
enum LockRequest {
    None,
    Waiting(Attempt),
    Held(File),
}

impl SlicedLock {
    pub(crate) fn new(lock: WriteLock, waiting: Waiting) -> Self {
        SlicedLock { lock, waiting, request: LockRequest::None }
    }

    /// Waits for the lock for at most `slice`. Returns whether it is held now.
    ///
    /// The first call begins the request, which fails when it has not got the lock within
    /// `timeout`. The following ones go on with it; their `timeout` does not count. A request that
    /// failed is over.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_sys::write_lock::{Error, Waiting, WriteLock};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("lock");
    /// # let mut first = WriteLock::new(&path).into_sliced(Waiting::Fair);
    /// # let mut second = WriteLock::new(&path).into_sliced(Waiting::Fair);
    /// assert!(first.wait(Duration::ZERO, Duration::ZERO)?);
    /// let failed = second.wait(Duration::ZERO, Duration::ZERO);
    /// assert!(matches!(failed, Err(Error::Timeout { holder: Some(_), .. })));
    /// # Ok::<(), litelease_sys::write_lock::Error>(())
    /// ```
    pub fn wait(&mut self, timeout: Duration, slice: Duration) -> Result<bool, Error> {
        if self.lock.is_inherited() {
            return Err(Error::Forked);
        }
        if let LockRequest::None = self.request {
            self.request = LockRequest::Waiting(Attempt::new(timeout, self.waiting));
        }
        let LockRequest::Waiting(attempt) = &mut self.request else { return Ok(true) };
        let locked = self.lock.go_on(attempt, Instant::now().checked_add(slice));
        self.request = match locked {
            Ok(None) => return Ok(false),
            Ok(Some(file)) => LockRequest::Held(file),
            Err(error) => {
                self.request = LockRequest::None;
                return Err(error);
            }
        };
        Ok(true)
    }

    /// Unlocks, or gives up the place in the queue. Does nothing if there is no request, and in a
    /// forked child, whose parent has the lock.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_sys::write_lock::{Waiting, WriteLock};
    /// # let folder = tempfile::tempdir().unwrap();
    /// let mut lock = WriteLock::new(folder.path().join("lock")).into_sliced(Waiting::Fair);
    /// lock.end();
    /// assert!(lock.wait(Duration::ZERO, Duration::ZERO)?);
    /// lock.end();
    /// # Ok::<(), litelease_sys::write_lock::Error>(())
    /// ```
    pub fn end(&mut self) {
        let request = mem::replace(&mut self.request, LockRequest::None);
        match request {
            // Its state may be locked for ever, by a thread that was not forked with it.
            LockRequest::Waiting(attempt) if self.lock.is_inherited() => mem::forget(attempt),
            LockRequest::Held(file) if !self.lock.is_inherited() => {
                // Closing the file is not enough if a child was forked meanwhile: it has the file
                // open, too.
                let _ = file.unlock();
            }
            _ => {}
        }
    }
}

impl Drop for SlicedLock {
    fn drop(&mut self) {
        self.end();
    }
}
