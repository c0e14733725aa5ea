//! Finds the process that is writing a database file.

use std::fs;

use litelease_sys::{FileLock, LockKind, held_locks};

/// The bytes that SQLite's writers lock: in the -shm of a file in WAL mode, in the file itself
/// otherwise.
const WAL_WRITE_LOCK: u64 = 120;
const RESERVED_LOCK: u64 = 0x4000_0001;

/// Returns the process that has the write lock of a database file, if the system shows it.
pub fn write_lock_pid(path: &str) -> Option<u32> {
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
