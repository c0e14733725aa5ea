//! What can go wrong, in words that say what, where and what to do.

use std::fmt;

use litelease_core::{LeaseInfo, Refusal};

use crate::code;

/// An error of the store. `E` is how SQLite's own errors are carried: a [`Failure`] here,
/// `rusqlite::Error` in the `litelease` crate.
///
/// A "no" of the rule (busy, rejected) is an answer and never comes as an error.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error<E = Failure> {
    /// The request is out of bounds: a ttl of zero, a time or a token beyond 64 bits. Nothing was written.
    Refused {
        /// The name that was asked for.
        name: String,
        /// What is wrong with the request.
        refusal: Refusal,
    },
    /// The database has no lease table yet: call `bootstrap`.
    NotBootstrapped,
    /// A table of ours is not as it should be. It is never repaired or used as it is.
    SchemaMismatch {
        /// The first difference.
        reason: String,
    },
    /// A newer version of Litelease wrote this file, in a way that this one does not understand.
    NewerFormat {
        /// The format number in the file.
        found: i64,
        /// The newest one that this version knows.
        known: i64,
    },
    /// The stored row of this name breaks what every writer promises. It is never repaired or used.
    InvalidLeaseRow(String),
    /// The lease was stored, and was over before it could be returned. It is not the caller's.
    ExpiredOnArrival(LeaseInfo),
    /// COMMIT failed, so it is not known whether the change was stored. It is not a grant; `inspect`
    /// tells what is there now.
    CommitUnknown(E),
    /// A write changed another number of rows than it must; it was undone, unless the caller's own
    /// transaction is open, which is then the caller's to roll back.
    UnexpectedChange {
        /// The name that was written.
        name: String,
        /// How many rows changed.
        changed: i64,
    },
    /// SQLite's own error, with its extended code: BUSY, LOCKED, READONLY, FULL and so on.
    Sqlite(E),
}

/// An error of SQLite: its extended code and its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The extended result code.
    pub code: i32,
    /// What SQLite says, with what was tried and where.
    pub message: String,
}

impl<E> Error<E> {
    /// The name of the case, the same in every language: `SchemaMismatch`, `InvalidTtl` and so on.
    pub fn kind(&self) -> &'static str {
        match self {
            Error::Refused { refusal: Refusal::InvalidTtl { .. }, .. } => "InvalidTtl",
            Error::Refused { refusal: Refusal::TimeOverflow { .. }, .. } => "TimeOverflow",
            Error::Refused { refusal: Refusal::TokenExhausted, .. } => "TokenExhausted",
            Error::Refused { .. } => "Refused",
            Error::NotBootstrapped => "NotBootstrapped",
            Error::SchemaMismatch { .. } => "SchemaMismatch",
            Error::NewerFormat { .. } => "NewerFormat",
            Error::InvalidLeaseRow(_) => "InvalidLeaseRow",
            Error::ExpiredOnArrival(_) => "ExpiredOnArrival",
            Error::CommitUnknown(_) => "CommitUnknown",
            Error::UnexpectedChange { .. } => "UnexpectedChange",
            Error::Sqlite(_) => "Sqlite",
        }
    }

    /// The same error with SQLite's part in another form.
    pub fn map_sqlite<F>(self, form: impl FnOnce(E) -> F) -> Error<F> {
        match self {
            Error::Refused { name, refusal } => Error::Refused { name, refusal },
            Error::NotBootstrapped => Error::NotBootstrapped,
            Error::SchemaMismatch { reason } => Error::SchemaMismatch { reason },
            Error::NewerFormat { found, known } => Error::NewerFormat { found, known },
            Error::InvalidLeaseRow(name) => Error::InvalidLeaseRow(name),
            Error::ExpiredOnArrival(lease) => Error::ExpiredOnArrival(lease),
            Error::CommitUnknown(failure) => Error::CommitUnknown(form(failure)),
            Error::UnexpectedChange { name, changed } => Error::UnexpectedChange { name, changed },
            Error::Sqlite(failure) => Error::Sqlite(form(failure)),
        }
    }
}

impl Failure {
    /// Whether somebody else's lock was in the way, so that trying again later can help.
    pub fn is_lock(&self) -> bool {
        matches!(self.code & 0xff, code::BUSY | code::LOCKED)
    }

    /// Whether SQLite gives this code only where it has undone everything. Of any other, such as an error of
    /// the disk, nobody can say what was stored.
    pub(crate) fn means_nothing_stored(&self) -> bool {
        use code::*;
        matches!(
            self.code & 0xff,
            AUTH | BUSY | CONSTRAINT | ERROR | INTERRUPT | LOCKED | READONLY | TOOBIG
        )
    }
}

impl<E> From<E> for Error<E> {
    fn from(failure: E) -> Self {
        Error::Sqlite(failure)
    }
}

impl<E: fmt::Display> fmt::Display for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused { name, refusal } => {
                write!(f, "request for {name:?} refused: {refusal}")
            }
            Error::NotBootstrapped => {
                f.write_str("this database has no lease table yet: call bootstrap() once first")
            }
            Error::SchemaMismatch { reason } => write!(f, "not the schema of Litelease: {reason}"),
            Error::NewerFormat { found, known } => write!(
                f,
                "the file has format {found} and this version knows {known} at most: use a newer Litelease"
            ),
            Error::InvalidLeaseRow(name) => write!(
                f,
                "the stored row of {name:?} is invalid and was left alone: look at it in litelease_resources"
            ),
            Error::ExpiredOnArrival(lease) => write!(
                f,
                "the lease on {:?} (token {}) was over before it could be returned: the ttl is too short \
                 for how long the write took",
                lease.name, lease.token
            ),
            Error::CommitUnknown(failure) => write!(
                f,
                "commit failed, so it is not known whether the change was stored; inspect before trying \
                 again: {failure}"
            ),
            Error::UnexpectedChange { name, changed } => write!(
                f,
                "writing {name:?} changed {changed} rows instead of one: something interferes with \
                 litelease_resources"
            ),
            Error::Sqlite(failure) => failure.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for Error<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Refused { refusal, .. } => Some(refusal),
            Error::CommitUnknown(failure) => Some(failure),
            // Its text is already the whole text of this error.
            Error::Sqlite(failure) => failure.source(),
            _ => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
