//! The lock that a server holds on its file for as long as it lives: who waits is in its memory, so a second server on
//! the same file would let its own clients overtake them.
//!
//! Other programs may use the file through the library; only a second server is refused.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use litelease::rusqlite::{self, ffi};
use litelease::{Error, LockError, OwnedLock, WriteLock};

/// How often to look whether the lock file is still there.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The lock of a server.
pub(crate) struct ServerLock {
    lock: OwnedLock,
    looked: Instant,
    is_lost: bool,
    is_told: bool,
}

impl ServerLock {
    /// Takes the lock on a database, or says who has it.
    pub(crate) fn take(db: &Path) -> Result<Self, LockError> {
        let lock = WriteLock::beside(db, ".serve.lock")?.into_owned()?;
        Ok(ServerLock { lock, looked: Instant::now(), is_lost: false, is_told: false })
    }

    /// Leaves the address, for whoever is refused.
    pub(crate) fn note(&mut self, address: SocketAddr) {
        self.lock.note(&format!("http://{address}"));
    }

    /// Makes sure, now and then, that the lock still excludes others. Its file may have been deleted: then it is put back,
    /// unless another server was faster. That one serves from then on, and this one does nothing any more.
    pub(crate) fn ensure(&mut self) -> Result<(), Error> {
        if self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            let held = self.lock.ensure();
            let is_lost = matches!(held, Err(LockError::Timeout { .. }));
            match &held {
                Err(error) if is_lost && !self.is_lost => {
                    tracing::error!(error = %error, "another server has the database");
                }
                // On a full disk, perhaps. Nobody else is known to have it.
                Err(error) if !is_lost && !self.is_told => {
                    tracing::warn!(error = %error, "the lock file of this server cannot be put back");
                }
                _ => {}
            }
            (self.is_lost, self.is_told) = (is_lost, held.is_err());
        }
        match self.is_lost {
            false => Ok(()),
            true => {
                let text = "the lock file of this server was deleted or replaced, and another server has the \
                            database now: nothing is granted here any more; end one of them";
                let code = ffi::Error::new(ffi::SQLITE_PROTOCOL);
                Err(Error::Sqlite(rusqlite::Error::SqliteFailure(code, Some(text.into()))))
            }
        }
    }
}
