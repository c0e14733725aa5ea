//! The file behind a connection: whether it is still there, and who is writing it.
//!
//! The database is never opened here: closing it again would drop SQLite's locks on it.

use std::ffi::{CStr, c_int};
use std::fs;
use std::ops::Deref;
use std::ptr;

use litelease_sys::{FileLock, LockKind, held_locks};
use rusqlite::{Connection, OpenFlags, ffi};

use crate::{HoldError, Leases};

/// The file of a connection, to open other connections to it.
///
/// They use the same VFS: those of SQLite lock files in different ways, and two ways on one file
/// exclude nobody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DatabaseFile {
    pub(crate) path: String,
    /// The name of the VFS; none if SQLite does not tell, and then the default one is used.
    pub(crate) vfs: Option<String>,
}

impl DatabaseFile {
    /// Returns the file of a connection. Fails for a database in memory.
    pub(crate) fn behind(leases: &Leases, connection: &Connection) -> Result<Self, HoldError> {
        let path = leases.store().file().ok_or(HoldError::InMemory)?;
        Ok(DatabaseFile { path, vfs: vfs(connection) })
    }

    /// Opens another connection to the file. Never creates it: if it has just been deleted, no
    /// other process would see the new one's rows.
    pub(crate) fn connect(&self) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        match &self.vfs {
            Some(vfs) => Connection::open_with_flags_and_vfs(&self.path, flags, vfs.as_str()),
            None => Connection::open_with_flags(&self.path, flags),
        }
    }
}

impl Deref for DatabaseFile {
    type Target = str;

    fn deref(&self) -> &str {
        &self.path
    }
}

/// Returns the name of the VFS that a connection uses.
fn vfs(connection: &Connection) -> Option<String> {
    let mut vfs: *mut ffi::sqlite3_vfs = ptr::null_mut();
    // SAFETY: the connection is open, and SQLite writes one pointer to a VFS, which lives as long
    // as the connection. Its name ends with a NUL.
    let name = unsafe {
        let told = ffi::sqlite3_file_control(
            connection.handle(),
            c"main".as_ptr(),
            ffi::SQLITE_FCNTL_VFS_POINTER,
            (&raw mut vfs).cast(),
        );
        (told == ffi::SQLITE_OK && !vfs.is_null()).then(|| CStr::from_ptr((*vfs).zName))
    };
    name.map(|name| name.to_string_lossy().into_owned())
}

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
