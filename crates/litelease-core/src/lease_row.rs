//! A row with text of its own, as lists return it.

use alloc::string::String;

use crate::{Row, State, Status};

/// A name, its newest token, and the owner that it was last granted to.
///
/// ```
/// # use litelease_core::{LeaseRow, Row, State, Status};
/// let row = Row::new("scheduler", State::stored(7, Some("a"), Some(150)));
/// let listed = LeaseRow::new(row, Some(100));
/// assert_eq!((listed.name.as_str(), listed.token), ("scheduler", 7));
/// assert_eq!(listed.since_ms, Some(100));
/// assert_eq!(listed.status(150), Some(Status::Expired));
/// assert_eq!(listed.row(), row);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    /// The name.
    pub name: String,
    /// The owner and its expiry, unless it was released.
    pub tenure: Option<(String, i64)>,
    /// The newest token.
    pub token: i64,
    /// When the grant of that owner began, if there is one and that is known: renewals do not
    /// change it.
    pub since_ms: Option<i64>,
}

impl LeaseRow {
    /// Returns a row, of which the newest grant began at a Unix time in milliseconds.
    pub fn new(row: Row<'_>, since_ms: Option<i64>) -> Self {
        let tenure = row.state().and_then(|state| state.tenure());
        LeaseRow {
            name: row.name().into(),
            tenure: tenure.map(|tenure| (tenure.owner.into(), tenure.expires_at_ms)),
            token: row.token().unwrap_or(0),
            since_ms: since_ms.filter(|_| tenure.is_some()),
        }
    }

    /// Returns the state of the name at a Unix time in milliseconds.
    pub fn status(&self, now_ms: i64) -> Option<Status> {
        self.row().status(now_ms)
    }

    /// Returns the row as the rule sees it.
    pub fn row(&self) -> Row<'_> {
        Row::new(&self.name, self.state())
    }

    /// Returns the stored state, or `None` if it is not a valid one.
    pub fn state(&self) -> Option<State<'_>> {
        let (owner, expiry) = match &self.tenure {
            Some((owner, expiry)) => (Some(owner.as_str()), Some(*expiry)),
            None => (None, None),
        };
        State::stored(self.token, owner, expiry)
    }
}
