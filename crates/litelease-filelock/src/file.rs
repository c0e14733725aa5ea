//! Locks the lock file, and reads and writes its holder's line.

use std::fs::{File, TryLockError};
use std::io::{self, Seek, Write};

use litelease_files::{LockKind, SideFile, held_locks};

use crate::holder::LONGEST;
use crate::{Error, Holder};

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

/// Checks whether the file is locked, without trying to lock it. Returns `None` if the system
/// cannot say.
pub(crate) fn is_locked(file: &File) -> Option<bool> {
    let file = file.metadata().ok()?;
    Some(held_locks()?.iter().any(|lock| lock.kind == LockKind::Flock && lock.is_on(&file)))
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
