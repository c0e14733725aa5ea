//! The queue for the lock.
//!
//! The system wakes those who wait for a lock one after the other, but whoever has just unlocked asks again before the
//! one who was woken runs, and is let in. So there is a second file. Whoever has locked that one is the head of
//! the queue, and only the head waits for the lock; all others wait for the second file, also who has just unlocked.
//!
//! It is manners and not the lock: where the file cannot be used, everybody waits for the lock itself. It is made when
//! somebody has to wait for the first time, stays empty and is never deleted.

use std::fs::{File, TryLockError};
use std::thread;
use std::time::Duration;

use litelease_files::SideFile;

use crate::file;

/// The head of the queue, until this is dropped.
#[derive(Debug)]
pub(crate) struct Head(File);

/// Whoever has just unlocked comes back at the very moment when the next head is woken, and would be there first.
const HEAD_START: Duration = Duration::from_micros(200);

impl Head {
    /// Waits to be the head. `None` if there can be no queue.
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
        // Closing the file would not do: a process that was forked off meanwhile may have it open, too.
        let _ = self.0.unlock();
    }
}

/// Whether nobody waits. Nobody ever has where there is no file.
pub(crate) fn is_empty(lock: &SideFile) -> bool {
    let Ok(Some(file)) = beside(lock).open_to_read() else { return true };
    // Those who look are not in each other's way.
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
