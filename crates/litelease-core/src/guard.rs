//! The ways to guard a table, on any place.

use alloc::string::String;

/// The way in which a table is guarded.
///
/// ```
/// use litelease_core::Guard;
///
/// let guard = Guard::by_column("lease_token").strict();
/// assert_eq!((guard.column(), guard.is_strict()), (Some("lease_token"), true));
/// assert_ne!(guard, Guard::by_connection());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    column: Option<String>,
    strict: bool,
}

impl Guard {
    /// Lets the connection present the token once: in SQLite until it is withdrawn, in PostgreSQL
    /// for the transaction.
    ///
    /// ```
    /// # use litelease_core::Guard;
    /// assert_eq!(Guard::by_connection().column(), None);
    /// ```
    pub fn by_connection() -> Self {
        Guard { column: None, strict: false }
    }

    /// Lets each write present the token in a column of its row.
    ///
    /// ```
    /// # use litelease_core::Guard;
    /// assert_eq!(Guard::by_column("lease_token").column(), Some("lease_token"));
    /// ```
    pub fn by_column(column: impl Into<String>) -> Self {
        Guard { column: Some(column.into()), strict: false }
    }

    /// Demands besides that the lease is live, by the clock of the database.
    ///
    /// ```
    /// # use litelease_core::Guard;
    /// assert!(Guard::by_connection().strict().is_strict());
    /// ```
    #[must_use]
    pub fn strict(self) -> Self {
        Guard { strict: true, ..self }
    }

    /// Returns the column that tokens are presented in, if it is one.
    pub fn column(&self) -> Option<&str> {
        self.column.as_deref()
    }

    /// Checks whether the lease must be live, too.
    pub fn is_strict(&self) -> bool {
        self.strict
    }
}
