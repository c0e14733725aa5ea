//! Errors of engines and of the verbs over them: each names what went wrong and what to do.

use std::fmt;

use litelease_core::{Lease, Refusal};

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The failures on several machines. A "no" of the rule (busy, rejected) is an answer and
/// never comes as an error.
///
/// ```
/// # use litelease_cluster::Error;
/// let error = Error::Unreachable("127.0.0.1:2379: connection refused".into());
/// assert_eq!(error.kind(), "Unreachable");
/// assert!(error.to_string().contains("nothing was stored"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The URL names no engine. The text names the part that is wrong, and never shows a password.
    InvalidUrl(String),
    /// A name or an owner is too long, or has a character that the engine cannot store. Nothing was
    /// sent.
    InvalidName {
        /// Which text it is: `name` or `owner`.
        what: &'static str,
        /// The flaw.
        reason: String,
    },
    /// The ttl is zero or negative. Nothing was sent.
    InvalidTtl {
        /// The ttl that was given.
        ttl_ms: i64,
    },
    /// The lease would end beyond what 64 bits of milliseconds can hold. Nothing was stored.
    TimeOverflow {
        /// The time of the request.
        now_ms: i64,
        /// The ttl that was given.
        ttl_ms: i64,
    },
    /// A time of a limit or a request is zero or negative. Nothing was stored.
    InvalidTime {
        /// Which time it is.
        what: &'static str,
        /// The time that was given.
        ms: i64,
    },
    /// The next token would be more than 64 bits can hold. Nothing was stored.
    TokenExhausted,
    /// A floor was to be raised to less than it is. Nothing was stored.
    FloorTooLow {
        /// The floor that was given.
        floor: i64,
        /// The floor or token that is there.
        present: i64,
    },
    /// The engine has no tables for leases yet: call `bootstrap`.
    NotBootstrapped,
    /// No member answered in time. Nothing was stored.
    Unreachable(String),
    /// A change was sent and its answer was lost, so it may or may not be stored. It is not a
    /// grant. `inspect` returns the present row.
    CommitUnknown(String),
    /// The engine's state is older than one that this process has seen: an older copy was restored.
    /// This process is granted nothing any more.
    Forgotten {
        /// The newest revision that this process has seen.
        seen: i64,
        /// The revision that was answered.
        found: i64,
    },
    /// The lease was stored, and was over before the answer arrived. It is not the caller's.
    ExpiredOnArrival(Lease),
    /// The stored row of this name breaks what every writer promises. It is never repaired or used.
    InvalidLeaseRow {
        /// The name.
        name: String,
        /// The flaw of the row.
        reason: String,
    },
    /// A table or key of ours is not as it should be. It is never repaired or used as it is.
    SchemaMismatch {
        /// The table or key.
        table: String,
        /// The first difference.
        reason: String,
    },
    /// A newer version of Litelease has written here, in a way that this one does not understand.
    NewerFormat {
        /// The format number that is stored.
        found: i64,
        /// The newest one that this version knows.
        known: i64,
    },
    /// The table cannot be guarded, or not in this way. Nothing was changed.
    CannotGuard {
        /// The table.
        table: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// The engine could not get a lock in time, or could not serialise a transaction. Nothing was
    /// stored; trying again can help.
    Locked(String),
    /// The engine refuses: a wrong password, a certificate that does not match, no space, a version
    /// that is too old. Nothing was stored; trying again does not help before an operator
    /// changes that.
    Refused(String),
}

impl Error {
    /// Returns the name of the case, the same in every language.
    pub fn kind(&self) -> &'static str {
        match self {
            Error::InvalidUrl(_) => "InvalidUrl",
            Error::InvalidName { .. } => "InvalidName",
            Error::InvalidTtl { .. } => "InvalidTtl",
            Error::TimeOverflow { .. } => "TimeOverflow",
            Error::InvalidTime { .. } => "InvalidTime",
            Error::TokenExhausted => "TokenExhausted",
            Error::FloorTooLow { .. } => "FloorTooLow",
            Error::NotBootstrapped => "NotBootstrapped",
            Error::Unreachable(_) => "Unreachable",
            Error::CommitUnknown(_) => "CommitUnknown",
            Error::Forgotten { .. } => "Forgotten",
            Error::ExpiredOnArrival(_) => "ExpiredOnArrival",
            Error::InvalidLeaseRow { .. } => "InvalidLeaseRow",
            Error::SchemaMismatch { .. } => "SchemaMismatch",
            Error::NewerFormat { .. } => "NewerFormat",
            Error::CannotGuard { .. } => "CannotGuard",
            Error::Locked(_) => "Locked",
            Error::Refused(_) => "Refused",
        }
    }

    /// Checks whether the same call may succeed later although nothing is changed.
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::Unreachable(_) | Error::Locked(_))
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::InvalidTtl { ttl_ms } => Error::InvalidTtl { ttl_ms },
            Refusal::TimeOverflow { now_ms, ttl_ms } => Error::TimeOverflow { now_ms, ttl_ms },
            Refusal::InvalidTime { what, ms } => Error::InvalidTime { what, ms },
            Refusal::TokenExhausted => Error::TokenExhausted,
            // Of verbs that only files have.
            refusal => Error::Refused(refusal.to_string()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::InvalidUrl(reason) => write!(f, "{reason}"),
            Error::InvalidName { what, reason } => write!(f, "the {what} {reason}"),
            Error::InvalidTtl { ttl_ms } => {
                write!(f, "{}", Refusal::InvalidTtl { ttl_ms: *ttl_ms })
            }
            Error::TimeOverflow { now_ms, ttl_ms } => {
                write!(f, "{}", Refusal::TimeOverflow { now_ms: *now_ms, ttl_ms: *ttl_ms })
            }
            Error::InvalidTime { what, ms } => {
                write!(f, "{}", Refusal::InvalidTime { what, ms: *ms })
            }
            Error::TokenExhausted => write!(f, "{}", Refusal::TokenExhausted),
            Error::FloorTooLow { floor, present } => {
                write!(f, "the floor is {present} already, so it cannot be {floor}")
            }
            Error::NotBootstrapped => {
                f.write_str("the engine has no tables for leases yet: call bootstrap()")
            }
            Error::Unreachable(reason) => {
                write!(f, "no answer in time, and nothing was stored: {reason}")
            }
            Error::CommitUnknown(reason) => write!(
                f,
                "the answer was lost, so the change may or may not be stored \
                 (`inspect` tells what is there now): {reason}"
            ),
            Error::Forgotten { seen, found } => write!(
                f,
                "the engine is at revision {found}, and this process has seen {seen}: an older copy \
                 was restored; run `litelease restore-fence`, then restart this process"
            ),
            Error::ExpiredOnArrival(lease) => write!(
                f,
                "the lease on {:?} under token {} was over before its answer arrived; \
                 use a longer ttl",
                lease.name, lease.token
            ),
            Error::InvalidLeaseRow { name, reason } => {
                write!(f, "the stored row of {name:?} is not valid: {reason}")
            }
            Error::SchemaMismatch { table, reason } => write!(f, "{table} is not ours: {reason}"),
            Error::NewerFormat { found, known } => write!(
                f,
                "a newer Litelease has written here (format {found}, this one knows {known}): \
                 update this program"
            ),
            Error::CannotGuard { table, reason } => {
                write!(f, "the table {table:?} cannot be guarded: {reason}")
            }
            Error::Locked(reason) => {
                write!(f, "the engine was busy, and nothing was stored: {reason}; try again")
            }
            Error::Refused(reason) => write!(f, "{reason}"),
        }
    }
}

impl std::error::Error for Error {}
