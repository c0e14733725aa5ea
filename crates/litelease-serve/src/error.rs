//! Why a file is not served.

use std::error::Error;
use std::path::PathBuf;
use std::{fmt, io};

/// Why a file is not served. Nothing was granted, and nothing of a file that was there is changed.
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
    /// It cannot be opened, or it is no database, or a table in it is not as it should be.
    Database(litelease::Error),
    /// It is another program's, or on a disk that cannot have it otherwise, and in another journal mode.
    NotWal {
        /// The file.
        path: PathBuf,
        /// Its journal mode.
        mode: String,
    },
    /// It has forgotten what was granted from it: it was restored from a backup.
    Older {
        /// The file.
        path: PathBuf,
        /// Its newest token.
        newest: i64,
        /// The newest token that was answered, as the file `.mark` beside it tells.
        granted: i64,
    },
    /// The mark beside it cannot be read or written.
    Mark {
        /// The mark.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

impl OpenError {
    /// The name of the error.
    ///
    /// ```
    /// # use litelease_serve::OpenError;
    /// let error = OpenError::Older { path: "pools.sqlite3".into(), newest: 1, granted: 2 };
    /// assert_eq!(error.kind(), "Older");
    /// ```
    pub fn kind(&self) -> &'static str {
        match self {
            OpenError::Database(error) => error.kind(),
            OpenError::NotWal { .. } => "NotWal",
            OpenError::Older { .. } => "Older",
            OpenError::Mark { .. } => "Mark",
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
            OpenError::Mark { path, error } => {
                write!(f, "the high-water mark {} cannot be used: {error}", path.display())
            }
        }
    }
}

impl Error for OpenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            OpenError::Database(error) => Some(error),
            OpenError::Mark { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl From<litelease::Error> for OpenError {
    fn from(error: litelease::Error) -> Self {
        OpenError::Database(error)
    }
}
