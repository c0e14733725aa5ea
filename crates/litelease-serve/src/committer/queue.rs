//! The borrows that wait for a slot of one pool: first come, first served.

use std::collections::BTreeMap;

use crate::job::BorrowJob;

/// The queue of one pool. Places are numbers that grow with every request.
///
/// Borrows with the same key share the place of the first of them, and get the same slot.
#[derive(Default)]
pub(super) struct Queue {
    borrows: BTreeMap<u64, Vec<BorrowJob>>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.borrows.is_empty()
    }

    /// Returns how many requests wait.
    pub(super) fn len(&self) -> usize {
        self.borrows.values().map(Vec::len).sum()
    }

    /// Adds a borrow at its place, or at the place of a borrow with the same key.
    pub(super) fn join(&mut self, borrow: BorrowJob) {
        let has_same_key = |other: &BorrowJob| other.key == borrow.key;
        let shared = match borrow.key {
            Some(_) => self.borrows.values_mut().find(|sharing| sharing.iter().any(has_same_key)),
            None => None,
        };
        match shared {
            Some(sharing) => sharing.push(borrow),
            None => _ = self.borrows.insert(borrow.place, vec![borrow]),
        }
    }

    /// Takes a borrow out, wherever it is. Returns whether it was there.
    pub(super) fn leave(&mut self, place: u64) -> bool {
        let has_it = |sharing: &Vec<BorrowJob>| sharing.iter().any(|one| one.place == place);
        let found = match self.borrows.get(&place) {
            Some(sharing) if has_it(sharing) => Some(place),
            // It shares the place of another one, or has left its own to another one.
            _ => self.borrows.iter().find(|(_, sharing)| has_it(sharing)).map(|(at, _)| *at),
        };
        let Some(at) = found else { return false };
        if let Some(sharing) = self.borrows.get_mut(&at) {
            sharing.retain(|one| one.place != place);
            if sharing.is_empty() {
                self.borrows.remove(&at);
            }
        }
        true
    }

    /// Returns the first borrow whose client is still there. Drops and counts those before it.
    pub(super) fn head(&mut self) -> (usize, Option<&BorrowJob>) {
        let mut gone = 0;
        while let Some(mut first) = self.borrows.first_entry() {
            let sharing = first.get_mut();
            let before = sharing.len();
            sharing.retain(|one| !one.reply.is_closed());
            gone += before - sharing.len();
            match sharing.is_empty() {
                true => _ = first.remove(),
                false => break,
            }
        }
        (gone, self.borrows.values().next().and_then(|sharing| sharing.first()))
    }

    /// Takes out all borrows at the first place.
    pub(super) fn pop(&mut self) -> Option<Vec<BorrowJob>> {
        self.borrows.pop_first().map(|(_, sharing)| sharing)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::job::{Answer, JobError};

    type Answered = Result<Answer, JobError>;

    fn join(queue: &mut Queue, place: u64, key: Option<&str>) -> oneshot::Receiver<Answered> {
        let (reply, answer) = oneshot::channel();
        let key = key.map(str::to_owned);
        let (id, note) = ("p".into(), None);
        queue.join(BorrowJob { id, ttl_ms: 50, note, key, waits: true, place, reply });
        answer
    }

    fn places(sharing: Option<Vec<BorrowJob>>) -> Vec<u64> {
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
