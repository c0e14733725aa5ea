//! The lock that a server holds on its file while it runs. Its wait lists are in memory, so the
//! clients of a second server on the same file would overtake its waiters.
//!
//! Other programs may use the file through the library. Only a second server is refused.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use litelease::{LockError, OwnedLock, WriteLock};

use crate::failure::Failure;

/// How often to check whether the lock file is still there.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The lock of a server.
pub(crate) struct ServerLock {
    lock: OwnedLock,
    looked: Instant,
    is_lost: bool,
    is_told: bool,
}

impl ServerLock {
    /// Takes the lock on a database, or returns the server that has it.
    pub(crate) fn take(db: &Path) -> Result<Self, LockError> {
        let lock = WriteLock::beside(db, ".serve.lock")?.into_owned()?;
        Ok(ServerLock { lock, looked: Instant::now(), is_lost: false, is_told: false })
    }

    /// Writes the address into the lock file, for the error of a second server.
    pub(crate) fn note(&mut self, scheme: &str, address: SocketAddr) {
        self.lock.note(&format!("{scheme}://{address}"));
    }

    /// Checks, once per interval, that the lock still excludes other servers. A lock file that was
    /// deleted is put back, unless another server has locked a new one. Then that one serves, and
    /// this one grants nothing any more.
    pub(crate) fn ensure(&mut self) -> Result<(), Failure> {
        if self.looked.elapsed() >= CHECK_INTERVAL {
            self.looked = Instant::now();
            let held = self.lock.ensure();
            let is_lost = matches!(held, Err(LockError::Timeout { .. }));
            match &held {
                Err(error) if is_lost && !self.is_lost => {
                    tracing::error!(error = %error, "another server has the database");
                }
                // For example, the disk is full. No other server is known to have the lock.
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
                Err(Failure::LockLost(text))
            }
        }
    }
}
