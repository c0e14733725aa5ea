//! What a failed request means: whether it can have been carried out, and whether trying again can help.

use std::io;

use litelease_engine::Error;
use tonic::{Code, Status};

/// Why a request got no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was not carried out. Another member may do.
    NotDone(String),
    /// It may or may not have been carried out.
    Unknown(String),
    /// The token of the login is no longer valid. It was not carried out.
    LoggedOut,
    /// It was not carried out, and will not be before somebody changes something.
    Refused(String),
}

impl Failure {
    /// Reads a status that is no success.
    pub(crate) fn of(host: &str, status: &Status) -> Self {
        let text = status.message();
        let said = format!("{host}: {text}");
        match status.code() {
            Code::Unauthenticated => Failure::LoggedOut,
            Code::PermissionDenied => Failure::Refused(format!(
                "{said}: grant this user reading and writing of all keys below the prefix"
            )),
            Code::InvalidArgument if text.contains("authentication failed") => {
                Failure::Refused(format!("{host}: etcd refuses this user and password"))
            }
            Code::InvalidArgument if text.contains("user name is empty") => Failure::Refused(
                format!("{host}: etcd asks for a user: write etcd://USER:PASSWORD@HOST"),
            ),
            Code::FailedPrecondition if text.contains("authentication is not enabled") => {
                Failure::Refused(format!(
                    "{host}: this etcd knows no users: leave USER:PASSWORD@ out of the URL"
                ))
            }
            Code::ResourceExhausted if text.contains("space exceeded") => {
                Failure::Refused(format!(
                    "{said}: compact and defragment etcd, then disarm its alarm (etcdctl compact, \
                 defrag, alarm disarm)"
                ))
            }
            Code::ResourceExhausted => Failure::NotDone(said),
            Code::Unimplemented => Failure::Refused(format!("{said}: etcd 3.4 or newer is needed")),
            Code::Unavailable if is_not_done(text) => Failure::NotDone(said),
            // A list is read page by page, at one revision, and that may be gone meanwhile.
            Code::OutOfRange if text.contains("compacted") => Failure::NotDone(said),
            Code::InvalidArgument | Code::OutOfRange | Code::FailedPrecondition => {
                Failure::Refused(said)
            }
            _ => Failure::of_transport(host, status),
        }
    }

    /// Reads an error of the connection.
    pub(crate) fn of_transport(host: &str, error: &(dyn std::error::Error + 'static)) -> Self {
        let mut texts: Vec<String> = Vec::new();
        let mut is_refused = false;
        let mut source = Some(error);
        while let Some(error) = source {
            // A status prints all its fields; what matters is in its source.
            let text = match error.downcast_ref::<Status>() {
                Some(status) => status.message().to_owned(),
                None => error.to_string(),
            };
            is_refused |= error.downcast_ref::<io::Error>().is_some_and(is_before_connected);
            if texts.last() != Some(&text) {
                texts.push(text);
            }
            source = error.source();
        }
        let text = format!("{host}: {}", texts.join(": "));
        let of_tls = ["certificate", "HandshakeFailure", "UnknownIssuer", "InvalidContentType"];
        match &text {
            text if of_tls.iter().any(|word| text.contains(word)) => Failure::Refused(format!(
                "{text}: check etcds:// and its parameters ca, cert and key"
            )),
            _ if is_refused => Failure::NotDone(text),
            _ => Failure::Unknown(text),
        }
    }

    /// The error of a request that changes nothing.
    pub(crate) fn of_read(self) -> Error {
        match self {
            Failure::NotDone(text) | Failure::Unknown(text) => Error::Unreachable(text),
            Failure::LoggedOut => logged_out(),
            Failure::Refused(text) => Error::Refused(text),
        }
    }

    /// The error of a request that changes something.
    pub(crate) fn of_write(self) -> Error {
        match self {
            Failure::Unknown(text) => Error::CommitUnknown(text),
            failure => failure.of_read(),
        }
    }
}

fn logged_out() -> Error {
    Error::Refused(
        "etcd does not accept its own login: are the clocks of its members right?".into(),
    )
}

/// What etcd says before it proposes anything to the others. A timeout and a leader that changed are not among it.
fn is_not_done(text: &str) -> bool {
    let texts = ["no leader", "not supported for learner", "too many learner", "server stopped"];
    texts.iter().any(|known| text.contains(known))
}

/// Checks whether an error can only come before a connection is there.
fn is_before_connected(error: &io::Error) -> bool {
    use io::ErrorKind::{AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkUnreachable};
    let kinds = [AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkUnreachable];
    kinds.contains(&error.kind()) || error.to_string().contains("failed to lookup address")
}
