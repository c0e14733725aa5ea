//! A lock that is not bound to a thread, for a process that holds it while it runs.

use std::fs::File;
use std::time::Duration;

use crate::SideFile;

use crate::write_lock::{Error, Holder, file};

/// A lock that is held until this is dropped, in any thread. Created by [`WriteLock::into_owned`].
///
/// The system frees it when the process dies. Child processes do not inherit it.
///
/// [`WriteLock::into_owned`]: crate::write_lock::WriteLock::into_owned
///
/// ```
/// # use litelease_sys::write_lock::{LockState, WriteLock};
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("data.db.serve.lock");
/// let mut held = WriteLock::new(&path).into_owned()?;
/// held.note("http://127.0.0.1:7070");
/// let LockState::Held(Some(holder)) = WriteLock::new(&path).state()? else { unreachable!() };
/// assert_eq!(holder.note.as_deref(), Some("http://127.0.0.1:7070"));
/// # Ok::<(), litelease_sys::write_lock::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct OwnedLock {
    side: SideFile,
    file: File,
    holder: Holder,
    pid: u32,
}

/// How often the lock file may be replaced while it is being locked before that is an error.
const MOST_REPLACEMENTS: u32 = 100;

impl OwnedLock {
    pub(crate) fn take(side: SideFile) -> Result<Self, Error> {
        let holder = Holder::me();
        let file = lock(&side)?;
        file::sign(&file, &holder);
        Ok(OwnedLock { side, file, holder, pid: std::process::id() })
    }

    /// Writes a note into the lock file, for the error of other processes: one line without
    /// spaces.
    pub fn note(&mut self, note: &str) {
        self.holder.note = Some(note.into());
        file::sign(&self.file, &self.holder);
    }

    /// Checks that the lock still excludes others. If its file was deleted or replaced, locks the
    /// file that is there now. Fails if another process has locked that one; then the lock is lost
    /// until a later call succeeds.
    ///
    /// ```
    /// # use litelease_sys::write_lock::WriteLock;
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("lock");
    /// let mut held = WriteLock::new(&path).into_owned()?;
    /// std::fs::remove_file(&path).unwrap();
    /// held.ensure()?;
    /// assert!(WriteLock::new(&path).into_owned().is_err(), "it is held again");
    /// # Ok::<(), litelease_sys::write_lock::Error>(())
    /// ```
    pub fn ensure(&mut self) -> Result<(), Error> {
        if !self.side.is_still(&self.file) {
            self.file = lock(&self.side)?;
            file::sign(&self.file, &self.holder);
        }
        Ok(())
    }
}

impl Drop for OwnedLock {
    fn drop(&mut self) {
        // Closing the file is not enough if a child was forked meanwhile: it has the file open,
        // too. In such a child, the lock belongs to the parent.
        if self.pid == std::process::id() {
            let _ = self.file.unlock();
        }
    }
}

fn lock(side: &SideFile) -> Result<File, Error> {
    for _ in 0..MOST_REPLACEMENTS {
        let file = side.open()?;
        if !file::try_lock(&file, side)? {
            return Err(file::timed_out(side, Duration::ZERO));
        }
        if side.is_still(&file) {
            return Ok(file);
        }
    }
    Err(Error::Unstable { path: side.path().into() })
}
