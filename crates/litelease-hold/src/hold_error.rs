//! The error of holding and waiting, on top of the errors of verbs.

use std::fmt;
use std::io;
use std::time::Duration;

use litelease_core::Lease;

use crate::{Lost, NoKeeper, short_owner};

/// The error of a hold. `E` is the error of the verbs of its place. Both that and [`Lost`] turn
/// into it with `?`.
#[derive(Debug)]
pub enum HoldError<E> {
    /// Another owner has the name, and the time to wait is over.
    Busy(Lease),
    /// The held lease can no longer be trusted.
    Lost(Lost),
    /// The ttl is too short to be kept alive: at least 101 ms.
    TtlTooShort(Duration),
    /// No owner has requested the lease, so it cannot be handed over.
    NotRequested,
    /// This process was forked from one that holds leases, and has no keeper. Start a new program
    /// instead.
    Forked,
    /// The system cannot start the thread of the keeper.
    NoThread(io::Error),
    /// An error of a verb.
    Lease(E),
}

impl<E> HoldError<E> {
    /// Returns the name of the case. `of_verb` names the errors of verbs.
    pub fn kind_or(&self, of_verb: impl FnOnce(&E) -> &'static str) -> &'static str {
        match self {
            HoldError::Busy(_) => "Busy",
            HoldError::Lost(_) => "Lost",
            HoldError::TtlTooShort(_) => "TtlTooShort",
            HoldError::NotRequested => "NotRequested",
            HoldError::Forked => "Forked",
            HoldError::NoThread(_) => "NoThread",
            HoldError::Lease(error) => of_verb(error),
        }
    }
}

impl<E: fmt::Display> fmt::Display for HoldError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HoldError::Busy(current) => {
                let (name, owner) = (&current.name, short_owner(&current.owner));
                write!(f, "{name:?} is held by {owner} (token {})", current.token)
            }
            HoldError::Lost(lost) => lost.fmt(f),
            HoldError::TtlTooShort(ttl) => {
                write!(f, "a ttl of {ttl:?} is too short to be kept alive: give more than 100 ms")
            }
            HoldError::NotRequested => f.write_str(
                "nobody has asked for the lease: hand it to an owner by name with transfer, or release it",
            ),
            HoldError::Forked => f.write_str(
                "this process was forked from one that holds leases and has no keeper: start a new program \
                 instead",
            ),
            HoldError::NoThread(error) => write!(f, "cannot start the keeper's thread: {error}"),
            HoldError::Lease(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error> std::error::Error for HoldError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            HoldError::NoThread(error) => Some(error),
            // The text of a verb's error is already the whole text of this one.
            HoldError::Lease(error) => error.source(),
            _ => None,
        }
    }
}

impl<E> From<Lost> for HoldError<E> {
    fn from(lost: Lost) -> Self {
        HoldError::Lost(lost)
    }
}

impl<E> From<NoKeeper> for HoldError<E> {
    fn from(error: NoKeeper) -> Self {
        match error {
            NoKeeper::Forked => HoldError::Forked,
            NoKeeper::NoThread(error) => HoldError::NoThread(error),
        }
    }
}
