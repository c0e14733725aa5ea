//! What can go wrong with holding and waiting, on top of what can go wrong with the verbs.

use std::fmt;
use std::io;
use std::time::Duration;

use litelease_hold::{Lost, NoKeeper};

use crate::Lease;
use crate::engine::Error;

/// What can go wrong with [`hold`](crate::Cluster::hold) and
/// [`claim_wait`](crate::Cluster::claim_wait). Errors of the verbs and [`Lost`] turn into it with
/// `?`.
///
/// ```
/// # use std::time::Duration;
/// use litelease_cluster::{Cluster, HoldError, HoldOptions, MemoryEngine};
///
/// # fn main() -> Result<(), HoldError> {
/// let cluster = Cluster::on(MemoryEngine::new());
/// let held = cluster.hold("books", HoldOptions::new(Duration::from_secs(60)))?;
/// match cluster.hold("books", HoldOptions::new(Duration::from_secs(60))) {
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
    /// This process was forked from one that holds leases, and has no keeper. Start a new program
    /// instead.
    Forked,
    /// The keeper has no thread: the system gives none.
    NoThread(io::Error),
    /// An error of a verb.
    Lease(Error),
}

impl HoldError {
    /// Returns the name of the case, like [`Error::kind`].
    ///
    /// ```
    /// assert_eq!(litelease_cluster::HoldError::Forked.kind(), "Forked");
    /// ```
    pub fn kind(&self) -> &'static str {
        match self {
            HoldError::Busy(_) => "Busy",
            HoldError::Lost(_) => "Lost",
            HoldError::TtlTooShort(_) => "TtlTooShort",
            HoldError::Forked => "Forked",
            HoldError::NoThread(_) => "NoThread",
            HoldError::Lease(error) => error.kind(),
        }
    }
}

impl fmt::Display for HoldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HoldError::Busy(current) => {
                write!(f, "{:?} is held by {}", current.name, current.owner)
            }
            HoldError::Lost(lost) => lost.fmt(f),
            HoldError::TtlTooShort(ttl) => {
                write!(f, "a ttl of {ttl:?} is too short to be kept alive: at least 101 ms")
            }
            HoldError::Forked => f.write_str(
                "this process was forked from one that holds leases: start a new program instead",
            ),
            HoldError::NoThread(error) => write!(f, "cannot start the keeper's thread: {error}"),
            HoldError::Lease(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for HoldError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            HoldError::NoThread(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Error> for HoldError {
    fn from(error: Error) -> Self {
        HoldError::Lease(error)
    }
}

impl From<Lost> for HoldError {
    fn from(lost: Lost) -> Self {
        HoldError::Lost(lost)
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
