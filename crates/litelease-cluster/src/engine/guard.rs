//! The state of a guard.

/// A guard as it is right now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardInfo {
    /// The guarded table, with its schema, as SQL writes it.
    pub table: String,
    /// The name whose newest token a write must present.
    pub name: String,
    /// The column that it is presented in; otherwise the transaction presents it.
    pub column: Option<String>,
    /// The lease must be live, too.
    pub strict: bool,
    /// True if the triggers exist as they must, and are enabled. If not, the table is unguarded:
    /// guard it again.
    pub is_intact: bool,
}
