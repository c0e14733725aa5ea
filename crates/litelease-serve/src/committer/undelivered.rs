//! Grants that no client has received. They are returned with the next commit.

use std::time::{Duration, Instant};

use crate::answer::UndeliveredGrant;

/// How long to leave the database alone after a failure, unless a request arrives.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(RETRY_PAUSE_MS.unsigned_abs());
pub(super) const RETRY_PAUSE_MS: i64 = 1_000;

#[derive(Default)]
pub(super) struct Undelivered {
    grants: Vec<UndeliveredGrant>,
    /// Set after a failed commit.
    pub(super) retry_at: Option<Instant>,
}

impl Undelivered {
    pub(super) fn push(&mut self, grant: UndeliveredGrant) {
        self.grants.push(grant);
    }

    /// Adds the grants of a commit that failed, for a later one.
    pub(super) fn extend(&mut self, grants: impl IntoIterator<Item = UndeliveredGrant>) {
        self.grants.extend(grants);
    }

    /// Returns how long to wait before returning the grants, or `None` if there are none.
    pub(super) fn due_in(&self) -> Option<Duration> {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        (!self.grants.is_empty()).then(|| self.retry_at.map_or(Duration::ZERO, left))
    }

    /// Removes and returns all grants, for the next commit.
    pub(super) fn take(&mut self) -> Vec<UndeliveredGrant> {
        std::mem::take(&mut self.grants)
    }

    /// Pauses before the next try, so that a failing database is not tried in a tight loop.
    pub(super) fn pause(&mut self) {
        self.pause_for(RETRY_PAUSE);
    }

    pub(super) fn pause_for(&mut self, time: Duration) {
        self.retry_at = Instant::now().checked_add(time);
    }

    /// Ends the pause.
    pub(super) fn resume(&mut self) {
        self.retry_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Id;

    #[test]
    fn grants_are_due_at_once_and_after_a_failure_only_when_the_pause_is_over() {
        let mut undelivered = Undelivered::default();
        assert_eq!(undelivered.due_in(), None);
        undelivered.push(UndeliveredGrant::Slot { id: Id::Pool("p".into()), lease: "a".into() });
        assert_eq!(undelivered.due_in(), Some(Duration::ZERO));
        let grants = undelivered.take();
        assert_eq!(undelivered.due_in(), None);
        undelivered.extend(grants);
        undelivered.pause();
        assert!(undelivered.due_in().is_some_and(|left| !left.is_zero() && left <= RETRY_PAUSE));
        undelivered.resume();
        assert_eq!(undelivered.due_in(), Some(Duration::ZERO));
    }
}
