//! The queue for the lock.
//!
//! The system wakes the waiters of a file lock one after the other. But a process that has just
//! unlocked locks again before the woken one runs. So there is a second file. The process that has
//! locked the second file is the head of the queue, and only the head waits for the lock. All
//! others wait for the second file, also the one that has just unlocked.
//!
//! The queue is advisory: losing it costs fairness, never exclusion. Where the second file cannot
//! be used, all processes wait for the lock itself. The first waiter creates the file; it stays
//! empty and is never deleted.

use std::fs::{File, TryLockError};
use std::thread;
use std::time::Duration;

use crate::SideFile;

use crate::write_lock::file;

/// The head of the queue, held until this is dropped.
#[derive(Debug)]
pub(crate) struct Head(File);

/// A process that has just unlocked would queue before the next head has woken up. This pause lets
/// the head go first.
const HEAD_START: Duration = Duration::from_micros(200);

impl Head {
    /// Waits to become the head. Returns `None` if the queue file cannot be used.
    pub(crate) fn wait(lock: &SideFile) -> Option<Self> {
        let side = beside(lock);
        thread::sleep(HEAD_START);
        let file = side.open().ok()?;
        file::lock(&file, &side).ok()?;
        Some(Head(file))
    }
}

impl Drop for Head {
    fn drop(&mut self) {
        // Closing the file is not enough if a child was forked meanwhile: it has the file open,
        // too.
        let _ = self.0.unlock();
    }
}

/// Checks whether the queue is empty. Without a queue file no process has ever waited.
pub(crate) fn is_empty(lock: &SideFile) -> bool {
    let Ok(Some(file)) = beside(lock).open_to_read() else { return true };
    // A shared lock: processes that check do not block each other.
    match file.try_lock_shared() {
        Ok(()) => {
            let _ = file.unlock();
            true
        }
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => true,
    }
}

fn beside(lock: &SideFile) -> SideFile {
    lock.and(".queue")
}
