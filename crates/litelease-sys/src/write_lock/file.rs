//! Locks the lock file, and reads and writes its holder's line.

use std::fs::{File, Metadata, TryLockError};
use std::io::{self, Seek, Write};
use std::time::Duration;

use crate::{FileLock, LockKind, SideFile, held_locks};

use crate::write_lock::holder::LONGEST;
use crate::write_lock::{Error, Holder};

/// Waits until the file is locked.
pub(crate) fn lock(file: &File, side: &SideFile) -> Result<(), Error> {
    loop {
        match file.lock() {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(side, error)),
        }
    }
}

/// Locks the file if it is free. Returns whether it did.
pub(crate) fn try_lock(file: &File, side: &SideFile) -> Result<bool, Error> {
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(TryLockError::Error(error)) => return Err(failed(side, error)),
        }
    }
}

/// How many lists of locks are read before a lock that is in none of them counts as free.
const MOST_LISTS: usize = 4;

/// Checks whether the file is locked, without trying to lock it. Returns `None` if the system
/// cannot say.
pub(crate) fn is_locked(file: &File) -> Option<bool> {
    Some(find_lock(&file.metadata().ok()?)?.is_some())
}

/// Finds the lock on a file. Returns `None` if the system cannot say.
fn find_lock(file: &Metadata) -> Option<Option<FileLock>> {
    // The system does not list all locks as they are at one moment: while others come and go, a
    // list may lack one that is held.
    for _ in 0..MOST_LISTS {
        let found = held_locks()?.into_iter().find(|lock| is_flock(lock, file));
        if found.is_some() {
            return Some(found);
        }
    }
    Some(None)
}

fn is_flock(lock: &FileLock, file: &Metadata) -> bool {
    lock.kind == LockKind::Flock && lock.is_on(file)
}

/// The process that holds a lock now.
pub(crate) enum Present {
    /// The one that has signed the lock file. If it has ended, a process that it forked holds the
    /// lock.
    Signed(Holder),
    /// One that has not signed it, such as flock(1).
    Unsigned(u32),
    /// The system does not show it.
    Unknown,
}

/// Finds out which process holds a lock that is not free. The line in the file may be an earlier
/// holder's: it counts if the system names the same process, or names none and that one runs.
pub(crate) fn present_holder(side: &SideFile) -> Present {
    match (signed(side), locker(side)) {
        (Some(holder), Some(pid)) if holder.pid == pid => Present::Signed(holder),
        (Some(holder), None) if !holder.is_gone() => Present::Signed(holder),
        // Another process may have taken and signed the lock between the two reads.
        (_, Some(pid)) => match signed(side) {
            Some(holder) if holder.pid == pid => Present::Signed(holder),
            _ => Present::Unsigned(pid),
        },
        (_, None) => Present::Unknown,
    }
}

/// Returns the process that has locked the file, if the system names it.
fn locker(side: &SideFile) -> Option<u32> {
    let file = side.open_to_read().ok()??.metadata().ok()?;
    find_lock(&file)??.pid
}

/// Returns the error that another process has kept the lock.
pub(crate) fn timed_out(side: &SideFile, after: Duration) -> Error {
    let (holder, unsigned) = match present_holder(side) {
        Present::Signed(holder) => (Some(holder), None),
        Present::Unsigned(pid) => (None, Some(pid)),
        Present::Unknown => (None, None),
    };
    Error::Timeout { after, holder, unsigned }
}

/// Writes the holder's line. Errors are ignored: the lock holds without the line.
pub(crate) fn sign(mut file: &File, holder: &Holder) {
    let note = holder.note.as_ref().map_or(String::new(), |note| format!("{note}\n"));
    let _ = file.set_len(0).and_then(|()| file.rewind());
    let _ = file.write_all(format!("{holder}\n{note}").as_bytes());
}

/// Reads the line of the last holder.
pub(crate) fn signed(side: &SideFile) -> Option<Holder> {
    Holder::parse(str::from_utf8(&side.read(LONGEST as u64).ok()??).ok()?)
}

pub(crate) fn failed(side: &SideFile, error: io::Error) -> Error {
    Error::Io { path: side.path().into(), error }
}
