//! The meaning of a failed request: whether it can have been carried out, and whether trying again
//! can help.

use std::io;

use crate::engine::Error;
use crate::etcd::grpc::{Status, code};

/// The reason why a request got no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was not carried out. Another member may do.
    NotDone(String),
    /// It may or may not have been carried out.
    Unknown(String),
    /// The token of the login is no longer valid. It was not carried out.
    LoggedOut,
    /// It was not carried out, and will not be before an operator changes something.
    Refused(String),
}

impl Failure {
    /// Reads a status that is no success.
    pub(crate) fn from_status(host: &str, status: &Status) -> Self {
        let text = status.message.as_str();
        let said = format!("{host}: {text}");
        match status.code {
            code::UNAUTHENTICATED => Failure::LoggedOut,
            code::PERMISSION_DENIED => Failure::Refused(format!(
                "{said}: grant this user reading and writing of all keys below the prefix"
            )),
            code::INVALID_ARGUMENT if text.contains("authentication failed") => {
                Failure::Refused(format!("{host}: etcd refuses this user and password"))
            }
            code::INVALID_ARGUMENT if text.contains("user name is empty") => Failure::Refused(
                format!("{host}: etcd asks for a user: write etcd://USER:PASSWORD@HOST"),
            ),
            // Users were changed since the login, and the token is of the time before.
            code::INVALID_ARGUMENT if text.contains("revision of auth store is old") => {
                Failure::LoggedOut
            }
            code::FAILED_PRECONDITION if text.contains("authentication is not enabled") => {
                Failure::Refused(format!(
                    "{host}: this etcd knows no users: leave USER:PASSWORD@ out of the URL"
                ))
            }
            code::RESOURCE_EXHAUSTED if text.contains(FULL) => Failure::Refused(format!(
                "{said}: compact and defragment etcd, then disarm its alarm (etcdctl compact, \
                 defrag, alarm disarm)"
            )),
            code::RESOURCE_EXHAUSTED => Failure::NotDone(said),
            code::UNIMPLEMENTED => Failure::Refused(format!("{said}: etcd 3.4 or newer is needed")),
            code::UNAVAILABLE if is_not_done(text) => Failure::NotDone(said),
            // A list is read page by page, at one revision, and that may be gone meanwhile.
            code::OUT_OF_RANGE if text.contains("compacted") => Failure::NotDone(said),
            code::INVALID_ARGUMENT | code::OUT_OF_RANGE | code::FAILED_PRECONDITION => {
                Failure::Refused(said)
            }
            _ => Failure::of_transport(said),
        }
    }

    /// Reads an error of connecting: nothing was sent.
    pub(crate) fn of_connecting(host: &str, error: &io::Error) -> Self {
        match Failure::of_transport(format!("{host}: {error}")) {
            Failure::Unknown(text) => Failure::NotDone(text),
            failure => failure,
        }
    }

    /// Reads an error of the connection.
    fn of_transport(text: String) -> Self {
        let of_tls = ["certificate", "HandshakeFailure", "UnknownIssuer", "InvalidContentType"];
        match of_tls.iter().any(|word| text.contains(word)) {
            true => Failure::Refused(format!(
                "{text}: check etcds:// and its parameters ca, cert and key"
            )),
            false => Failure::Unknown(text),
        }
    }

    /// Returns the error of a request that changes nothing.
    pub(crate) fn of_read(self) -> Error {
        match self {
            Failure::NotDone(text) | Failure::Unknown(text) => Error::Unreachable(text),
            Failure::LoggedOut => logged_out(),
            Failure::Refused(text) => Error::Refused(text),
        }
    }

    /// Returns the error of a request that changes rows.
    pub(crate) fn of_write(self) -> Error {
        match self {
            Failure::Unknown(text) => Error::CommitUnknown(text),
            failure => failure.of_read(),
        }
    }
}

/// A part of the error of an etcd that has no space left.
const FULL: &str = "space exceeded";

/// Checks whether etcd refuses because it has no space left.
pub(crate) fn is_full(error: &Error) -> bool {
    matches!(error, Error::Refused(text) if text.contains(FULL))
}

fn logged_out() -> Error {
    Error::Refused(
        "etcd does not accept its own login: are the clocks of its members right?".into(),
    )
}

/// Checks whether etcd returns this before it proposes anything to the other members. Timeouts, a
/// change of the leader and a member that stops are not among these.
fn is_not_done(text: &str) -> bool {
    let texts = ["no leader", "not supported for learner", "too many learner"];
    texts.iter().any(|known| text.contains(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(code: u32, message: &str) -> Failure {
        Failure::from_status("m1", &Status { code, message: format!("etcdserver: {message}") })
    }

    #[test]
    fn only_what_etcd_says_before_it_proposes_is_not_done() {
        assert!(matches!(failure(code::UNAVAILABLE, "no leader"), Failure::NotDone(_)));
        // A member that stops returns it, while others may already agree.
        assert!(matches!(failure(code::UNAVAILABLE, "server stopped"), Failure::Unknown(_)));
        assert!(matches!(failure(code::UNAVAILABLE, "request timed out"), Failure::Unknown(_)));
    }

    #[test]
    fn a_login_from_before_a_change_of_users_is_made_again() {
        let old = failure(code::INVALID_ARGUMENT, "revision of auth store is old");
        assert!(matches!(old, Failure::LoggedOut));
        assert!(matches!(failure(code::INVALID_ARGUMENT, "duplicate key"), Failure::Refused(_)));
    }
}
