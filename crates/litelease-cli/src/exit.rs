//! The end of the command: exit codes, which docs/cli.md promises, and one line on standard error.

use std::fmt::Display;

use litelease::{Error, HoldError, LockError};
use serde_json::{Value, json};

use crate::engine_url::EngineUrl;
use crate::output::{complain, printable};
use crate::{Common, database};

/// The exit codes of the command itself. `run` passes on its child's otherwise.
pub(crate) mod code {
    /// Done.
    pub(crate) const OK: u8 = 0;
    /// The answer is no: busy, rejected, not held, timed out.
    pub(crate) const NO: u8 = 1;
    /// The command line makes no sense.
    pub(crate) const USAGE: u8 = 64;
    /// The file, mostly, is broken or locked.
    pub(crate) const FAILED: u8 = 69;
    /// The answer could not be written to standard output.
    pub(crate) const NOT_TOLD: u8 = 74;
    /// The lease was lost while the command ran.
    pub(crate) const LOST: u8 = 75;
    /// The command to run was found and cannot be run.
    pub(crate) const NOT_RUNNABLE: u8 = 126;
    /// The command to run was not found.
    pub(crate) const NOT_FOUND: u8 = 127;
    /// Added to the number of the signal that ended the command.
    pub(crate) const SIGNAL: u8 = 128;
}

/// The tick is taken.
const TAKEN: &str = "TickTaken";

/// The reader of standard output has gone away.
const BROKEN_PIPE: &str = "BrokenPipe";

/// The reason why there is no answer.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    kind: &'static str,
    message: String,
    /// The holder that is in the way, for JSON.
    busy: Option<Value>,
    /// It has nothing to do with the file of the leases.
    is_elsewhere: bool,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: u8, kind: &'static str, message: impl Display) -> Self {
        Failure { code, kind, message: message.to_string(), busy: None, is_elsewhere: false }
    }

    /// Adds the lease that is in the way.
    pub(crate) fn because_of(self, who: Value) -> Self {
        Failure { busy: Some(who), ..self }
    }

    /// Returns the failure of a program that cannot write to standard output.
    pub(crate) fn not_told(error: &std::io::Error) -> Self {
        let kind = match error.kind() {
            std::io::ErrorKind::BrokenPipe => BROKEN_PIPE,
            _ => "Output",
        };
        Failure::new(code::NOT_TOLD, kind, format!("cannot write to standard output: {error}"))
    }

    /// Checks whether the reader of standard output has gone away. Programs in a pipe do not report
    /// that.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        self.kind == BROKEN_PIPE
    }

    /// Returns the answer that the tick is taken. It is printed only if there is a `remark`.
    pub(crate) fn taken(remark: Option<String>) -> Self {
        Failure::new(code::NO, TAKEN, remark.unwrap_or_default())
    }

    /// Checks whether the tick is taken.
    pub(crate) fn is_taken(&self) -> bool {
        self.kind == TAKEN
    }

    /// Prints it, unless it has nothing to say.
    pub(crate) fn print_if_remarkable(&self, as_json: bool) {
        if !self.message.is_empty() {
            self.print(as_json);
        }
    }

    /// Checks whether nothing was ever leased there.
    pub(crate) fn is_missing_table(&self) -> bool {
        self.kind == "NotBootstrapped"
    }

    /// Checks whether it is about a server that may be back soon.
    pub(crate) fn is_of_server(&self) -> bool {
        self.kind == "Server"
    }

    /// Adds a remark to the message.
    pub(crate) fn adding(self, more: impl Display) -> Self {
        Failure { message: format!("{}: {more}", self.message), ..self }
    }

    pub(crate) fn usage(message: impl Display) -> Self {
        Failure::new(code::USAGE, "Usage", message)
    }

    pub(crate) fn failed(kind: &'static str, message: impl Display) -> Self {
        Failure::new(code::FAILED, kind, message)
    }

    /// Returns the failure of a server that cannot listen at its address.
    pub(crate) fn listen(message: impl Display) -> Self {
        Failure::elsewhere("Listen", message)
    }

    /// Returns a failure that has nothing to do with the file of the leases.
    pub(crate) fn elsewhere(kind: &'static str, message: impl Display) -> Self {
        Failure { is_elsewhere: true, ..Failure::failed(kind, message) }
    }

    /// Puts the file in front of the message, if the failure is about the file and does not name
    /// it.
    pub(crate) fn naming_file(self, common: &Common) -> Self {
        let file = match (common.server(), EngineUrl::from_common(common), database::path(common)) {
            (Ok(Some(url)), _, _) => url.to_owned(),
            (_, Ok(Some(url)), _) => url.shown().to_owned(),
            (_, _, Ok(path)) => path.display().to_string(),
            _ => return self,
        };
        if self.kind == "TokenExhausted"
            && let Ok(Some(db)) = database::open_for_reading(common)
            && let Ok(Some(retirement)) = db.retirement()
        {
            let moved_to = printable(&retirement.moved_to);
            let text = format!("{file} grants nothing any more: it was moved to {moved_to}");
            return Failure { message: text, ..self };
        }
        let is_about_it = self.code == code::FAILED && !self.is_elsewhere;
        if !is_about_it || self.message.contains(&file) {
            return self;
        }
        Failure { message: format!("{file}: {}", self.message), ..self }
    }

    /// Prints it on standard error, in one line.
    pub(crate) fn print(&self, as_json: bool) {
        if as_json {
            let mut error = json!({ "error": self.kind, "message": self.message });
            if let Some(who) = &self.busy {
                error["busy"] = who.clone();
            }
            return complain(&error.to_string());
        }
        let message = self.message.replace('\n', " ");
        let red = anstyle::AnsiColor::Red.on_default();
        complain(&format!("{red}litelease:{red:#} {message}"));
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = match &error {
            Error::Sqlite(failure) => format!("{error}{}", way_out(failure)),
            Error::NotBootstrapped => NO_TABLE.into(),
            error => error.to_string(),
        };
        Failure::failed(error.kind(), text)
    }
}

impl From<litelease_cluster::Error> for Failure {
    fn from(error: litelease_cluster::Error) -> Self {
        use litelease_cluster::Error;
        match &error {
            Error::InvalidUrl(_) => Failure::usage(error),
            Error::InvalidName { .. } => Failure::new(code::USAGE, error.kind(), error),
            Error::NotBootstrapped => Failure::failed(error.kind(), NO_TABLE),
            _ => Failure::failed(error.kind(), error),
        }
    }
}

/// Nothing was ever leased there.
const NO_TABLE: &str = "no lease table yet: the first claim or run makes it";

impl From<HoldError> for Failure {
    fn from(error: HoldError) -> Self {
        match error {
            HoldError::Lease(error) => error.into(),
            HoldError::TtlTooShort(_) | HoldError::InvalidWorker(_) => Failure::usage(error),
            error => Failure::failed(error.kind(), error),
        }
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        Failure::failed("Lock", error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::failed("Io", error)
    }
}

/// Checks whether another connection's lock on the file was in the way.
pub(crate) fn is_locked(error: &Error) -> bool {
    use litelease::rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked};
    match error {
        Error::Sqlite(error) => {
            matches!(error.sqlite_error_code(), Some(DatabaseBusy | DatabaseLocked))
        }
        _ => false,
    }
}

/// Returns what to do about an error of SQLite's.
fn way_out(error: &litelease::rusqlite::Error) -> &'static str {
    use litelease::rusqlite::ErrorCode;
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            ": another process is writing it; litelease doctor shows which"
        }
        Some(ErrorCode::NotADatabase) => ": choose another file with --db",
        Some(ErrorCode::CannotOpen) => {
            ": check that its folder exists and that you may write in it"
        }
        Some(ErrorCode::ReadOnly) => ": make it writable, or choose another file with --db",
        Some(ErrorCode::DiskFull) => ": free some space",
        _ => "",
    }
}
