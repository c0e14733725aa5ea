//! The requests that wait for one pool or name: first come, first served.

use std::collections::BTreeMap;

use crate::job::GrantJob;

/// The queue of one pool or name. Places are numbers that grow with every request.
///
/// Requests with the same key share the place of the first of them, and get the same grant.
#[derive(Default)]
pub(super) struct Queue {
    jobs: BTreeMap<u64, Vec<GrantJob>>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Returns how many requests wait.
    pub(super) fn len(&self) -> usize {
        self.jobs.values().map(Vec::len).sum()
    }

    /// Adds a request at its place, or at the place of one with the same key.
    pub(super) fn join(&mut self, job: GrantJob) {
        let is_same = |other: &GrantJob| other.repeats(&job);
        let shared = match job.key {
            Some(_) => self.jobs.values_mut().find(|sharing| sharing.iter().any(is_same)),
            None => None,
        };
        match shared {
            Some(sharing) => sharing.push(job),
            None => _ = self.jobs.insert(job.place, vec![job]),
        }
    }

    /// Takes a request out, wherever it is. Returns whether it was there.
    pub(super) fn leave(&mut self, place: u64) -> bool {
        let has_it = |sharing: &Vec<GrantJob>| sharing.iter().any(|one| one.place == place);
        let found = match self.jobs.get(&place) {
            Some(sharing) if has_it(sharing) => Some(place),
            // It shares the place of another one, or has left its own to another one.
            _ => self.jobs.iter().find(|(_, sharing)| has_it(sharing)).map(|(at, _)| *at),
        };
        let Some(at) = found else { return false };
        if let Some(sharing) = self.jobs.get_mut(&at) {
            sharing.retain(|one| one.place != place);
            if sharing.is_empty() {
                self.jobs.remove(&at);
            }
        }
        true
    }

    /// Begins to serve the first request whose client is still there, and those that share its
    /// place. Drops and counts those before it.
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

    /// Lets the requests at the first place wait on. Returns those whose client has given up.
    pub(super) fn keep_waiting(&mut self) -> Vec<GrantJob> {
        let Some(mut first) = self.jobs.first_entry() else { return Vec::new() };
        let given_up = first.get_mut().extract_if(.., |one| !one.keep_waiting()).collect();
        if first.get().is_empty() {
            first.remove();
        }
        given_up
    }

    /// Checks whether such a request waits.
    pub(super) fn has(&self, is_it: impl Fn(&GrantJob) -> bool) -> bool {
        self.jobs.values().flatten().any(is_it)
    }

    /// Takes out all requests at the first place that has such a one.
    pub(super) fn take(&mut self, is_it: impl Fn(&GrantJob) -> bool) -> Option<Vec<GrantJob>> {
        let mut places = self.jobs.iter();
        let place = places.find(|(_, sharing)| sharing.iter().any(&is_it)).map(|(at, _)| *at)?;
        self.jobs.remove(&place)
    }

    /// Takes out all requests at the first place.
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

    fn join(queue: &mut Queue, place: u64, key: Option<&str>) -> oneshot::Receiver<Answered> {
        let (reply, answer) = oneshot::channel();
        let key = key.map(str::to_owned);
        let (id, wanted) = (Id::Pool("p".into()), Wanted::Slot { note: None });
        let wait = Some(WaitState::default());
        queue.join(GrantJob { id, wanted, ttl_ms: 50, key, wait, place, share: None, reply });
        answer
    }

    fn places(sharing: Option<Vec<GrantJob>>) -> Vec<u64> {
        sharing.unwrap_or_default().iter().map(|one| one.place).collect()
    }

    #[test]
    fn the_first_to_come_is_the_first_to_go_and_who_left_is_skipped() {
        let mut queue = Queue::default();
        let answers: Vec<_> = (1..=4).map(|place| join(&mut queue, place, None)).collect();
        assert!(queue.leave(2));
        assert!(!queue.leave(2));
        assert_eq!(places(queue.pop()), [1]);
        assert_eq!(places(queue.pop()), [3]);
        drop(answers);
        assert_eq!(queue.begin_serving().0, 1);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_key_has_one_place_however_many_share_it_and_keeps_it_while_one_of_them_stays() {
        let mut queue = Queue::default();
        let _first = join(&mut queue, 1, Some("k"));
        let _second = join(&mut queue, 2, None);
        let _third = join(&mut queue, 3, Some("k"));
        assert_eq!(queue.len(), 3);
        assert!(queue.leave(1));
        assert_eq!(places(queue.pop()), [3], "the place of the first is the third's now");
        assert_eq!(places(queue.pop()), [2]);
    }
}
