//! Who may use a side file: whoever may write the database.

#[cfg(unix)]
pub(crate) use unix::{Access, may_not_write};

#[cfg(unix)]
mod unix {
    use std::ffi::CString;
    use std::fs::{self, File, Metadata};
    use std::io;
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    /// The mode, owner and group of a database.
    pub(crate) struct Access {
        mode: u32,
        uid: u32,
        gid: u32,
    }

    impl Access {
        /// Returns those of a database, or `None` if it is not there yet.
        pub(crate) fn of(database: &Path) -> Option<Self> {
            let found = fs::metadata(database).ok()?;
            Some(Access { mode: found.mode() & 0o666, uid: found.uid(), gid: found.gid() })
        }

        /// The mode that a file is created with.
        pub(crate) fn mode(&self) -> u32 {
            self.mode
        }

        /// Gives a file that was just created to the owner of the database, if we are root, and to its group.
        pub(crate) fn give(&self, file: &File) -> io::Result<()> {
            // Root's own file would be in everybody's way.
            let uid = if is_root() { self.uid } else { u32::MAX };
            // SAFETY: the descriptor is open; -1 leaves the owner as it is.
            unsafe { libc::fchown(file.as_raw_fd(), uid, self.gid) };
            self.set(file, &file.metadata()?)
        }

        /// The same for a file that was there: the database may be shared with others by now. Only its owner does
        /// that.
        pub(crate) fn adjust(&self, file: &File, found: &Metadata) -> io::Result<()> {
            let is_so = found.gid() == self.gid && found.mode() & 0o777 == self.mode;
            // SAFETY: the call only answers.
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
                // Another group may do no more than everybody.
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

    /// Checks whether we may not write the database. A side file that such a user made would be in the way of others.
    pub(crate) fn may_not_write(database: &Path) -> bool {
        let Ok(path) = CString::new(database.as_os_str().as_bytes()) else { return true };
        // SAFETY: the path ends with a NUL and lives until the call returns.
        unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK, libc::AT_EACCESS) != 0 }
    }

    fn is_root() -> bool {
        // SAFETY: the call only answers.
        unsafe { libc::geteuid() == 0 }
    }
}
