//! Errors of the lock. Their texts say what to do.

use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, io};

use crate::write_lock::Holder;

/// The reason why the lock was not acquired.
///
/// ```
/// use std::time::Duration;
/// use litelease_sys::write_lock::{Error, Holder};
///
/// let line = format!("pid:{} time:2025-01-15T10:30:45Z", std::process::id());
/// let holder = Holder::parse(&line);
/// let error = Error::Timeout { after: Duration::from_millis(500), holder, unsigned: None };
/// assert!(error.to_string().starts_with("write lock timeout after 500ms; holder: pid:"));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Another holder kept the lock for the whole timeout.
    Timeout {
        /// The timeout.
        after: Duration,
        /// The holder, if it has signed the lock file.
        holder: Option<Holder>,
        /// The process of a holder that has not, such as flock(1), if the system names it.
        unsigned: Option<u32>,
    },
    /// This thread already holds the lock through the same handle: waiting would never end.
    Nested,
    /// The process was forked after the handle was created: open a new one in the child.
    Forked,
    /// The path of the lock file leads to something else, which was not changed.
    NotALockFile {
        /// The path.
        path: PathBuf,
        /// The kind of file.
        what: &'static str,
    },
    /// The lock file keeps being removed or replaced while it is locked.
    Unstable {
        /// The path.
        path: PathBuf,
    },
    /// The lock file cannot be used.
    Io {
        /// The path.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Timeout { after, holder, unsigned } => {
                write!(f, "write lock timeout after {}ms; ", after.as_millis())?;
                match (holder, unsigned) {
                    (Some(holder), _) if holder.is_gone() => write!(
                        f,
                        "holder pid {} is gone, a process it forked still holds the lock; end that one",
                        holder.pid
                    ),
                    (Some(holder), _) => write!(
                        f,
                        "holder: pid:{} since {}; try again or check if holder process is stuck",
                        holder.pid, holder.since
                    ),
                    (None, Some(pid)) => write!(
                        f,
                        "holder: unknown, for it has not signed the lock file; the system names pid {pid}; \
                         try again or check what that process does"
                    ),
                    (None, None) => f.write_str(
                        "holder: unknown; try again or check which process has the lock file open",
                    ),
                }
            }
            Error::Nested => f.write_str(
                "this thread already holds the write lock through this handle: use the transaction that it \
                 has, instead of a second one inside it",
            ),
            Error::Forked => f.write_str(
                "this process was forked since the writer was opened: open a new one in the child",
            ),
            Error::NotALockFile { path, what } => write!(
                f,
                "{} cannot be a lock file: it is {what}; it was left alone, choose another path",
                path.display()
            ),
            Error::Unstable { path } => write!(
                f,
                "the lock file {} keeps being removed or replaced: find the program that does that",
                path.display()
            ),
            Error::Io { path, error } => {
                write!(f, "cannot use the lock file {}: {error}", path.display())?;
                match error.kind() {
                    io::ErrorKind::PermissionDenied => f.write_str(
                        "; it is for users who may write the database, as of its owner's last use",
                    ),
                    _ => Ok(()),
                }
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Self {
        match error {
            crate::Error::NotAFile { path, what } => Error::NotALockFile { path, what },
            crate::Error::Io { path, error } => Error::Io { path, error },
        }
    }
}
