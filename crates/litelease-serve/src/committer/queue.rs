//! The requests that wait for one pool or name: first come, first served.

use std::collections::BTreeMap;

use crate::job::GrantJob;

/// The queue of one pool or name, in the order of the requests' sequence numbers.
///
/// Requests with the same key share the entry of the first of them, and get the same grant.
#[derive(Default)]
pub(super) struct Queue {
    jobs: BTreeMap<u64, Vec<GrantJob>>,
    /// A claim of a tick has waited here.
    has_ticks: bool,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Returns how many requests wait.
    pub(super) fn len(&self) -> usize {
        self.jobs.values().map(Vec::len).sum()
    }

    /// Returns the requests that wait, in their order.
    pub(super) fn jobs(&self) -> impl Iterator<Item = &GrantJob> {
        self.jobs.values().flatten()
    }

    /// Adds a request, or lets it share the entry of one with the same key.
    pub(super) fn join(&mut self, job: GrantJob) {
        self.has_ticks |= job.tick().is_some();
        let is_same = |other: &GrantJob| other.repeats(&job);
        let shared = match job.key {
            Some(_) => self.jobs.values_mut().find(|sharing| sharing.iter().any(is_same)),
            None => None,
        };
        match shared {
            Some(sharing) => sharing.push(job),
            None => _ = self.jobs.insert(job.sequence, vec![job]),
        }
    }

    /// Checks whether claims of ticks may be among the requests.
    pub(super) fn has_ticks(&self) -> bool {
        self.has_ticks
    }

    /// Removes a request. Returns whether it was there.
    pub(super) fn leave(&mut self, sequence: u64) -> bool {
        let has_it = |sharing: &Vec<GrantJob>| sharing.iter().any(|one| one.sequence == sequence);
        let found = match self.jobs.get(&sequence) {
            Some(sharing) if has_it(sharing) => Some(sequence),
            // It shares the entry of another request, or began the entry that others share now.
            _ => self.jobs.iter().find(|(_, sharing)| has_it(sharing)).map(|(at, _)| *at),
        };
        let Some(at) = found else { return false };
        if let Some(sharing) = self.jobs.get_mut(&at) {
            sharing.retain(|one| one.sequence != sequence);
            if sharing.is_empty() {
                self.jobs.remove(&at);
            }
        }
        true
    }

    /// Begins to serve the first request whose client is still connected, and those that share its
    /// entry. Drops and counts the requests before it.
    pub(super) fn begin_serving(&mut self) -> (usize, Option<&GrantJob>) {
        let mut gone = 0;
        while let Some(mut first) = self.jobs.first_entry() {
            let sharing = first.get_mut();
            let before = sharing.len();
            sharing.retain(GrantJob::begin_serving);
            gone += before - sharing.len();
            match sharing.is_empty() {
                true => _ = first.remove(),
                false => break,
            }
        }
        (gone, self.jobs.values().next().and_then(|sharing| sharing.first()))
    }

    /// Lets the requests of the first entry wait on. Returns those whose client has given up.
    pub(super) fn keep_waiting(&mut self) -> Vec<GrantJob> {
        let Some(mut first) = self.jobs.first_entry() else { return Vec::new() };
        let given_up = first.get_mut().extract_if(.., |one| !one.keep_waiting()).collect();
        if first.get().is_empty() {
            first.remove();
        }
        given_up
    }

    /// Checks whether a request for which `is_it` holds waits.
    pub(super) fn has(&self, is_it: impl Fn(&GrantJob) -> bool) -> bool {
        self.jobs.values().flatten().any(is_it)
    }

    /// Removes the first entry that has a request for which `is_it` holds.
    pub(super) fn take(&mut self, is_it: impl Fn(&GrantJob) -> bool) -> Option<Vec<GrantJob>> {
        let mut entries = self.jobs.iter();
        let first = entries.find(|(_, sharing)| sharing.iter().any(&is_it)).map(|(at, _)| *at)?;
        self.jobs.remove(&first)
    }

    /// Removes the first entry.
    pub(super) fn pop(&mut self) -> Option<Vec<GrantJob>> {
        self.jobs.pop_first().map(|(_, sharing)| sharing)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::answer::Answer;
    use crate::job::{Id, JobError, WaitState, Wanted};

    type Answered = Result<Answer, JobError>;

    fn join(queue: &mut Queue, sequence: u64, key: Option<&str>) -> oneshot::Receiver<Answered> {
        let (reply, answer) = oneshot::channel();
        let key = key.map(str::to_owned);
        let (id, wanted) = (Id::Pool("p".into()), Wanted::Slot { note: None });
        let wait = Some(WaitState::default());
        queue.join(GrantJob { id, wanted, ttl_ms: 50, key, wait, sequence, share: None, reply });
        answer
    }

    fn sequences(sharing: Option<Vec<GrantJob>>) -> Vec<u64> {
        sharing.unwrap_or_default().iter().map(|one| one.sequence).collect()
    }

    #[test]
    fn the_first_request_is_served_first_and_one_that_has_left_is_skipped() {
        let mut queue = Queue::default();
        let answers: Vec<_> = (1..=4).map(|sequence| join(&mut queue, sequence, None)).collect();
        assert!(queue.leave(2));
        assert!(!queue.leave(2));
        assert_eq!(sequences(queue.pop()), [1]);
        assert_eq!(sequences(queue.pop()), [3]);
        drop(answers);
        assert_eq!(queue.begin_serving().0, 1);
        assert!(queue.is_empty());
    }

    #[test]
    fn requests_with_one_key_share_an_entry_and_keep_it_while_one_of_them_waits() {
        let mut queue = Queue::default();
        let _first = join(&mut queue, 1, Some("k"));
        let _second = join(&mut queue, 2, None);
        let _third = join(&mut queue, 3, Some("k"));
        assert_eq!(queue.len(), 3);
        assert!(queue.leave(1));
        assert_eq!(sequences(queue.pop()), [3], "the third keeps the entry that the first began");
        assert_eq!(sequences(queue.pop()), [2]);
    }
}
