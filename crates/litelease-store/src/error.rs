//! Errors: each names what went wrong, where, and what to do.

use std::fmt;

use litelease_core::{Lease, MAX_ATTEMPTS, MAX_COUNT, NewestTick, Refusal, StaleReason};

use crate::code;

/// An error of the store. `E` is how SQLite's own errors are carried: a [`Failure`] here,
/// `rusqlite::Error` in the `litelease` crate.
///
/// A "no" of the rule (busy, rejected) is an answer and never comes as an error.
///
/// ```
/// # use litelease_store::Error;
/// let error: Error = Error::NotBootstrapped;
/// assert_eq!(error.kind(), "NotBootstrapped");
/// assert!(error.to_string().contains("call bootstrap()"));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error<E = Failure> {
    /// The ttl is zero or negative. Nothing was written.
    InvalidTtl {
        /// The name in the call.
        name: String,
        /// The ttl that was given.
        ttl_ms: i64,
    },
    /// The lease would end beyond what 64 bits of milliseconds can hold. Nothing was written.
    TimeOverflow {
        /// The name in the call.
        name: String,
        /// The time of the request.
        now_ms: i64,
        /// The ttl that was given.
        ttl_ms: i64,
    },
    /// A time other than a ttl is zero or negative. Nothing was written.
    InvalidTime {
        /// The name in the call.
        name: String,
        /// Which time.
        what: &'static str,
        /// The time that was given.
        time_ms: i64,
    },
    /// The next token would be more than 64 bits can hold. Nothing was written.
    TokenExhausted {
        /// The name in the call.
        name: String,
    },
    /// The ttl of a read is longer than an hour. Nothing was written.
    TtlTooLong {
        /// The name in the call.
        name: String,
        /// The ttl that was given.
        ttl_ms: i64,
        /// The longest that may be.
        most_ms: i64,
    },
    /// A floor was to be raised to less than it is. Nothing was written.
    FloorTooLow {
        /// The name whose token it is; `None` for the floor of the file.
        name: Option<String>,
        /// The floor that was given.
        floor: i64,
        /// The floor as it is.
        present: i64,
    },
    /// A restored file is to be fenced where the system has no boot id. There every start of a
    /// process takes an epoch, so it is not known how far to raise tokens: pass the largest token
    /// that was seen. Nothing was written.
    LargestTokenNeeded,
    /// The database has no lease table yet: call `bootstrap`.
    NotBootstrapped,
    /// A table of ours is not as it should be. It is never repaired or used as it is.
    SchemaMismatch {
        /// The table.
        table: &'static str,
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
    /// The table cannot be guarded in this way. Nothing was changed.
    CannotGuard {
        /// The table.
        table: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// The table was guarded, and its triggers are gone or changed: a rebuild of the table drops
    /// them. Any connection can write to it until it is guarded again.
    GuardMissing {
        /// The table.
        table: String,
    },
    /// A pool has 0 to 1,000,000 slots. Nothing was changed.
    InvalidCount {
        /// The number that was given.
        count: i64,
    },
    /// A text of a borrow or of an item is too short or too long. Nothing was changed.
    InvalidText {
        /// Which one.
        what: &'static str,
        /// The fewest bytes that it must have.
        least: usize,
        /// The most bytes that it may have.
        most: usize,
        /// The bytes that it has.
        bytes: usize,
    },
    /// The delay of an item is negative. Nothing was changed.
    InvalidDelay {
        /// The queue, or the other subject of the call.
        name: String,
        /// The delay that was given.
        delay_ms: i64,
    },
    /// A queue allows 0 (any number) to 1,000,000,000 attempts, and a tick 1 or more. Nothing was
    /// changed.
    InvalidAttempts {
        /// The number that was given.
        max_attempts: i64,
    },
    /// The newest tick of a name is more than a minute ahead of the clock, which was set back, or
    /// an operator has paused the schedule. Nothing was written.
    TickAhead {
        /// The name.
        name: String,
        /// Its newest tick.
        tick_ms: i64,
        /// The clock.
        now_ms: i64,
    },
    /// A tick is more than a minute ahead of the clock. In SQL, where no answer can say so.
    TickInFuture {
        /// The name.
        name: String,
        /// The tick that was asked for.
        tick_ms: i64,
        /// The clock.
        now_ms: i64,
    },
    /// A tick was to be begun and finished at once while a holder is at work on one. Nothing was
    /// written.
    TickHeld {
        /// The name.
        name: String,
        /// The tick under way.
        tick_ms: i64,
    },
    /// The grant does not have its tick any more. Nothing was written; in `finish` this means that
    /// everything was rolled back.
    StaleTick {
        /// The name.
        name: String,
        /// The token of the grant.
        token: i64,
        /// The newest tick of the name.
        newest: Option<NewestTick>,
    },
    /// The receipt of a delivery does not pass any more. In `finish` this means that everything was
    /// rolled back.
    StaleReceipt {
        /// The reason.
        reason: StaleReason,
    },
    /// There is no pool of this id: it was never registered, or it was deleted.
    NoSuchPool,
    /// The stored row of this name breaks what every writer promises. It is never repaired or used.
    InvalidLeaseRow(String),
    /// The lease was stored, and was over before it could be returned. It is not the caller's.
    ExpiredOnArrival(Lease),
    /// The change may have been stored or not. It is not a grant. `inspect` returns the present
    /// row; a live lease is the caller's grant only if its owner text was made for this one
    /// attempt.
    CommitUnknown(E),
    /// The transaction that a call was meant for has already ended, by SQLite itself after an error
    /// or by a statement of the caller's. Nothing was written.
    TransactionEnded,
    /// A handle that only joins transactions was used where none is open: SQLite ended it after an
    /// error, a statement of the caller's did, or it was never begun. Nothing was written.
    NotInTransaction,
    /// A write changed another number of rows than it must. Inside a caller's transaction it is the
    /// caller's to roll back.
    UnexpectedChange {
        /// The row that was written.
        what: String,
        /// The number of rows that should have changed.
        expected: i64,
        /// The number of rows that did.
        changed: i64,
    },
    /// SQLite's own error, with its extended code: BUSY, LOCKED, READONLY, FULL and so on.
    Sqlite(E),
    /// An error of a hold, a wait or a worker, on its way through a function that also calls verbs.
    /// `HoldError::from` gives its case back.
    Hold {
        /// The name of its case.
        kind: &'static str,
        /// The error.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The text of [`Error::LargestTokenNeeded`], in every language.
const LARGEST_TOKEN_NEEDED: &str = "this system has no boot id, so every start of a process takes an epoch, and how \
     many were taken since the backup is not known: pass the largest token that was seen anywhere, or 0 if none was \
     (restore-fence --above TOKEN on the command line, restore_fence_above(token) in Rust, restore_fence(above=token) in \
     Python, litelease_restore_fence(token) in SQL)";

/// An error of SQLite: its extended code and its message.
///
/// ```
/// # use litelease_store::Failure;
/// let failure = Failure { code: 5, message: "database is locked".into() };
/// assert_eq!(failure.to_string(), "database is locked");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The extended result code.
    pub code: i32,
    /// The message of SQLite, with the action and the table or name.
    pub message: String,
}

impl<E> Error<E> {
    /// Returns the name of the case, the same in every language: `SchemaMismatch`, `InvalidTtl` and
    /// so on.
    pub fn kind(&self) -> &'static str {
        match self {
            Error::InvalidTtl { .. } => "InvalidTtl",
            Error::TimeOverflow { .. } => "TimeOverflow",
            Error::InvalidTime { .. } => "InvalidTime",
            Error::TokenExhausted { .. } => "TokenExhausted",
            Error::TtlTooLong { .. } => "TtlTooLong",
            Error::FloorTooLow { .. } => "FloorTooLow",
            Error::LargestTokenNeeded => "LargestTokenNeeded",
            Error::NotBootstrapped => "NotBootstrapped",
            Error::SchemaMismatch { .. } => "SchemaMismatch",
            Error::NewerFormat { .. } => "NewerFormat",
            Error::CannotGuard { .. } => "CannotGuard",
            Error::GuardMissing { .. } => "GuardMissing",
            Error::InvalidCount { .. } => "InvalidCount",
            Error::InvalidText { .. } => "InvalidText",
            Error::InvalidDelay { .. } => "InvalidDelay",
            Error::InvalidAttempts { .. } => "InvalidAttempts",
            Error::TickAhead { .. } => "TickAhead",
            Error::TickInFuture { .. } => "TickInFuture",
            Error::TickHeld { .. } => "TickHeld",
            Error::StaleTick { .. } => "StaleTick",
            Error::StaleReceipt { .. } => "StaleReceipt",
            Error::NoSuchPool => "NoSuchPool",
            Error::InvalidLeaseRow(_) => "InvalidLeaseRow",
            Error::ExpiredOnArrival(_) => "ExpiredOnArrival",
            Error::CommitUnknown(_) => "CommitUnknown",
            Error::TransactionEnded => "TransactionEnded",
            Error::NotInTransaction => "NotInTransaction",
            Error::UnexpectedChange { .. } => "UnexpectedChange",
            Error::Sqlite(_) => "Sqlite",
            Error::Hold { kind, .. } => kind,
        }
    }

    /// Returns the error with SQLite's part in another form.
    pub fn map_sqlite<F>(self, form: impl FnOnce(E) -> F) -> Error<F> {
        match self {
            Error::InvalidTtl { name, ttl_ms } => Error::InvalidTtl { name, ttl_ms },
            Error::TimeOverflow { name, now_ms, ttl_ms } => {
                Error::TimeOverflow { name, now_ms, ttl_ms }
            }
            Error::InvalidTime { name, what, time_ms } => {
                Error::InvalidTime { name, what, time_ms }
            }
            Error::TokenExhausted { name } => Error::TokenExhausted { name },
            Error::TtlTooLong { name, ttl_ms, most_ms } => {
                Error::TtlTooLong { name, ttl_ms, most_ms }
            }
            Error::FloorTooLow { name, floor, present } => {
                Error::FloorTooLow { name, floor, present }
            }
            Error::LargestTokenNeeded => Error::LargestTokenNeeded,
            Error::NotBootstrapped => Error::NotBootstrapped,
            Error::SchemaMismatch { table, reason } => Error::SchemaMismatch { table, reason },
            Error::NewerFormat { found, known } => Error::NewerFormat { found, known },
            Error::CannotGuard { table, reason } => Error::CannotGuard { table, reason },
            Error::GuardMissing { table } => Error::GuardMissing { table },
            Error::InvalidCount { count } => Error::InvalidCount { count },
            Error::InvalidText { what, least, most, bytes } => {
                Error::InvalidText { what, least, most, bytes }
            }
            Error::InvalidDelay { name, delay_ms } => Error::InvalidDelay { name, delay_ms },
            Error::InvalidAttempts { max_attempts } => Error::InvalidAttempts { max_attempts },
            Error::TickAhead { name, tick_ms, now_ms } => {
                Error::TickAhead { name, tick_ms, now_ms }
            }
            Error::TickInFuture { name, tick_ms, now_ms } => {
                Error::TickInFuture { name, tick_ms, now_ms }
            }
            Error::TickHeld { name, tick_ms } => Error::TickHeld { name, tick_ms },
            Error::StaleTick { name, token, newest } => Error::StaleTick { name, token, newest },
            Error::StaleReceipt { reason } => Error::StaleReceipt { reason },
            Error::NoSuchPool => Error::NoSuchPool,
            Error::InvalidLeaseRow(name) => Error::InvalidLeaseRow(name),
            Error::ExpiredOnArrival(lease) => Error::ExpiredOnArrival(lease),
            Error::CommitUnknown(failure) => Error::CommitUnknown(form(failure)),
            Error::TransactionEnded => Error::TransactionEnded,
            Error::NotInTransaction => Error::NotInTransaction,
            Error::UnexpectedChange { what, expected, changed } => {
                Error::UnexpectedChange { what, expected, changed }
            }
            Error::Sqlite(failure) => Error::Sqlite(form(failure)),
            Error::Hold { kind, error } => Error::Hold { kind, error },
        }
    }
}

impl Error {
    pub(crate) fn refused(name: &str, refusal: Refusal) -> Self {
        let name = name.into();
        match refusal {
            Refusal::InvalidTtl { ttl_ms } => Error::InvalidTtl { name, ttl_ms },
            Refusal::InvalidDelay { delay_ms } => Error::InvalidDelay { name, delay_ms },
            Refusal::TimeOverflow { now_ms, ttl_ms } => {
                Error::TimeOverflow { name, now_ms, ttl_ms }
            }
            Refusal::TokenExhausted => Error::TokenExhausted { name },
            Refusal::TtlTooLong { ttl_ms, most_ms } => Error::TtlTooLong { name, ttl_ms, most_ms },
            Refusal::InvalidTime { what, ms } => Error::InvalidTime { name, what, time_ms: ms },
            Refusal::InvalidAttempts { attempts } => {
                Error::InvalidAttempts { max_attempts: attempts }
            }
            Refusal::TickAhead { tick_ms, now_ms } => Error::TickAhead { name, tick_ms, now_ms },
            Refusal::TickHeld { tick_ms } => Error::TickHeld { name, tick_ms },
        }
    }

    pub(crate) fn unexpected_change(name: &str, changed: i64) -> Self {
        let what = format!("the row of {}", Short(name));
        Error::UnexpectedChange { what, expected: 1, changed }
    }

    /// Converts the error into one that says that the change may have been stored.
    pub(crate) fn into_unknown(self) -> Self {
        match self {
            Error::Sqlite(failure) => Error::CommitUnknown(failure),
            error => error,
        }
    }

    /// Adds the action and the table or name to an error of SQLite.
    pub(crate) fn with_context(self, verb: &str, name: Option<&str>, file: String) -> Self {
        self.map_sqlite(|Failure { code, message }| {
            let what = name.map(|name| format!(" {}", Short(name))).unwrap_or_default();
            let file = if file.is_empty() { "a database in memory" } else { &file };
            Failure { code, message: format!("cannot {verb}{what} in {file}: {message}") }
        })
    }
}

/// The reason why the rule did not decide: it refuses the request, or the row cannot be read.
pub(crate) enum Undecided {
    Refused(Refusal),
    Failed(Error),
}

impl Undecided {
    /// Returns the error of a verb on `name`.
    #[cold]
    pub(crate) fn about(self, name: &str) -> Error {
        match self {
            Undecided::Refused(refusal) => Error::refused(name, refusal),
            Undecided::Failed(error) => error,
        }
    }
}

impl From<Refusal> for Undecided {
    fn from(refusal: Refusal) -> Self {
        Undecided::Refused(refusal)
    }
}

impl From<Error> for Undecided {
    fn from(error: Error) -> Self {
        Undecided::Failed(error)
    }
}

impl From<Failure> for Undecided {
    fn from(failure: Failure) -> Self {
        Undecided::Failed(Error::Sqlite(failure))
    }
}

impl Failure {
    /// Checks whether SQLite returns this code only if it has undone everything. After any other,
    /// such as an error of the disk, the change may have been stored.
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
            Error::InvalidTtl { name, ttl_ms } => {
                write!(f, "{}: {}", Short(name), Refusal::InvalidTtl { ttl_ms: *ttl_ms })
            }
            Error::TimeOverflow { name, now_ms, ttl_ms } => {
                let refusal = Refusal::TimeOverflow { now_ms: *now_ms, ttl_ms: *ttl_ms };
                write!(f, "{}: {refusal}", Short(name))
            }
            Error::InvalidTime { name, what, time_ms } => {
                let refusal = Refusal::InvalidTime { what, ms: *time_ms };
                write!(f, "{}: {refusal}", Short(name))
            }
            Error::TokenExhausted { name } => {
                write!(f, "{}: {}", Short(name), Refusal::TokenExhausted)
            }
            Error::TtlTooLong { name, ttl_ms, most_ms } => {
                let refusal = Refusal::TtlTooLong { ttl_ms: *ttl_ms, most_ms: *most_ms };
                write!(f, "{}: {refusal}", Short(name))
            }
            Error::FloorTooLow { name: Some(name), floor, present } => write!(
                f,
                "{}: its token is {present} already, and {floor} is less: tokens never sink",
                Short(name)
            ),
            Error::FloorTooLow { name: None, floor, present } => write!(
                f,
                "the floor of the file is {present} already, and {floor} is less: tokens never sink"
            ),
            Error::LargestTokenNeeded => f.write_str(LARGEST_TOKEN_NEEDED),
            Error::NotBootstrapped => {
                f.write_str("this database has no lease table yet: call bootstrap() once first")
            }
            Error::SchemaMismatch { table, reason } => {
                write!(f, "the table {table} is not as Litelease makes it: {reason}")
            }
            Error::NewerFormat { found, known } => write!(
                f,
                "the file has format {found} and this version knows {known} at most: use a newer Litelease"
            ),
            Error::CannotGuard { table, reason } => {
                write!(f, "the table {} cannot be guarded: {reason}", Short(table))
            }
            Error::GuardMissing { table } => write!(
                f,
                "the table {} was guarded, and its triggers are gone or changed, so anybody can write to it: \
                 guard it again, or unguard it if that is meant",
                Short(table)
            ),
            Error::InvalidCount { count } => {
                write!(f, "a pool has 0 to {MAX_COUNT} slots, got {count}")
            }
            Error::InvalidText { what, least, most, bytes } => {
                write!(f, "the {what} has {least} to {most} bytes, got {bytes}")
            }
            Error::InvalidDelay { name, delay_ms } => {
                let refusal = Refusal::InvalidDelay { delay_ms: *delay_ms };
                write!(f, "{}: {refusal}", Short(name))
            }
            Error::InvalidAttempts { max_attempts } => write!(
                f,
                "a queue allows 0 (any number) to {MAX_ATTEMPTS} attempts, and a tick 1 or more; got \
                 {max_attempts}"
            ),
            Error::TickAhead { name, tick_ms, now_ms } => {
                let refusal = Refusal::TickAhead { tick_ms: *tick_ms, now_ms: *now_ms };
                write!(f, "{}: {refusal}", Short(name))
            }
            Error::TickInFuture { name, tick_ms, now_ms } => write!(
                f,
                "{}: the tick {tick_ms} is more than a minute ahead of the clock, which says {now_ms}",
                Short(name)
            ),
            Error::TickHeld { name, tick_ms } => {
                write!(f, "{}: {}", Short(name), Refusal::TickHeld { tick_ms: *tick_ms })
            }
            Error::StaleTick { name, token, newest } => {
                let newest = newest.map_or("it has no tick".into(), |newest| format!("the tick {newest}"));
                let name = Short(name);
                write!(f, "{name}: the grant {token} does not have its tick any more: {newest}")
            }
            Error::StaleReceipt { reason } => write!(f, "stale receipt: {reason}"),
            Error::NoSuchPool => f.write_str("there is no such pool: register it first"),
            Error::InvalidLeaseRow(name) => write!(
                f,
                "the stored row of {} is invalid and was left alone: look at it in litelease_resources",
                Short(name)
            ),
            Error::ExpiredOnArrival(lease) => write!(
                f,
                "the lease on {} (token {}) was over before it could be returned: the ttl is too short \
                 for how long the write took",
                Short(&lease.name),
                lease.token
            ),
            Error::CommitUnknown(failure) => write!(
                f,
                "it is not known whether the change was stored; inspect before trying again: {failure}"
            ),
            Error::TransactionEnded => f.write_str(
                "the transaction has already ended, after an error or by another statement: nothing was \
                 written",
            ),
            Error::NotInTransaction => f.write_str(
                "no transaction is open on this connection, and nothing was written: if there was one, it was \
                 rolled back after an error or ended by another statement; begin again with BEGIN IMMEDIATE",
            ),
            Error::UnexpectedChange { what, expected, changed } => write!(
                f,
                "writing {what} changed {changed} rows instead of {expected}: something interferes with \
                 Litelease's tables"
            ),
            Error::Sqlite(failure) => failure.fmt(f),
            Error::Hold { error, .. } => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for Error<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::CommitUnknown(failure) => Some(failure),
            // Its text is already the whole text of this error.
            Error::Sqlite(failure) => failure.source(),
            Error::Hold { error, .. } => error.source(),
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

/// A name in quotes, cut where it is too long for a message.
pub(crate) struct Short<'a>(pub(crate) &'a str);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(80) {
            Some((end, _)) => write!(f, "{:?}…", &self.0[..end]),
            None => write!(f, "{:?}", self.0),
        }
    }
}
