//! A row of the list.

use litelease_core::{Row, State, Status};

/// A name, its newest token, and who has it.
///
/// ```
/// # use std::time::Duration;
/// # use litelease_cluster::{Cluster, MemoryEngine, Status};
/// # let cluster = Cluster::on(MemoryEngine::new());
/// cluster.at(100).claim("scheduler", "a", Duration::from_millis(50))?;
/// let rows = cluster.at(100).list()?;
/// assert_eq!((rows[0].name.as_str(), rows[0].token), ("scheduler", 1));
/// assert_eq!(rows[0].status(150), Some(Status::Expired));
/// # Ok::<(), litelease_cluster::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    /// The name.
    pub name: String,
    /// The owner and its expiry, unless it was released.
    pub tenure: Option<(String, i64)>,
    /// The newest token.
    pub token: i64,
}

impl LeaseRow {
    /// Returns how the name stands at a Unix time in milliseconds.
    pub fn status(&self, now_ms: i64) -> Option<Status> {
        self.row().status(now_ms)
    }

    /// Returns the row as the rule sees it.
    pub(crate) fn row(&self) -> Row<'_> {
        Row::new(&self.name, self.state())
    }

    pub(crate) fn state(&self) -> Option<State<'_>> {
        let (owner, expiry) = match &self.tenure {
            Some((owner, expiry)) => (Some(owner.as_str()), Some(*expiry)),
            None => (None, None),
        };
        State::stored(self.token, owner, expiry)
    }
}
