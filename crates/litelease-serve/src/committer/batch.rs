//! The jobs of one transaction, and the answers to send once it is committed.

use std::sync::Arc;
use std::time::Duration;

use litelease::{BorrowOptions, Error, Pools};

use super::undelivered::Grant;
use super::wait_lists::WaitLists;
use crate::job::{Answer, Answered, BorrowJob, Id, Job, JobError, Reply};

#[derive(Default)]
pub(super) struct Batch {
    pub(super) now_ms: i64,
    pub(super) answers: Vec<Answered>,
    /// The pools that have changed, in any order, some of them more than once.
    pub(super) changed: Vec<Id>,
}

impl Batch {
    pub(super) fn answer(&mut self, id: Id, reply: Reply, answer: Result<Answer, JobError>) {
        self.answers.push(Answered { id, reply, answer });
    }

    /// Answers a job with an error instead of doing it.
    pub(super) fn refuse(&mut self, job: Job, error: JobError) {
        if let Some((id, reply)) = job.into_reply() {
            self.answer(id, reply, Err(error));
        }
    }

    /// Does one job. An error of the database fails the whole batch.
    pub(super) fn perform(
        &mut self,
        job: Job,
        pools: &Pools<'_>,
        waiting: &mut WaitLists,
    ) -> Result<(), Error> {
        let now_ms = self.now_ms;
        let (id, reply, done) = match job {
            Job::Borrow(borrow) => return self.borrow(borrow, pools, waiting),
            Job::Register { id, count, reply } => {
                let done = pools.at(now_ms).register(&id, count).map(Answer::Pool);
                (id, reply, done)
            }
            Job::Delete { id, reply } => {
                let done = pools.delete(&id).map(|_| Answer::Deleted);
                (id, reply, done)
            }
            Job::Return { id, lease, reply } => {
                let done = pools.at(now_ms).return_slot(&id, &lease).map(Answer::Returned);
                (id, reply, done)
            }
            Job::Renew { id, lease, ttl_ms, reply } => {
                let renewed = pools.at(now_ms).renew(&id, &lease, duration(ttl_ms));
                let done = renewed.map(|renewed| match renewed {
                    Some(slot) => {
                        let ttl_ms = slot.expires_at_ms.saturating_sub(now_ms);
                        Answer::Renewed { lease, slot, ttl_ms }
                    }
                    None => Answer::Over,
                });
                (id, reply, done)
            }
            Job::Keep { id, lease, reply } => {
                let kept = pools.at(now_ms).keep(&id, &lease);
                let done = kept.map(|kept| if kept { Answer::Kept } else { Answer::Over });
                (id, reply, done)
            }
            // The committer does these without a transaction.
            Job::Look { .. }
            | Job::Admit { .. }
            | Job::Ready { .. }
            | Job::Leave { .. }
            | Job::GiveBack { .. }
            | Job::Stop => return Ok(()),
        };
        match as_answer(done) {
            Ok(answer) => self.answer(Arc::clone(&id), reply, answer),
            Err(error) => {
                self.answer(id, reply, Err(JobError::Database));
                return Err(error);
            }
        }
        self.freed(&id, pools, waiting)
    }

    /// Answers a borrow with a slot or an error, or adds it to the wait list.
    fn borrow(
        &mut self,
        borrow: BorrowJob,
        pools: &Pools<'_>,
        waiting: &mut WaitLists,
    ) -> Result<(), Error> {
        // The client has gone, and its `Leave` may have been handled already: nothing would take
        // the borrow off the wait list again.
        if borrow.reply.is_closed() {
            return Ok(());
        }
        // Waiters come first. If the pool has nothing left for them, it has nothing for this one.
        waiting.serve(&borrow.id, pools, self)?;
        match lend(pools, &borrow, self.now_ms) {
            Ok(Ok(Answer::Nothing)) if borrow.waits && waiting.is_full() => {
                self.answer(borrow.id, borrow.reply, Err(JobError::TooManyWaiters));
            }
            Ok(Ok(Answer::Nothing)) if borrow.waits => {
                self.changed.push(Arc::clone(&borrow.id));
                waiting.join(borrow);
            }
            Ok(answer) => {
                if matches!(answer, Ok(Answer::Lent { .. })) {
                    self.changed.push(Arc::clone(&borrow.id));
                }
                self.answer(borrow.id, borrow.reply, answer);
            }
            Err(error) => {
                self.answer(borrow.id, borrow.reply, Err(JobError::Database));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns grants that no client has received.
    pub(super) fn return_grants(
        &mut self,
        grants: &[Grant],
        pools: &Pools<'_>,
        waiting: &mut WaitLists,
    ) -> Result<(), Error> {
        for (id, lease) in grants {
            match pools.at(self.now_ms).return_slot(id, lease) {
                Ok(true) => self.freed(id, pools, waiting)?,
                Ok(false) | Err(Error::NoSuchPool) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Serves the waiters of a pool that has changed.
    pub(super) fn freed(
        &mut self,
        id: &Id,
        pools: &Pools<'_>,
        waiting: &mut WaitLists,
    ) -> Result<(), Error> {
        self.changed.push(Arc::clone(id));
        waiting.serve(id, pools, self)
    }
}

/// Borrows a slot. The inner result is the client's answer; the outer error fails the whole batch.
pub(super) fn lend(
    pools: &Pools<'_>,
    borrow: &BorrowJob,
    now_ms: i64,
) -> Result<Result<Answer, JobError>, Error> {
    let (ttl_ms, has_key) = (borrow.ttl_ms, borrow.key.is_some());
    let options = BorrowOptions { note: borrow.note.as_deref(), key: borrow.key.as_deref() };
    let lent = pools.at(now_ms).borrow_with(&borrow.id, duration(ttl_ms), options);
    as_answer(lent.map(|lent| match lent {
        Some(borrowed) => {
            // A key may have found a lease from before, with another time left than was asked for.
            let left_ms = borrowed.slot.expires_at_ms.saturating_sub(now_ms);
            let ttl_ms = if has_key { left_ms } else { ttl_ms };
            Answer::Lent { borrowed, ttl_ms, has_key }
        }
        None => Answer::Nothing,
    }))
}

/// Separates errors that concern one client from those that fail the whole batch.
fn as_answer(done: Result<Answer, Error>) -> Result<Result<Answer, JobError>, Error> {
    match done {
        Ok(answer) => Ok(Ok(answer)),
        Err(Error::NoSuchPool) => Ok(Err(JobError::NoSuchPool)),
        Err(Error::TokenExhausted { .. }) => Ok(Err(JobError::Exhausted)),
        Err(error) => Err(error),
    }
}

fn duration(ms: i64) -> Duration {
    Duration::from_millis(ms.max(0).unsigned_abs())
}
