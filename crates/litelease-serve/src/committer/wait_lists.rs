//! The wait lists of all pools: which borrows wait, and when a slot may come free for them.
//!
//! The lists are in memory only. Losing them costs clients their place in the queue, never a slot.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use litelease::{Error, Pools};

use super::batch::{Batch, lend};
use super::expiry_schedule::ExpirySchedule;
use super::queue::Queue;
use super::undelivered::RETRY_PAUSE_MS;
use crate::job::{Answer, BorrowJob, Id, JobError};

pub(super) struct WaitLists {
    queues: HashMap<Id, Queue>,
    /// How many requests wait, in all pools together.
    count: usize,
    max: usize,
    /// When the next lease ends in each pool that has a queue.
    expiries: ExpirySchedule,
    /// When every queue is to be served, in Unix milliseconds.
    all_due_ms: i64,
}

impl WaitLists {
    pub(super) fn new(max: usize) -> Self {
        WaitLists {
            queues: HashMap::new(),
            count: 0,
            max,
            expiries: ExpirySchedule::default(),
            all_due_ms: i64::MAX,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn is_full(&self) -> bool {
        self.count >= self.max
    }

    /// Returns how many requests wait for a slot of this pool.
    pub(super) fn len_of(&self, id: &Id) -> usize {
        self.queues.get(id).map_or(0, Queue::len)
    }

    pub(super) fn join(&mut self, borrow: BorrowJob) {
        self.count += 1;
        self.queues.entry(Arc::clone(&borrow.id)).or_default().join(borrow);
    }

    /// Takes a request out. Returns whether it was waiting.
    pub(super) fn leave(&mut self, id: &Id, place: u64) -> bool {
        let Some(queue) = self.queues.get_mut(id) else { return false };
        let has_left = queue.leave(place);
        self.count = self.count.saturating_sub(usize::from(has_left));
        self.remove_if_empty(id);
        has_left
    }

    /// Answers every waiter that the server stops.
    pub(super) fn stop(&mut self) {
        self.count = 0;
        self.expiries.clear();
        for (_, mut queue) in self.queues.drain() {
            while let Some(waiting) = queue.pop() {
                for borrow in waiting {
                    // The client may be gone.
                    let _ = borrow.reply.send(Err(JobError::Stopping));
                }
            }
        }
    }

    /// Lends slots of a pool to its waiters, in order, until none is free.
    pub(super) fn serve(
        &mut self,
        id: &Id,
        pools: &Pools<'_>,
        batch: &mut Batch,
    ) -> Result<(), Error> {
        let Some(queue) = self.queues.get_mut(id) else { return Ok(()) };
        loop {
            let (gone, head) = queue.head();
            self.count = self.count.saturating_sub(gone);
            let Some(head) = head else { break };
            let (answer, error) = match lend(pools, head, batch.now_ms) {
                Ok(Ok(Answer::Nothing)) => break,
                Ok(answer) => (answer, None),
                Err(error) => (Err(JobError::Database), Some(error)),
            };
            for borrow in queue.pop().into_iter().flatten() {
                self.count = self.count.saturating_sub(1);
                batch.answer(borrow.id, borrow.reply, answer.clone());
            }
            batch.changed.push(Arc::clone(id));
            if let Some(error) = error {
                return Err(error);
            }
        }
        self.remove_if_empty(id);
        Ok(())
    }

    fn remove_if_empty(&mut self, id: &Id) {
        if self.queues.get(id).is_some_and(Queue::is_empty) {
            self.queues.remove(id);
            self.expiries.remove(id);
        }
    }

    /// Makes every queue due now: another process may have freed slots.
    pub(super) fn make_all_due(&mut self) {
        self.all_due_ms = i64::MIN;
    }

    /// Makes every queue due after a pause: the database has failed.
    pub(super) fn retry_all(&mut self, now_ms: i64) {
        self.all_due_ms = now_ms.saturating_add(RETRY_PAUSE_MS);
    }

    pub(super) fn are_all_due(&self, now_ms: i64) -> bool {
        now_ms >= self.all_due_ms
    }

    /// Returns how long until a queue is due.
    pub(super) fn due_in(&self, now_ms: i64) -> Duration {
        let first_ms = self.expiries.first().unwrap_or(i64::MAX).min(self.all_due_ms);
        Duration::from_millis(first_ms.saturating_sub(now_ms).max(0).unsigned_abs())
    }

    /// Takes out the pools that are due, and returns those whose queue may be served.
    pub(super) fn take_due(&mut self, pools: &Pools<'_>, now_ms: i64) -> Vec<Id> {
        let mut due = self.expiries.take(now_ms);
        if self.are_all_due(now_ms) {
            self.all_due_ms = i64::MAX;
            due = self.queues.keys().cloned().collect();
        }
        due.retain(|id| self.can_serve(id, pools, now_ms));
        due
    }

    /// Checks whether a pool may have a slot for its waiters. If not, schedules the next check.
    fn can_serve(&mut self, id: &Id, pools: &Pools<'_>, now_ms: i64) -> bool {
        match (pools.at(now_ms).info(id), pools.next_expiry(id)) {
            // Serving removes a lease that is over, even where the pool has shrunk below its slot.
            // Without that, the lease would hide the next one to end.
            (Ok(Some(info)), Ok(next)) if next.is_none_or(|at_ms| at_ms > now_ms) => {
                next.iter().for_each(|at_ms| self.expiries.set(id, *at_ms));
                info.available() > 0
            }
            // The pool was deleted, or the file fails: the waiters must be told.
            _ => true,
        }
    }

    /// Schedules the end of the pool's next lease, if the pool has waiters.
    pub(super) fn schedule(&mut self, id: &Id, pools: &Pools<'_>, now_ms: impl Fn() -> i64) {
        if !self.queues.contains_key(id) {
            return;
        }
        match pools.next_expiry(id) {
            Ok(Some(at_ms)) => self.expiries.set(id, at_ms),
            Ok(None) => self.expiries.remove(id),
            Err(_) => self.expiries.set(id, now_ms().saturating_add(RETRY_PAUSE_MS)),
        }
    }

    #[cfg(test)]
    pub(super) fn first_expiry(&self) -> Option<i64> {
        self.expiries.first()
    }
}
