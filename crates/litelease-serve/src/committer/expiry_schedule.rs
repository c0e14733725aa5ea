//! The times at which the waiters of each pool and name must be served, found without a scan.

use std::collections::{BTreeSet, HashMap};

use crate::job::Id;

/// A time for each pool and name, in Unix milliseconds.
#[derive(Default)]
pub(super) struct ExpirySchedule {
    by_id: HashMap<Id, i64>,
    by_time: BTreeSet<(i64, Id)>,
}

impl ExpirySchedule {
    /// Sets the time of a pool, instead of the one before.
    pub(super) fn set(&mut self, id: &Id, at_ms: i64) {
        self.remove(id);
        self.by_id.insert(id.clone(), at_ms);
        self.by_time.insert((at_ms, id.clone()));
    }

    pub(super) fn remove(&mut self, id: &Id) {
        if let Some(at_ms) = self.by_id.remove(id) {
            self.by_time.remove(&(at_ms, id.clone()));
        }
    }

    pub(super) fn clear(&mut self) {
        *self = ExpirySchedule::default();
    }

    /// Returns the earliest time.
    pub(super) fn first(&self) -> Option<i64> {
        self.by_time.first().map(|(at_ms, _)| *at_ms)
    }

    /// Removes and returns the pools whose time has come.
    pub(super) fn take(&mut self, now_ms: i64) -> Vec<Id> {
        let mut due = Vec::new();
        while self.first().is_some_and(|at_ms| at_ms <= now_ms)
            && let Some((_, id)) = self.by_time.pop_first()
        {
            self.by_id.remove(&id);
            due.push(id);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_due_once_at_the_time_that_was_set_last() {
        let mut expiries = ExpirySchedule::default();
        let [a, b, c] = ["a", "b", "c"].map(|id| Id::Pool(id.into()));
        for (id, at_ms) in [(&a, 100), (&b, 150), (&c, 120), (&a, 160), (&c, 110), (&b, 150)] {
            expiries.set(id, at_ms);
        }
        expiries.remove(&c);
        assert_eq!(expiries.first(), Some(150));
        assert!(expiries.take(149).is_empty());
        assert_eq!(expiries.take(150), [b]);
        assert_eq!(expiries.take(200), [a]);
        assert_eq!((expiries.first(), expiries.by_id.len()), (None, 0));
    }
}
