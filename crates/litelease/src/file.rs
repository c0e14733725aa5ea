//! The file behind a connection: whether it is still there, and who is writing it.
//!
//! The database is never opened here: closing it again would drop SQLite's locks on it.

use std::ffi::c_int;
use std::fs;

use litelease_sys::{FileLock, LockKind, held_locks};
use rusqlite::{Connection, ffi};

/// Checks whether the file of a connection was moved, deleted or replaced since it was opened.
/// SQLite still uses the old file, where no other process sees what is granted.
pub(crate) fn has_moved(connection: &Connection) -> bool {
    let mut moved: c_int = 0;
    // SAFETY: the connection is open, and SQLite writes one int.
    let told = unsafe {
        ffi::sqlite3_file_control(
            connection.handle(),
            c"main".as_ptr(),
            ffi::SQLITE_FCNTL_HAS_MOVED,
            (&raw mut moved).cast(),
        )
    };
    told == ffi::SQLITE_OK && moved != 0
}

/// The bytes that SQLite's writers lock: in the -shm of a file in WAL mode, in the file itself
/// otherwise.
const WAL_WRITE_LOCK: u64 = 120;
const RESERVED_LOCK: u64 = 0x4000_0001;

/// Returns the process that holds the write lock of a database file, if the system tells.
pub(crate) fn write_lock_pid(path: &str) -> Option<u32> {
    let locks = held_locks()?;
    let holder = |path: &str, byte: u64| {
        let file = fs::metadata(path).ok()?;
        let excludes = |lock: &&FileLock| {
            lock.kind == LockKind::Posix
                && lock.is_exclusive
                && lock.is_on(&file)
                && (lock.first..=lock.last).contains(&byte)
        };
        locks.iter().find(excludes)?.pid
    };
    holder(&format!("{path}-shm"), WAL_WRITE_LOCK).or_else(|| holder(path, RESERVED_LOCK))
}
