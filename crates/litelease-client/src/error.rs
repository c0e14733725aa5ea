//! The errors of a client.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use litelease_core::{NewestTick, Refusal};
use litelease_hold::{HoldError, Lost};

use crate::Lease;

/// The reason why a call has no answer, or is refused.
///
/// ```
/// # use litelease_client::{Client, Error};
/// assert!(matches!(Client::open("ftp://localhost"), Err(Error::InvalidUrl(_))));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The name has a live owner, and the time to wait is over.
    Busy(Box<Lease>),
    /// No slot of the pool is free, and the time to wait is over.
    NoneFree,
    /// The grant is no longer current.
    Rejected {
        /// The server's word for it: `superseded`, `released`, `expired`.
        reason: String,
        /// The newest token of the name, if the grant was superseded.
        by: Option<i64>,
        /// The present lease on the name, if there is one.
        current: Option<Box<Lease>>,
    },
    /// The receipt of a delivery no longer passes: the work belongs to another worker.
    Stale {
        /// The server's word for it: `delivered_again`, `given_back`, `gone`.
        reason: String,
    },
    /// Another client requested the lease from its holder before.
    RequestedBy {
        /// The owner text of that client.
        requester: String,
    },
    /// The tick is taken: another client has it, or it is done. Nothing is granted.
    TickTaken(NewestTick),
    /// The tick is more than a minute ahead of the clock that judges it.
    TickInFuture {
        /// That clock.
        now_ms: i64,
    },
    /// The newest stored tick is ahead of the clock that judges it, which was set back.
    TickAhead {
        /// The stored tick.
        tick_ms: i64,
        /// That clock.
        now_ms: i64,
    },
    /// A tick is to be begun and finished at once, while a holder is at work on one.
    TickHeld {
        /// The tick under way.
        tick_ms: i64,
    },
    /// The grant does not have its tick any more: another one was granted it.
    StaleTick {
        /// The newest tick that is taken.
        newest: Option<NewestTick>,
    },
    /// The held lease can no longer be trusted.
    Lost(Lost),
    /// The server refuses the request: 401 and 403 are about the access key.
    Refused {
        /// The status.
        status: u16,
        /// The text of the server.
        text: String,
    },
    /// The server cannot be reached or has failed, and trying again did not help in time. The
    /// request may have been carried out.
    Unreachable(String),
    /// The URL is not that of a server.
    InvalidUrl(String),
    /// The URL is not that of a pool. It is not shown, because it may be a secret.
    InvalidPool,
    /// An access key, or the URL of a pool, would be sent over the network in the clear: use https.
    Insecure,
    /// The file with the access key cannot be read.
    Access(io::Error),
    /// The file with the certificates of CAs cannot be used.
    CaFile {
        /// The file.
        path: PathBuf,
        /// The error of the system, or of the parser.
        error: io::Error,
    },
    /// The ttl is too short to be kept alive: at least 101 ms.
    TtlTooShort(Duration),
    /// The options of a worker contradict each other or are out of range.
    InvalidWorker(&'static str),
    /// This process was forked from one that holds leases through this client, and has no keeper.
    Forked,
    /// The system cannot start a thread.
    NoThread(io::Error),
}

/// Holding has the same error texts on every place.
type Common = HoldError<Infallible>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Error::Busy(current) => Common::Busy((&**current).into()).to_string(),
            Error::Lost(lost) => lost.to_string(),
            Error::TtlTooShort(ttl) => Common::TtlTooShort(*ttl).to_string(),
            Error::Forked => Common::Forked.to_string(),
            Error::NoThread(error) => {
                Common::NoThread(io::Error::new(error.kind(), error.to_string())).to_string()
            }
            Error::InvalidWorker(what) => (*what).into(),
            Error::TickTaken(newest) => format!("the tick is taken: {newest}"),
            Error::TickInFuture { now_ms } => format!(
                "the tick is more than a minute ahead of the server's clock, which says {now_ms}"
            ),
            Error::TickAhead { tick_ms, now_ms } => {
                Refusal::TickAhead { tick_ms: *tick_ms, now_ms: *now_ms }.to_string()
            }
            Error::TickHeld { tick_ms } => Refusal::TickHeld { tick_ms: *tick_ms }.to_string(),
            Error::StaleTick { newest } => {
                let newest = newest.map_or("there is none".into(), |newest| newest.to_string());
                format!("the grant does not have its tick any more: {newest}")
            }
            Error::NoneFree => "no slot is free".into(),
            Error::Rejected { reason, .. } => format!("the grant is no longer current: {reason}"),
            Error::Stale { reason } => format!("the receipt is stale: {reason}"),
            Error::RequestedBy { requester } => {
                format!("{requester:?} has asked for the lease before: wait, or try again later")
            }
            Error::Refused { status, text } => format!("the server refuses it ({status}): {text}"),
            Error::Unreachable(why) => format!("the server cannot be reached: {why}"),
            Error::InvalidUrl(url) => {
                format!("{url:?} is no URL of a server: say http://127.0.0.1:7070 or https://HOST")
            }
            Error::InvalidPool => {
                "the URL is not one of a pool: it is http://HOST:PORT/l/UUID".into()
            }
            Error::Insecure => {
                "the secret would go over the network in the clear: use https".into()
            }
            Error::Access(error) => format!("the file with the access key: {error}"),
            Error::CaFile { path, error } => {
                format!("the CA file {:?}: {error}", path.display().to_string())
            }
        };
        f.write_str(&text)
    }
}

impl std::error::Error for Error {}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Self {
        Error::Lost(lost)
    }
}

impl From<HoldError<Error>> for Error {
    fn from(error: HoldError<Error>) -> Self {
        match error {
            HoldError::Busy(current) => Error::Busy(Box::new(current.into())),
            HoldError::Lost(lost) => Error::Lost(lost),
            HoldError::TtlTooShort(ttl) => Error::TtlTooShort(ttl),
            HoldError::Forked => Error::Forked,
            HoldError::NoThread(error) => Error::NoThread(error),
            HoldError::Lease(error) => error,
            // The word of the service for a lease that no client has requested.
            _ => Error::Rejected { reason: "not_requested".into(), by: None, current: None },
        }
    }
}
