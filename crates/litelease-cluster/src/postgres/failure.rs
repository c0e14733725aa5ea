//! The meaning of an error of PostgreSQL: whether something can have been stored, and whether
//! trying again can help.

use tokio_postgres::error::SqlState;

use crate::engine::Error;

/// The reason why a request got no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nothing was stored. Another server, or another try, may do.
    NotDone(String),
    /// It may or may not have been stored.
    Unknown(String),
    /// Nothing was stored: a lock was not to be had, or the transaction could not be serialised.
    Locked(String),
    /// A pooler has given the connection to another client in between: statements must not have
    /// names.
    NamedStatement,
    /// Our tables are not there.
    NotBootstrapped,
    /// A table cannot be guarded, and why.
    CannotGuard { table: String, reason: String },
    /// Nothing was stored, and will not be before an operator changes something.
    Refused(String),
}

impl Failure {
    /// Reads an error of a statement.
    pub(crate) fn from_error(host: &str, error: &tokio_postgres::Error) -> Self {
        let Some(db) = error.as_db_error() else {
            return Failure::Unknown(format!("{host}: {}", chain(error)));
        };
        let said = format!("{host}: {} ({})", db.message(), db.code().code());
        if db.detail() == Some("CannotGuard") {
            let reason = db.message().split_once(" cannot be guarded: ").map_or("", |text| text.1);
            let table = db.table().unwrap_or_default().to_owned();
            return Failure::CannotGuard { table, reason: reason.to_owned() };
        }
        match db.code() {
            &SqlState::LOCK_NOT_AVAILABLE
            | &SqlState::T_R_SERIALIZATION_FAILURE
            | &SqlState::T_R_DEADLOCK_DETECTED
            // A limit of the server's or the role's own.
            | &SqlState::QUERY_CANCELED => Failure::Locked(said),
            // The server has ended a transaction that rested too long, and with it the session.
            code if matches!(code.code(), "25P03" | "25P04") => Failure::NotDone(said),
            &SqlState::DUPLICATE_PSTATEMENT | &SqlState::INVALID_SQL_STATEMENT_NAME => {
                Failure::NamedStatement
            }
            &SqlState::UNDEFINED_TABLE
            | &SqlState::UNDEFINED_FUNCTION
            | &SqlState::INVALID_SCHEMA_NAME => Failure::NotBootstrapped,
            &SqlState::READ_ONLY_SQL_TRANSACTION
            | &SqlState::CANNOT_CONNECT_NOW
            | &SqlState::TOO_MANY_CONNECTIONS => Failure::NotDone(said),
            // The server goes down, and may have committed or not.
            code if code.code().starts_with("57P") || code.code().starts_with("08") => {
                Failure::Unknown(said)
            }
            &SqlState::INVALID_PASSWORD => {
                Failure::Refused(format!("{said}: check the user and the password of the URL"))
            }
            &SqlState::INVALID_AUTHORIZATION_SPECIFICATION => Failure::Refused(format!(
                "{said}: check the user, the password and sslmode of the URL, and pg_hba.conf of the server"
            )),
            &SqlState::INVALID_NAME => Failure::Refused(format!(
                "{said}: write the table as in SQL: orders, sales.orders or \"Orders\""
            )),
            // Only its owner may guard a table.
            &SqlState::INSUFFICIENT_PRIVILEGE if db.message().starts_with("must be owner") => {
                Failure::Refused(format!("{said}: use the URL of a user that owns it"))
            }
            &SqlState::INSUFFICIENT_PRIVILEGE => Failure::Refused(format!(
                "{said}: grant this user the schema and its tables, or have its owner call bootstrap"
            )),
            _ => Failure::Refused(said),
        }
    }

    /// Returns the failure of a request that was never sent: it is not done.
    pub(crate) fn not_sent(self) -> Self {
        match self {
            Failure::Unknown(text) => Failure::NotDone(text),
            failure => failure,
        }
    }

    /// Returns the error of a request that changes nothing.
    pub(crate) fn of_read(self) -> Error {
        self.not_sent().of_write()
    }

    /// Returns the error of a request that changes rows.
    pub(crate) fn of_write(self) -> Error {
        match self {
            Failure::NotDone(text) => Error::Unreachable(text),
            Failure::Unknown(text) => Error::CommitUnknown(text),
            Failure::Locked(text) => Error::Locked(text),
            Failure::NamedStatement => Error::Unreachable("a pooler is in between".into()),
            Failure::NotBootstrapped => Error::NotBootstrapped,
            Failure::CannotGuard { table, reason } => Error::CannotGuard { table, reason },
            Failure::Refused(text) => Error::Refused(text),
        }
    }
}

/// An error with its causes, which its own text leaves out.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    text
}
