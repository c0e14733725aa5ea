//! Who waits for a slot of one pool: first come, first served.

use std::collections::BTreeMap;

use crate::job::{BorrowJob, Reply};

/// The queue of one pool. Places are numbers that grow.
#[derive(Default)]
pub(super) struct Queue {
    waiters: BTreeMap<u64, Waiter>,
}

/// A place in the queue. Requests with the same key share one.
pub(super) struct Waiter {
    pub(super) ttl_ms: i64,
    pub(super) note: Option<String>,
    pub(super) key: Option<String>,
    /// The requests, by the places they were given.
    pub(super) replies: Vec<(u64, Reply)>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// How many requests wait.
    pub(super) fn len(&self) -> usize {
        self.waiters.values().map(|waiter| waiter.replies.len()).sum()
    }

    /// Puts a request at its place, or to the one that waits with the same key.
    pub(super) fn join(&mut self, borrow: BorrowJob) {
        let BorrowJob { ttl_ms, note, key, place, reply, .. } = borrow;
        let same = |waiter: &&mut Waiter| key.is_some() && waiter.key == key;
        match self.waiters.values_mut().find(same) {
            Some(waiter) => waiter.replies.push((place, reply)),
            None => {
                let waiter = Waiter { ttl_ms, note, key, replies: vec![(place, reply)] };
                self.waiters.insert(place, waiter);
            }
        }
    }

    /// Takes a request out, wherever it is. Answers whether it was there.
    pub(super) fn leave(&mut self, place: u64) -> bool {
        let has_it = |waiter: &Waiter| waiter.replies.iter().any(|(at, _)| *at == place);
        let found = match self.waiters.get(&place) {
            Some(waiter) if has_it(waiter) => Some(place),
            // It has joined another one, or another one has stayed at its place.
            _ => self.waiters.iter().find(|(_, waiter)| has_it(waiter)).map(|(at, _)| *at),
        };
        let Some(at) = found else { return false };
        if let Some(waiter) = self.waiters.get_mut(&at) {
            waiter.replies.retain(|(of, _)| *of != place);
            if waiter.replies.is_empty() {
                self.waiters.remove(&at);
            }
        }
        true
    }

    /// The first one whose client is still there. Those that are gone are dropped, and counted.
    pub(super) fn head(&mut self) -> (usize, Option<&Waiter>) {
        let mut gone = 0;
        while let Some(mut first) = self.waiters.first_entry() {
            let replies = &mut first.get_mut().replies;
            let before = replies.len();
            replies.retain(|(_, reply)| !reply.is_closed());
            gone += before - replies.len();
            match replies.is_empty() {
                true => _ = first.remove(),
                false => break,
            }
        }
        (gone, self.waiters.values().next())
    }

    /// Takes the first one out.
    pub(super) fn pop(&mut self) -> Option<Waiter> {
        self.waiters.pop_first().map(|(_, waiter)| waiter)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    fn join(queue: &mut Queue, place: u64, key: Option<&str>) -> oneshot::Receiver<Answered> {
        let (reply, answer) = oneshot::channel();
        let key = key.map(str::to_owned);
        let (id, note) = ("p".into(), None);
        queue.join(BorrowJob { id, ttl_ms: 50, note, key, waits: true, place, reply });
        answer
    }

    type Answered = Result<crate::job::Answer, crate::job::JobError>;

    fn places(waiter: Option<Waiter>) -> Vec<u64> {
        waiter.map(|waiter| waiter.replies.iter().map(|(at, _)| *at).collect()).unwrap_or_default()
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
        assert_eq!(queue.head().0, 1);
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
