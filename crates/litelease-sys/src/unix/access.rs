//! Permissions of side files: a user that may write the database may use them.

use std::ffi::CString;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Checks that a file or folder with a secret is private: returns the flaw if other users
/// could read or change it.
///
/// ```
/// # use std::fs::{Permissions, metadata, set_permissions, write};
/// # use std::os::unix::fs::PermissionsExt;
/// # use litelease_sys::exposure;
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("key");
/// write(&path, "secret")?;
/// set_permissions(&path, Permissions::from_mode(0o640))?;
/// assert!(exposure(&metadata(&path)?).is_some());
/// set_permissions(&path, Permissions::from_mode(0o600))?;
/// assert_eq!(exposure(&metadata(&path)?), None);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn exposure(found: &Metadata) -> Option<&'static str> {
    // SAFETY: the call has no arguments and cannot fail.
    let is_own = found.uid() == unsafe { libc::geteuid() };
    match found.mode() & 0o077 {
        0 if is_own => None,
        0 => Some("belongs to another user"),
        _ => Some("is open to other users"),
    }
}

/// The mode of the side files of a database, and its owner and group.
pub(crate) struct Access {
    mode: u32,
    uid: u32,
    gid: u32,
}

impl Access {
    /// Reads them from a database. Returns `None` if it does not exist yet.
    ///
    /// Owner, group and others can open a side file if they may write the database. A reader
    /// must not open it: flock needs no more than that to keep out all writers.
    pub(crate) fn from_database(database: &Path) -> Option<Self> {
        let found = fs::metadata(database).ok()?;
        let write = found.mode() & 0o222;
        // The owner of a read-only database may make it writable again.
        let mode = 0o600 | write | write << 1;
        Some(Access { mode, uid: found.uid(), gid: found.gid() })
    }

    /// Returns the mode to create a side file with.
    pub(crate) fn mode(&self) -> u32 {
        self.mode
    }

    /// Gives a new file the group of the database, and its owner if this process is root.
    pub(crate) fn give(&self, file: &File) -> io::Result<()> {
        // A file that belongs to root would lock other users out.
        let uid = if is_root() { self.uid } else { u32::MAX };
        // SAFETY: the descriptor is open; -1 leaves the owner as it is.
        unsafe { libc::fchown(file.as_raw_fd(), uid, self.gid) };
        self.set(file, &file.metadata()?)
    }

    /// Gives an existing file the group and mode that fit the database, which may have changed
    /// since. Only the owner of the file can do that.
    pub(crate) fn adjust(&self, file: &File, found: &Metadata) -> io::Result<()> {
        let is_so = found.gid() == self.gid && found.mode() & 0o777 == self.mode;
        // SAFETY: the call has no arguments and cannot fail.
        if is_so || found.uid() != unsafe { libc::geteuid() } {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { libc::fchown(file.as_raw_fd(), u32::MAX, self.gid) };
        self.set(file, &file.metadata()?)
    }

    fn set(&self, file: &File, found: &Metadata) -> io::Result<()> {
        let mode = match found.gid() == self.gid {
            true => self.mode,
            // Another group gets the permissions of all other users.
            false => self.mode & 0o606 | (self.mode & 0o006) << 3,
        };
        if found.mode() & 0o777 == mode {
            return Ok(());
        }
        // SAFETY: the descriptor is open.
        match unsafe { libc::fchmod(file.as_raw_fd(), mode as libc::mode_t) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Checks whether this process may not write the database. A side file that it created would
/// lock others out.
pub(crate) fn may_not_write(database: &Path) -> bool {
    let Ok(path) = CString::new(database.as_os_str().as_bytes()) else { return true };
    // SAFETY: the path ends with a NUL and lives until the call returns.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK, libc::AT_EACCESS) != 0 }
}

fn is_root() -> bool {
    // SAFETY: the call has no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}
