//! Errors of opening a service.

use std::error::Error;
use std::path::PathBuf;
use std::{fmt, io};

use litelease::{Holder, LockError};

/// The reason why a file is not served. Nothing was granted, and an existing file was not changed.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("notes.txt");
/// use litelease_serve::{OpenError, Options, Service};
///
/// std::fs::write(&path, "my notes\n".repeat(100)).unwrap();
/// let refused = Service::open(&path, Options::default());
/// assert!(matches!(refused, Err(OpenError::Database(_))));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The file cannot be opened, is not a database, or has a table of another shape.
    Database(litelease::Error),
    /// The file is not in WAL mode: it belongs to another program, or its disk cannot do WAL.
    NotWal {
        /// The file.
        path: PathBuf,
        /// Its journal mode.
        mode: String,
    },
    /// The file lacks tokens that were granted from it: it was restored from a backup.
    Older {
        /// The file.
        path: PathBuf,
        /// Its newest token.
        newest: i64,
        /// The newest token that was answered, from the file `.high-water` beside it.
        granted: i64,
    },
    /// Another server serves the file.
    Served {
        /// The file.
        path: PathBuf,
        /// The other server, if its lock file names it.
        holder: Option<Holder>,
    },
    /// The leases of the file were moved, and it grants nothing any more.
    Moved {
        /// The file.
        path: PathBuf,
        /// The place that they were moved to.
        to: String,
    },
    /// The lock file beside it, which keeps other servers away, cannot be used.
    Lock(LockError),
    /// The file has a second name (a hard link). A program that opens it by that name would not
    /// see what is in its -wal.
    Linked {
        /// The file.
        path: PathBuf,
    },
    /// The high-water mark beside it cannot be read or written.
    HighWater {
        /// The path of its file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The certificate or its key cannot be used.
    Tls {
        /// The file.
        path: PathBuf,
        /// The error of the system, or of the parser.
        error: io::Error,
    },
    /// The engine cannot be used.
    Cluster(litelease_cluster::Error),
    /// The access key of the user who runs the server cannot be written.
    LocalKey {
        /// The folder for it.
        folder: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
}

impl OpenError {
    /// Returns the name of the error.
    pub fn kind(&self) -> &'static str {
        match self {
            OpenError::Database(error) => error.kind(),
            OpenError::NotWal { .. } => "NotWal",
            OpenError::Older { .. } => "Older",
            OpenError::Served { .. } => "Served",
            OpenError::Moved { .. } => "Moved",
            OpenError::Lock(_) => "Lock",
            OpenError::Linked { .. } => "Linked",
            OpenError::HighWater { .. } => "HighWater",
            OpenError::Tls { .. } => "Tls",
            OpenError::Cluster(error) => error.kind(),
            OpenError::LocalKey { .. } => "LocalKey",
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Database(error) => error.fmt(f),
            OpenError::NotWal { path, mode } => write!(
                f,
                "{} is in journal mode {mode}, and a service needs WAL: switch it with PRAGMA journal_mode = WAL if it \
                 is yours, or choose another file",
                path.display()
            ),
            OpenError::Older { path, newest, granted } => write!(
                f,
                "{} is older than what was served from it: its newest token is {newest}, and {granted} was granted; if \
                 it was restored from a backup, start once with --restore-fence, which ends every lease in it",
                path.display()
            ),
            OpenError::Served { path, holder } => {
                write!(f, "{} is served already, by ", path.display())?;
                match holder {
                    Some(holder) => {
                        write!(f, "process {} since {}", holder.pid, holder.since)?;
                        if let Some(address) = &holder.note {
                            write!(f, " at {address}")?;
                        }
                    }
                    None => f.write_str("a process that its lock file does not name")?,
                }
                f.write_str(": use that one or end it, or choose another file with --db")
            }
            OpenError::Moved { path, to } => write!(
                f,
                "{} grants nothing any more: it was moved to {to}: serve that with --db",
                path.display()
            ),
            OpenError::Cluster(error) => error.fmt(f),
            OpenError::Lock(error) => error.fmt(f),
            OpenError::Linked { path } => write!(
                f,
                "{} has a second name (a hard link), and SQLite keeps the last commits of each name apart: remove the \
                 other name, or serve a copy",
                path.display()
            ),
            OpenError::HighWater { path, error } => {
                write!(f, "the high-water mark {} cannot be used: {error}", path.display())
            }
            OpenError::Tls { path, error } => {
                write!(f, "{} cannot be used for TLS: {error}", path.display())
            }
            OpenError::LocalKey { folder, error } => write!(
                f,
                "the local access key cannot be written in {}: {error}; make a key with litelease access add",
                folder.display()
            ),
        }
    }
}

impl Error for OpenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            OpenError::Database(error) => Some(error),
            OpenError::Cluster(error) => Some(error),
            OpenError::Lock(error) => Some(error),
            OpenError::HighWater { error, .. }
            | OpenError::Tls { error, .. }
            | OpenError::LocalKey { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl From<litelease_sys::Error> for OpenError {
    fn from(error: litelease_sys::Error) -> Self {
        match error {
            litelease_sys::Error::Io { path, error } => OpenError::HighWater { path, error },
            litelease_sys::Error::NotAFile { path, what } => {
                let error =
                    io::Error::other(format!("it is {what}, and was left alone: remove it"));
                OpenError::HighWater { path, error }
            }
            error => OpenError::HighWater { path: PathBuf::new(), error: error.into() },
        }
    }
}

impl From<litelease::Error> for OpenError {
    fn from(error: litelease::Error) -> Self {
        OpenError::Database(error)
    }
}
