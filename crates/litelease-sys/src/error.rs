//! Errors of side files.

use std::path::PathBuf;
use std::{fmt, io};

/// The reason why a side file cannot be used. The object at its path was not changed.
///
/// ```
/// # use litelease_sys::{Error, SideFile};
/// # let folder = tempfile::tempdir().unwrap();
/// let refused = SideFile::at(folder.path()).open();
/// assert!(matches!(refused, Err(Error::NotAFile { what: "a folder", .. })));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Something other than an ordinary file is at the path.
    NotAFile {
        /// The path.
        path: PathBuf,
        /// The kind of file.
        what: &'static str,
    },
    /// The system reports an error.
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
            Error::NotAFile { path, what } => {
                write!(f, "{} is {what} and was left alone: remove it", path.display())
            }
            Error::Io { path, error } => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::NotAFile { .. } => None,
            Error::Io { error, .. } => Some(error),
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Io { error, .. } => error,
            error => io::Error::other(error),
        }
    }
}
