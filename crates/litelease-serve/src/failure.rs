//! The errors of the file or engine that is served.

use std::fmt::{self, Formatter};

use litelease::Error;
use litelease::rusqlite::{self, ErrorCode};
use litelease_cluster::HoldError;

use crate::error::OpenError;

/// The reason why a file or an engine cannot be read or written, as the original error.
#[derive(Debug)]
pub(crate) enum Failure {
    /// SQLite has failed.
    Database(Error),
    /// The file was moved, deleted or replaced.
    FileMoved,
    /// Another server may have the file. The text says why.
    LockLost(&'static str),
    /// The engine has failed, or has not confirmed a change.
    Engine(litelease_cluster::Error),
    /// The lease of the server that writes cannot be kept.
    Hold(HoldError),
    /// Another server writes, or may do so. The text says why.
    NotWriter(String),
    /// A row of the engine makes no sense to this server. The text says which.
    DamagedRow(String),
}

impl Failure {
    /// Checks whether the engine has failed, or another server writes, rather than this server.
    pub(crate) fn is_of_engine(&self) -> bool {
        matches!(self, Failure::Engine(_) | Failure::Hold(_) | Failure::NotWriter(_))
    }

    /// Returns the reason why a write failed, without the path of the file or its content.
    pub(crate) fn reason(&self) -> &'static str {
        let unknown = "the database cannot be written: the server's log says why";
        let moved = "the disk fails, or the database file was moved: the server's log says more";
        let error = match self {
            Failure::Database(Error::Sqlite(error) | Error::CommitUnknown(error)) => error,
            Failure::Database(_) | Failure::DamagedRow(_) => return unknown,
            Failure::FileMoved => return moved,
            Failure::LockLost(_) => return "another server has the database",
            Failure::Engine(_) | Failure::Hold(_) | Failure::NotWriter(_) => {
                return "the engine does not answer, or another server writes";
            }
        };
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => {
                "the disk is full: nothing can be lent out until there is room"
            }
            Some(ErrorCode::SystemIoFailure) => moved,
            Some(ErrorCode::ReadOnly) => {
                "the server may not write the database: check who owns the file and its folder"
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                "another program keeps the database locked: end its transaction"
            }
            _ => unknown,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Database(error) => error.fmt(f),
            Failure::FileMoved => f.write_str(
                "the database file was moved, deleted or replaced while it was served: nothing is granted in it \
                 any more; put it back, or start again",
            ),
            Failure::LockLost(text) => f.write_str(text),
            Failure::Engine(error) => error.fmt(f),
            Failure::Hold(error) => error.fmt(f),
            Failure::NotWriter(text) | Failure::DamagedRow(text) => f.write_str(text),
        }
    }
}

impl From<Failure> for OpenError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Database(error) => OpenError::Database(error),
            Failure::Engine(error) => OpenError::Cluster(error),
            failure => OpenError::Cluster(litelease_cluster::Error::Refused(failure.to_string())),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Database(error)
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Failure::Database(error.into())
    }
}

impl From<litelease_cluster::Error> for Failure {
    fn from(error: litelease_cluster::Error) -> Self {
        Failure::Engine(error)
    }
}

impl From<HoldError> for Failure {
    fn from(error: HoldError) -> Self {
        Failure::Hold(error)
    }
}
