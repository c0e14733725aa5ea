//! The errors of holding, waiting and tracking, on top of those of the verbs.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use litelease_hold::NoKeeper;
use litelease_hold::file::FileError;

use crate::error::rusqlite_error;
use crate::{Error, Lease, Lost, NewestTick, Reader};

/// An error of [`hold`](crate::Litelease::hold),
/// [`claim_wait`](crate::Litelease::claim_wait) and a [`Tracker`](crate::Tracker). Errors of the
/// verbs, of `rusqlite` and [`Lost`] turn into it with `?`.
///
/// With `?` it also turns into an [`Error`] of the same text, so that one function can hold, wait,
/// work and call the verbs. `HoldError::from` gives the case back.
///
/// ```
/// use std::time::Duration;
/// use litelease::{HoldOptions, Litelease, WorkerOptions};
///
/// fn main() -> litelease::Result<()> {
/// #   let folder = tempfile::tempdir().unwrap();
/// #   let path = folder.path().join("app.sqlite3");
///     let (ttl, wait) = (Duration::from_secs(60), Duration::from_secs(5));
///     let db = Litelease::open_own(&path)?;
///     let held = db.hold("books", HoldOptions::new(ttl).wait(wait))?;
///     held.check()?;
///     held.release()?;
///     db.claim_wait("books", "a", ttl, wait)?;
///     let worker = db.queue("mail").worker(WorkerOptions::new(ttl).until_empty())?;
///     worker.run(|item| item.check())?;
///     Ok(())
/// }
/// ```
///
/// ```
/// use litelease::{Error, HoldError};
///
/// let error = Error::from(HoldError::NotRequested);
/// assert_eq!(error.kind(), "NotRequested");
/// assert_eq!(error.to_string(), HoldError::NotRequested.to_string());
/// assert!(matches!(HoldError::from(error), HoldError::NotRequested));
/// ```
///
/// ```
/// use std::time::Duration;
/// use litelease::{HoldError, HoldOptions, Litelease};
///
/// # fn main() -> Result<(), HoldError> {
/// # litelease_doctest::path!(path);
/// let db = Litelease::open_own(&path)?;
/// let held = db.hold("books", HoldOptions::new(Duration::from_secs(60)))?;
/// match db.hold("books", HoldOptions::new(Duration::from_secs(60))) {
///     Err(HoldError::Busy(current)) => assert_eq!(current.owner, held.owner()),
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum HoldError {
    /// Another owner has the name, and the time to wait is over.
    Busy(Lease),
    /// The held lease can no longer be trusted.
    Lost(Lost),
    /// The ttl is too short to be kept alive: at least 101 ms.
    TtlTooShort(Duration),
    /// A worker with options that make no sense.
    InvalidWorker(&'static str),
    /// The database is in memory: another connection, such as the keeper's, cannot see it.
    InMemory,
    /// The connection is inside a transaction, whose snapshot would never show that the name has
    /// become free.
    InTransaction,
    /// No owner has requested the lease, so it cannot be handed over.
    NotRequested,
    /// The transaction belongs to another file than the hold.
    OtherFile,
    /// The database file was moved, deleted or replaced: no other process sees what is granted in
    /// it.
    FileMoved(String),
    /// This process was forked from one that holds leases, and has no keeper. Start a new program
    /// instead.
    Forked,
    /// Readers have not given up in time: see [`Cached::write`](crate::Cached::write). Nothing was
    /// written.
    ReadersLeft {
        /// The name of the value that was to be written.
        name: String,
        /// The readers that may still answer from memory.
        readers: Vec<Reader>,
    },
    /// Live members of a group share another number of shards: see [`Shards`](crate::Shards::join).
    ShardCount {
        /// The group.
        group: String,
        /// Their number.
        count: i64,
    },
    /// A group of shards, or a member, that cannot be.
    InvalidShards(&'static str),
    /// The tick is taken: another process has it, or it is done. Nothing is held.
    TickTaken(NewestTick),
    /// The tick is more than a minute ahead of the clock. Nothing is held.
    TickInFuture {
        /// The clock.
        now_ms: i64,
    },
    /// A [`Tracker`](crate::Tracker) lock belongs to another owner.
    TrackerIsLocked {
        /// The name that was to be locked.
        name: String,
        /// The owner: host and process, without the token that unlocks it.
        owner: String,
        /// Until when, in Unix milliseconds.
        until: i64,
    },
    /// The file of a [`Tracker`](crate::Tracker) has live locks of sayt2's tracker.
    ForeignLocks(PathBuf),
    /// The folder of a [`Tracker`](crate::Tracker) cannot be made.
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// The keeper has no thread: the system gives none.
    NoThread(io::Error),
    /// An error of a verb.
    Lease(Error),
}

impl HoldError {
    /// Returns the name of the case, like [`Error::kind`].
    ///
    /// ```
    /// assert_eq!(litelease::HoldError::InMemory.kind(), "InMemory");
    /// ```
    pub fn kind(&self) -> &'static str {
        match self {
            HoldError::Busy(_) => "Busy",
            HoldError::Lost(_) => "Lost",
            HoldError::TtlTooShort(_) => "TtlTooShort",
            HoldError::InvalidWorker(_) => "InvalidWorker",
            HoldError::InMemory => "InMemory",
            HoldError::InTransaction => "InTransaction",
            HoldError::NotRequested => "NotRequested",
            HoldError::OtherFile => "OtherFile",
            HoldError::FileMoved(_) => "FileMoved",
            HoldError::Forked => "Forked",
            HoldError::ReadersLeft { .. } => "ReadersLeft",
            HoldError::ShardCount { .. } => "ShardCount",
            HoldError::InvalidShards(_) => "InvalidShards",
            HoldError::TickTaken(_) => "TickTaken",
            HoldError::TickInFuture { .. } => "TickInFuture",
            HoldError::TrackerIsLocked { .. } => "TrackerIsLocked",
            HoldError::ForeignLocks(_) => "ForeignLocks",
            HoldError::Folder { .. } => "Folder",
            HoldError::NoThread(_) => "NoThread",
            HoldError::Lease(error) => error.kind(),
        }
    }
}

/// The errors of holding have the same words in every place.
type Common = litelease_hold::HoldError<Infallible>;

impl fmt::Display for HoldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HoldError::Busy(current) => Common::Busy(current.clone()).fmt(f),
            HoldError::Lost(lost) => lost.fmt(f),
            HoldError::TtlTooShort(ttl) => Common::TtlTooShort(*ttl).fmt(f),
            HoldError::InvalidWorker(what) => f.write_str(what),
            HoldError::InMemory => FileError::InMemory.fmt(f),
            HoldError::InTransaction => FileError::InTransaction.fmt(f),
            HoldError::NotRequested => Common::NotRequested.fmt(f),
            HoldError::OtherFile => {
                f.write_str("the transaction is on another database file than the hold")
            }
            HoldError::FileMoved(file) => FileError::Moved(file.clone()).fmt(f),
            HoldError::Forked => Common::Forked.fmt(f),
            HoldError::ReadersLeft { name, readers } => {
                let first = readers.first().map_or("?", |reader| &reader.reader);
                let count = readers.len();
                write!(
                    f,
                    "{count} readers of {name:?} have not given up in time, {first} among them: wait longer \
                     than their ttl"
                )
            }
            HoldError::ShardCount { group, count } => {
                FileError::ShardCount { group: group.clone(), count: *count }.fmt(f)
            }
            HoldError::InvalidShards(what) => f.write_str(what),
            HoldError::TickTaken(newest) => FileError::TickTaken(*newest).fmt(f),
            HoldError::TickInFuture { now_ms } => {
                FileError::TickInFuture { now_ms: *now_ms }.fmt(f)
            }
            HoldError::TrackerIsLocked { name, owner, .. } => {
                write!(f, "{name:?} is locked by {owner}")
            }
            HoldError::ForeignLocks(path) => write!(
                f,
                "{} has live locks of sayt2 in its table `locks`: take them over with Tracker.import_from of the Python \
                 package, or wait until they are over",
                path.display()
            ),
            HoldError::Folder { path, error } => {
                write!(f, "cannot make the folder {}: {error}", path.display())
            }
            HoldError::NoThread(error) => write!(f, "cannot start the keeper's thread: {error}"),
            HoldError::Lease(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for HoldError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            HoldError::Folder { error, .. } | HoldError::NoThread(error) => Some(error),
            // Their text is already the whole text of this error.
            HoldError::Lease(error) => error.source(),
            _ => None,
        }
    }
}

impl From<Error> for HoldError {
    fn from(error: Error) -> Self {
        match error {
            // One of ours, on its way back.
            Error::Hold { kind, error } => match error.downcast() {
                Ok(error) => *error,
                Err(error) => match error.downcast() {
                    Ok(lost) => HoldError::Lost(*lost),
                    Err(error) => HoldError::Lease(Error::Hold { kind, error }),
                },
            },
            error => HoldError::Lease(error),
        }
    }
}

impl From<HoldError> for Error {
    fn from(error: HoldError) -> Self {
        match error {
            HoldError::Lease(error) => error,
            error => Error::Hold { kind: error.kind(), error: Box::new(error) },
        }
    }
}

impl From<litelease_store::Error> for HoldError {
    fn from(error: litelease_store::Error) -> Self {
        HoldError::Lease(rusqlite_error(error))
    }
}

impl From<FileError> for HoldError {
    fn from(error: FileError) -> Self {
        match error {
            FileError::InMemory => HoldError::InMemory,
            FileError::InTransaction => HoldError::InTransaction,
            FileError::Moved(file) => HoldError::FileMoved(file),
            FileError::ShardCount { group, count } => HoldError::ShardCount { group, count },
            FileError::InvalidShards(what) => HoldError::InvalidShards(what),
            FileError::TickTaken(newest) => HoldError::TickTaken(newest),
            FileError::TickInFuture { now_ms } => HoldError::TickInFuture { now_ms },
            FileError::Verb(error) => error.into(),
        }
    }
}

impl<E: Into<HoldError>> From<litelease_hold::HoldError<E>> for HoldError {
    fn from(error: litelease_hold::HoldError<E>) -> Self {
        use litelease_hold::HoldError as Common;
        match error {
            Common::Busy(current) => HoldError::Busy(current),
            Common::Lost(lost) => HoldError::Lost(lost),
            Common::TtlTooShort(ttl) => HoldError::TtlTooShort(ttl),
            Common::NotRequested => HoldError::NotRequested,
            Common::Forked => HoldError::Forked,
            Common::NoThread(error) => HoldError::NoThread(error),
            Common::Lease(error) => error.into(),
        }
    }
}

impl From<rusqlite::Error> for HoldError {
    fn from(error: rusqlite::Error) -> Self {
        HoldError::Lease(error.into())
    }
}

impl From<NoKeeper> for HoldError {
    fn from(error: NoKeeper) -> Self {
        match error {
            NoKeeper::Forked => HoldError::Forked,
            NoKeeper::NoThread(error) => HoldError::NoThread(error),
        }
    }
}

impl From<Lost> for HoldError {
    fn from(lost: Lost) -> Self {
        HoldError::Lost(lost)
    }
}
