//! What can go wrong.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use litelease_hold::Loss;

use crate::Lease;

/// Why a client has no answer, or not the one it wants.
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
        /// The server's word for why: `superseded`, `released`, `expired`.
        reason: String,
        /// The newest token of the name, if the grant was superseded.
        by: Option<i64>,
        /// The present lease on the name, if there is one.
        current: Option<Box<Lease>>,
    },
    /// The receipt of a delivery no longer passes: the work belongs to another worker.
    Stale {
        /// The server's word for why: `delivered_again`, `given_back`, `gone`.
        reason: String,
    },
    /// Another client has asked the holder for the lease before.
    RequestedBy {
        /// Who.
        requester: String,
    },
    /// The held lease can no longer be trusted.
    Lost(Loss),
    /// The server refuses the request: 401 and 403 are about the access key.
    Refused {
        /// The status.
        status: u16,
        /// What the server says.
        text: String,
    },
    /// The server cannot be reached or has failed, and trying again did not help in time. Whether
    /// the request was done is not known.
    Unreachable(String),
    /// The URL is not one of a server.
    InvalidUrl(String),
    /// The URL is not one of a pool. It is not shown: it may be a secret.
    InvalidPool,
    /// An access key, or the URL of a pool, would be sent over the network in the clear: use https.
    Insecure,
    /// The file with the access key cannot be read.
    Access(io::Error),
    /// The file with the certificates of CAs cannot be used.
    CaFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: io::Error,
    },
    /// The ttl is too short to be kept alive: at least 101 ms.
    TtlTooShort(Duration),
    /// The system gives no thread.
    NoThread(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Busy(lease) => {
                write!(f, "{:?} is held by {:?} (token {})", lease.name, lease.owner, lease.token)
            }
            Error::NoneFree => f.write_str("no slot is free"),
            Error::Rejected { reason, .. } => write!(f, "the grant is no longer current: {reason}"),
            Error::Stale { reason } => write!(f, "the receipt is stale: {reason}"),
            Error::RequestedBy { requester } => {
                write!(f, "{requester:?} has asked for the lease before: wait, or try again later")
            }
            Error::Lost(loss) => write!(f, "the lease is lost: {loss}"),
            Error::Refused { status, text } => {
                write!(f, "the server refuses it ({status}): {text}")
            }
            Error::Unreachable(why) => write!(f, "the server cannot be reached: {why}"),
            Error::InvalidUrl(url) => {
                write!(
                    f,
                    "{url:?} is no URL of a server: say http://127.0.0.1:7070 or https://HOST"
                )
            }
            Error::InvalidPool => {
                f.write_str("the URL is not one of a pool: it is http://HOST:PORT/l/UUID")
            }
            Error::Insecure => {
                f.write_str("the secret would go over the network in the clear: use https")
            }
            Error::Access(error) => write!(f, "the file with the access key: {error}"),
            Error::CaFile { path, error } => {
                write!(f, "the CA file {:?}: {error}", path.display().to_string())
            }
            Error::TtlTooShort(ttl) => {
                write!(f, "a ttl of {ttl:?} is too short to be kept alive: at least 101 ms")
            }
            Error::NoThread(error) => write!(f, "the system gives no thread: {error}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Loss> for Error {
    fn from(loss: Loss) -> Self {
        Error::Lost(loss)
    }
}
