//! The rows of a place, as the keeper's thread uses them.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use litelease_core::Lease;

use crate::keeper::Group;
use crate::{HandoverRequest, HeldGrant, Loss, Renewal};
use litelease_sys::watch;

/// The rows of one place, on a handle of the keeper's own. A call must return soon, even if the
/// place does not answer, because other grants are waiting.
pub trait Rows: Send {
    /// Renews these grants, where it can in one transaction. Returns for each what was granted, or
    /// the reason why not.
    ///
    /// The owner goes with every renewal: after a restore, another grant can have the same token.
    fn renew(&mut self, due: &[Due<'_>]) -> Vec<Result<Renewal, Loss>>;

    /// Releases this grant, and tries for at most `time` if the place can wait. Returns an error,
    /// and changes nothing, if the grant is no longer current.
    fn release(&mut self, grant: &HeldGrant, time: Duration) -> Result<(), Loss>;

    /// Reads the row of this grant, without taking the write lock.
    fn read(&mut self, grant: &HeldGrant) -> Current;

    /// Checks whether the last renewals have found something that [`read`](Rows::read) returns.
    fn has_news(&mut self) -> bool {
        false
    }

    /// Hands this grant to the owner that has requested it, for `ttl`. Returns none if there is no
    /// request, and an error if the grant is no longer current.
    fn hand_over(&mut self, grant: &HeldGrant, ttl: Duration) -> Result<Option<Lease>, Loss>;

    /// Begins to notify the keeper of changes. Called once, before the first renewal.
    fn listen(&mut self, notice: Notice);

    /// Returns a second handle, so that a release or a first renewal need not wait for renewals
    /// that are under way; none where calls are short.
    fn beside(&self) -> Option<Box<dyn Rows>>;

    /// Checks whether these are no longer the rows that other programs see, because the file was
    /// moved, deleted or replaced.
    fn is_moved(&mut self) -> bool;
}

/// A grant that is due to be renewed.
#[derive(Clone, Copy, Debug)]
pub struct Due<'g> {
    /// The grant.
    pub grant: &'g HeldGrant,
    /// How long ago its holder made progress, if that is not stored yet. It is stored first.
    pub progress: Option<Duration>,
    /// For how long it is trusted if this renewal fails. An answer that comes later is useless.
    pub trusted_for: Duration,
    /// When the keeper must be back, to report that another of its holds is lost.
    pub answer_within: Duration,
}

/// The row of a grant, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Current {
    /// True if the row still names the grant.
    pub is_current: bool,
    /// The open request for the grant.
    pub request: Option<HandoverRequest>,
}

impl Current {
    /// Returns what a place says that reads no rows beside renewals: nothing is known to have
    /// changed.
    pub fn unknown() -> Self {
        Current { is_current: true, request: None }
    }
}

/// Notifies the keeper of changes in a place. A notice is a hint: the rows decide.
#[derive(Clone)]
pub struct Notice {
    pub(crate) group: Weak<Group>,
}

impl Notice {
    /// Notifies the keeper whenever a database file or its log is written or deleted.
    pub fn watch_file(&self, file: &Path) {
        if let Some(group) = self.group.upgrade() {
            watch(file, &group);
        }
    }

    /// Notifies the keeper that others may have changed the row of `name`, or any row if it is
    /// `None`, and that it now has this token, if that is known. Its holds are renewed at once: the
    /// answer tells whether they are lost.
    pub fn changed(&self, name: Option<&str>, token: Option<i64>) {
        if let Some(group) = self.group.upgrade() {
            Arc::as_ref(&group).changed(name, token);
        }
    }
}

impl std::fmt::Debug for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notice").finish_non_exhaustive()
    }
}
