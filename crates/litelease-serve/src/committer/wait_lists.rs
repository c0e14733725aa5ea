//! The wait lists of all pools and names: which requests wait, and when they may be served.
//!
//! The lists are in memory only. Losing them costs clients their order in the queue, never a slot.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use litelease::{Error, Litelease};
use litelease_wire::Waiter;

use super::batch::{Batch, Served, lend, split};
use super::expiry_schedule::ExpirySchedule;
use super::queue::Queue;
use super::ticks;
use super::undelivered::RETRY_PAUSE_MS;
use crate::access::Caller;
use crate::answer::Answer;
use crate::job::{GrantJob, Id, JobError, Wanted};
use crate::shares::{Pot, Share};

pub(super) struct WaitLists {
    queues: HashMap<Id, Queue>,
    /// How many requests wait, for all pools and names together.
    count: usize,
    /// Limits how many requests one client may let wait.
    shares: Arc<Pot>,
    /// When the next lease ends on each pool or name that has a queue.
    expiries: ExpirySchedule,
    /// When every queue is to be served, in Unix milliseconds.
    all_due_ms: i64,
}

impl WaitLists {
    pub(super) fn new(shares: Arc<Pot>) -> Self {
        WaitLists {
            queues: HashMap::new(),
            count: 0,
            shares,
            expiries: ExpirySchedule::default(),
            all_due_ms: i64::MAX,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Returns how many requests wait for this pool or name.
    pub(super) fn len_of(&self, id: &Id) -> usize {
        self.queues.get(id).map_or(0, Queue::len)
    }

    /// Returns the first requests that wait for this pool or name, in their order.
    pub(super) fn first_of(&self, id: &Id, most: usize) -> Vec<Waiter> {
        let jobs = self.queues.get(id).into_iter().flat_map(Queue::jobs);
        jobs.filter_map(GrantJob::shown).take(most).collect()
    }

    /// Checks whether a claim of this name by this owner waits.
    pub(super) fn has_owner(&self, id: &Id, owner: &str) -> bool {
        let is_it = |job: &GrantJob| match &job.wanted {
            Wanted::Name(claim) => claim.owner == owner && job.has_client(),
            Wanted::Slot { .. } | Wanted::NamedSlot(_) | Wanted::Item(_) => false,
        };
        self.queues.get(id).is_some_and(|queue| queue.has(is_it))
    }

    /// Takes a share for a request of this client, unless too many of its requests wait already.
    pub(super) fn take_share(&self, caller: Caller) -> Result<Share, JobError> {
        self.shares.take(caller, 1)
    }

    pub(super) fn join(&mut self, job: GrantJob) {
        self.count += 1;
        self.queues.entry(job.id.clone()).or_default().join(job);
    }

    /// Removes a request. Returns whether it was waiting.
    pub(super) fn leave(&mut self, id: &Id, sequence: u64) -> bool {
        let Some(queue) = self.queues.get_mut(id) else { return false };
        let has_left = queue.leave(sequence);
        self.count = self.count.saturating_sub(usize::from(has_left));
        self.remove_if_empty(id);
        has_left
    }

    /// Removes and returns the requests that this one repeats.
    pub(super) fn take_repeated(&mut self, job: &GrantJob) -> Vec<GrantJob> {
        let Some(queue) = self.queues.get_mut(&job.id) else { return Vec::new() };
        let repeated = queue.take(|other| other.repeats(job)).unwrap_or_default();
        self.count = self.count.saturating_sub(repeated.len());
        self.remove_if_empty(&job.id);
        repeated
    }

    /// Answers every waiter with the reason why nothing is granted any more.
    pub(super) fn stop(&mut self, reason: JobError) {
        self.count = 0;
        self.expiries.clear();
        for (_, mut queue) in self.queues.drain() {
            while let Some(waiting) = queue.pop() {
                for job in waiting {
                    // The client may be gone.
                    let _ = job.reply.send(Err(reason));
                }
            }
        }
    }

    /// Serves the waiters of a pool or name, in order, until nothing is free.
    pub(super) fn serve(
        &mut self,
        id: &Id,
        file: &Served<'_>,
        batch: &mut Batch,
    ) -> Result<(), Error> {
        let Some(queue) = self.queues.get_mut(id) else { return Ok(()) };
        loop {
            let (gone, head) = queue.begin_serving();
            self.count = self.count.saturating_sub(gone);
            let Some(head) = head else { break };
            let (answer, error) = match lend(file, head, batch.now_ms) {
                Ok(answer) if answer.is_busy() => {
                    for job in queue.keep_waiting() {
                        self.count = self.count.saturating_sub(1);
                        batch.answer_grant(job, Ok(Answer::NoneFree));
                    }
                    break;
                }
                done => split(done),
            };
            for job in queue.pop().into_iter().flatten() {
                self.count = self.count.saturating_sub(1);
                batch.answer_grant(job, answer.clone());
            }
            batch.changed.push(id.clone());
            if let Some(error) = error {
                return Err(error);
            }
        }
        self.refuse_taken(id, file, batch);
        self.remove_if_empty(id);
        Ok(())
    }

    /// Answers the claims of this name whose tick is taken: they would wait for nothing.
    pub(super) fn refuse_taken(&mut self, id: &Id, file: &Served<'_>, batch: &mut Batch) {
        let Some(queue) = self.queues.get_mut(id).filter(|queue| queue.has_ticks()) else { return };
        // If it cannot be read, the claims get the error when they are served.
        let Ok(Some(info)) = file.db.at(batch.now_ms).newest_tick(id) else { return };
        let refusal = |job: &GrantJob| job.tick().and_then(|wish| ticks::taken_for(&info, wish));
        while let Some(sharing) = queue.take(|job| refusal(job).is_some()) {
            self.count = self.count.saturating_sub(sharing.len());
            for job in sharing.into_iter().filter(GrantJob::begin_serving) {
                let answer = refusal(&job).unwrap_or(Answer::NoneFree);
                batch.answer_grant(job, Ok(answer));
            }
        }
    }

    /// Gives a lease that was transferred to its new owner, if that waits for it.
    pub(super) fn hand_over(
        &mut self,
        id: &Id,
        file: &Served<'_>,
        batch: &mut Batch,
    ) -> Result<(), Error> {
        let Some(current) = file.db.at(batch.now_ms).inspect(id)? else { return Ok(()) };
        let is_owner = |job: &GrantJob| match &job.wanted {
            Wanted::Name(claim) => claim.owner == current.owner && job.has_client(),
            Wanted::Slot { .. } | Wanted::NamedSlot(_) | Wanted::Item(_) => false,
        };
        let Some(queue) = self.queues.get_mut(id) else { return Ok(()) };
        let Some(mut sharing) = queue.take(is_owner) else { return Ok(()) };
        self.count = self.count.saturating_sub(sharing.len());
        sharing.retain(GrantJob::begin_serving);
        if let Some(first) = sharing.first() {
            let (answer, error) = split(lend(file, first, batch.now_ms));
            for job in sharing {
                batch.answer_grant(job, answer.clone());
            }
            error.map_or(Ok(()), Err)?;
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

    /// Makes the queue of a name due at a time, if clients wait for it: others may have freed it.
    pub(super) fn make_due(&mut self, id: &Id, at_ms: i64) {
        if self.queues.contains_key(id) {
            self.expiries.set(id, at_ms);
        }
    }

    /// Checks whether clients wait for this pool or name.
    pub(super) fn has(&self, id: &Id) -> bool {
        self.queues.contains_key(id)
    }

    /// Returns the names that clients wait for.
    pub(super) fn names(&self) -> Vec<String> {
        let names = self.queues.keys().filter(|id| matches!(id, Id::Name(_)));
        names.map(|id| id.to_string()).collect()
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

    /// Removes the due entries, and returns the pools and names whose queue may be served.
    pub(super) fn take_due(&mut self, file: &Served<'_>, now_ms: i64) -> Vec<Id> {
        let mut due = self.expiries.take(now_ms);
        if self.are_all_due(now_ms) {
            self.all_due_ms = i64::MAX;
            due = self.queues.keys().cloned().collect();
        }
        due.retain(|id| self.can_serve(id, file, now_ms));
        due
    }

    /// Checks whether waiters may be served. If not, schedules the next check.
    fn can_serve(&mut self, id: &Id, file: &Served<'_>, now_ms: i64) -> bool {
        let db = file.db;
        let pools = match id {
            Id::Pool(_) => db.pools(),
            Id::Name(name) => {
                return match db.at(now_ms).inspect(name) {
                    Ok(Some(current)) => {
                        self.expiries.set(id, current.expires_at_ms);
                        // Their tick may be taken.
                        self.queues.get(id).is_some_and(Queue::has_ticks)
                            || (file.was_handed_over(&current)
                                && self.has_owner(id, &current.owner))
                    }
                    // The name is free, or the file fails: the waiters must get an answer.
                    Ok(None) | Err(_) => true,
                };
            }
            Id::Queue(name) => {
                return match db.queue(name).next_visible() {
                    Ok(Some(at_ms)) if at_ms > now_ms => {
                        self.expiries.set(id, at_ms);
                        false
                    }
                    Ok(next) => next.is_some(),
                    // The file fails: the waiters must get an answer.
                    Err(_) => true,
                };
            }
        };
        match (pools.at(now_ms).info(id), pools.next_expiry(id)) {
            // Serving removes a lease that is over, even where the pool has shrunk below its slot.
            // Without that, the lease would hide the next one to end.
            (Ok(Some(info)), Ok(next)) if next.is_none_or(|at_ms| at_ms > now_ms) => {
                next.iter().for_each(|at_ms| self.expiries.set(id, *at_ms));
                info.available() > 0
            }
            // The pool was deleted, or the file fails: the waiters must get an answer.
            _ => true,
        }
    }

    /// Schedules the end of the next lease on a pool or name, if it has waiters.
    pub(super) fn schedule(&mut self, id: &Id, db: &Litelease, now_ms: impl Fn() -> i64) {
        if !self.queues.contains_key(id) {
            return;
        }
        let next = match id {
            Id::Pool(_) => db.pools().next_expiry(id),
            Id::Name(name) => {
                let current = db.at(now_ms()).inspect(name);
                current.map(|current| current.map(|lease| lease.expires_at_ms))
            }
            Id::Queue(name) => db.queue(name).next_visible(),
        };
        match next {
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
