//! The rows of one file as the keeper renews them, on a connection of its own.

use std::time::Duration;

use litelease_keeper::{Grant, Rows};
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::file::{has_moved, write_lock_pid};
use crate::{Error, LeaseInfo, Litelease, Loss, Reason, ReleaseResult, RenewResult, Result};

/// Other files wait while this one is locked, so nobody waits long at one go; the keeper tries
/// again.
const BUSY_TIMEOUT: Duration = Duration::from_millis(10);

pub(crate) struct KeptRows {
    pub(crate) db: Litelease,
    file: String,
}

impl KeptRows {
    /// Opens a file that is there.
    pub(crate) fn open(file: &str) -> Result<Self> {
        // Never created: if it has just been deleted, nobody else would ever see the new one's
        // leases.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(file, flags)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        let db = Litelease::from_connection(connection);
        // SQLite opens the -wal at the first look. If the file were replaced before that, it would
        // open the new file's, and write into it what belongs to the old one.
        db.token("")?;
        Ok(KeptRows { db, file: file.into() })
    }

    fn renew_all(&mut self, grants: &[&Grant]) -> Result<Vec<std::result::Result<i64, Loss>>> {
        let tx = self.db.transaction()?;
        let mut answers = Vec::with_capacity(grants.len());
        for grant in grants {
            answers.push(match tx.renew(&lease(grant), grant.ttl) {
                Ok(RenewResult::Renewed(lease)) => Ok(lease.lease_expires_at_ms),
                Ok(RenewResult::Rejected { reason, current }) => {
                    Err(loss(grant.token, reason, current))
                }
                // What is wrong with one row is not the others' fault.
                Err(error @ (Error::InvalidLeaseRow(_) | Error::TimeOverflow { .. })) => {
                    Err(Loss::CannotRenew { error: error.to_string() })
                }
                Err(error) => return Err(error),
            });
        }
        tx.commit()?;
        Ok(answers)
    }

    pub(crate) fn trouble(&self, error: &Error) -> Loss {
        if is_busy(error) {
            return Loss::BlockedByWriter { pid: write_lock_pid(&self.file) };
        }
        Loss::CannotRenew { error: error.to_string() }
    }
}

impl Rows for KeptRows {
    fn renew(&mut self, grants: &[&Grant]) -> Vec<std::result::Result<i64, Loss>> {
        if self.is_moved() {
            return vec![Err(Loss::FileReplaced); grants.len()];
        }
        let answers = self.renew_all(grants);
        // Asked again: what was just stored may be in a file that nobody else opens any more.
        if self.is_moved() {
            return vec![Err(Loss::FileReplaced); grants.len()];
        }
        answers.unwrap_or_else(|error| vec![Err(self.trouble(&error)); grants.len()])
    }

    fn release(&mut self, grant: &Grant) -> std::result::Result<(), Loss> {
        if self.is_moved() {
            return Err(Loss::FileReplaced);
        }
        match self.db.release(&lease(grant)) {
            Ok(ReleaseResult::Released { .. }) => Ok(()),
            Ok(ReleaseResult::Rejected { reason, current }) => {
                Err(loss(grant.token, reason, current))
            }
            Err(error) => Err(self.trouble(&error)),
        }
    }

    fn is_current(&mut self, grant: &Grant) -> bool {
        let found = self.db.inspect(&grant.name);
        // What cannot be read now is left to the renewals.
        let is_ours = found.map_or(true, |found| {
            found.is_some_and(|found| found.token == grant.token && found.owner == grant.owner)
        });
        is_ours && !self.is_moved()
    }

    fn is_moved(&self) -> bool {
        has_moved(self.db.conn())
    }
}

/// Checks whether another connection's lock was in the way.
pub(crate) fn is_busy(error: &Error) -> bool {
    use ErrorCode::{DatabaseBusy, DatabaseLocked};
    match error {
        Error::Sqlite(error) => {
            matches!(error.sqlite_error_code(), Some(DatabaseBusy | DatabaseLocked))
        }
        _ => false,
    }
}

/// Returns what a rejection means for a holder that has not released its lease.
pub(crate) fn loss(token: i64, reason: Reason, current: Option<LeaseInfo>) -> Loss {
    match (reason, current) {
        (_, Some(current)) if current.token != token => {
            Loss::Superseded { by: current.token, owner: Some(current.owner) }
        }
        // Who takes over what has run out is granted it and keeps it for a while. A token that grew
        // by one without anybody having it is what a break leaves behind.
        (Reason::Superseded { by }, _) if by == token + 1 => Loss::Broken,
        (Reason::Superseded { by }, _) => Loss::Superseded { by, owner: None },
        (Reason::Released, _) => Loss::ReleasedElsewhere,
        (Reason::Expired, _) => Loss::Expired,
        // The row knows less than the holder: it is another file, or an older one.
        (Reason::NeverClaimed | Reason::UnknownToken | Reason::HeldBy, _) => Loss::FileReplaced,
    }
}

/// A grant as the verbs name it. They do not look at the expiry.
fn lease(grant: &Grant) -> LeaseInfo {
    LeaseInfo {
        name: grant.name.clone(),
        owner: grant.owner.clone(),
        token: grant.token,
        lease_expires_at_ms: 0,
    }
}
