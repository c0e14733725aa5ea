//! The jobs of one transaction, and the answers to send once it is committed.

use std::time::Duration;

use litelease::{BorrowOptions, Error, Litelease, ReleaseResult, Scope};
use litelease_store::When;

use super::bounds::Bounds;
use super::items;
use super::names;
use super::wait_lists::WaitLists;
use crate::access::{Keys, Names};
use crate::job::{Answer, Answered, Grant, GrantJob, Id, Job, JobError, Reply, Wanted};

/// The file inside a transaction, and who may use it.
pub(super) struct Served<'a> {
    pub(super) db: &'a Litelease,
    pub(super) keys: &'a Keys,
    pub(super) bounds: &'a Bounds,
}

#[derive(Default)]
pub(super) struct Batch {
    pub(super) now_ms: i64,
    pub(super) answers: Vec<Answered>,
    /// What has changed, in any order, some of them more than once.
    pub(super) changed: Vec<Id>,
    /// Jobs of which a part was done. The next commit goes on with them.
    pub(super) unfinished: Vec<Job>,
    /// Names whose open request is by a client that may wait for them here.
    pub(super) requesters: Vec<(Id, String)>,
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
        file: &Served<'_>,
        waiting: &mut WaitLists,
    ) -> Result<(), Error> {
        let (now_ms, pools) = (self.now_ms, file.db.pools());
        let (id, reply, done) = match job {
            Job::Grant(job) => return self.grant(job, file, waiting),
            Job::Named(job) => return self.perform_on_name(job, file, waiting),
            Job::Queued(job) => return self.perform_on_queue(job, file, waiting),
            Job::Many(job) => return self.change_many(job, file, waiting),
            Job::Register { caller, id, count, reply } => {
                match file.bounds.check_pool(file.db, caller, &id, now_ms) {
                    Ok(Ok(())) => {
                        let done = pools.at(now_ms).register(&id, count).map(Answer::Pool);
                        (id, reply, done)
                    }
                    Ok(Err(refused)) => {
                        self.answer(id, reply, Err(refused));
                        return Ok(());
                    }
                    Err(error) => (id, reply, Err(error)),
                }
            }
            Job::Delete { id, reply } => {
                let done = pools.delete(&id).map(|_| Answer::Deleted);
                (id, reply, done)
            }
            Job::Return { id, lease, reply } => {
                let done = pools.at(now_ms).return_slot(&id, &lease).map(Answer::Returned);
                (id, reply, done)
            }
            Job::BreakSlot { id, position, token, reply } => {
                let broken = pools.at(now_ms).break_slot(&id, position, token);
                (id, reply, broken.map(Answer::Returned))
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
            | Job::Leases { .. }
            | Job::Queues { .. }
            | Job::LastCheckpoint { .. }
            | Job::AdmitKey { .. }
            | Job::Admit { .. }
            | Job::Ready { .. }
            | Job::Leave { .. }
            | Job::GiveBack(_)
            | Job::Stop => return Ok(()),
        };
        match as_answer(done) {
            Ok(answer) => self.answer(id.clone(), reply, answer),
            Err(error) => {
                self.answer(id, reply, Err(JobError::Database));
                return Err(error);
            }
        }
        self.freed(&id, file, waiting)
    }

    /// Answers a borrow or a claim with a grant or an error, or adds it to the wait list.
    fn grant(
        &mut self,
        mut job: GrantJob,
        file: &Served<'_>,
        waiting: &mut WaitLists,
    ) -> Result<(), Error> {
        // The client has gone, and its `Leave` may have been handled already: nothing would take
        // the job off the wait list again.
        if !job.begin_serving() {
            return Ok(());
        }
        // Waiters come first. If there is nothing left for them, there is nothing for this one.
        if let Err(error) = waiting.serve(&job.id, file, self) {
            self.answer(job.id, job.reply, Err(JobError::Database));
            return Err(error);
        }
        match lend(file, &job, self.now_ms) {
            Ok(Ok(Answer::Nothing | Answer::Busy(_))) if job.wait.is_some() => {
                match waiting.take_place(job.caller()) {
                    Ok(share) => job.share = Some(share),
                    Err(refused) => {
                        self.answer(job.id, job.reply, Err(refused));
                        return Ok(());
                    }
                }
                // Its time to wait has ended meanwhile.
                if !job.keep_waiting() {
                    self.answer(job.id, job.reply, Ok(Answer::Nothing));
                    return Ok(());
                }
                self.changed.push(job.id.clone());
                if let Wanted::Name(claim) = &job.wanted {
                    self.note_requester(&job.id, &claim.owner, file);
                }
                waiting.join(job);
            }
            Ok(answer) => {
                let is_grant = matches!(
                    answer,
                    Ok(Answer::Lent { .. } | Answer::Granted { .. } | Answer::Delivered(_))
                );
                // The same request again, without a time to wait: its client waits no longer.
                let given_up = if is_grant { Vec::new() } else { waiting.take_repeated(&job) };
                if is_grant || !given_up.is_empty() {
                    self.changed.push(job.id.clone());
                }
                for other in given_up {
                    self.answer(other.id, other.reply, answer.clone());
                }
                self.answer(job.id, job.reply, answer);
            }
            Err(error) => {
                self.answer(job.id, job.reply, Err(JobError::Database));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes back grants that no client has received.
    pub(super) fn take_back(
        &mut self,
        grants: &[Grant],
        file: &Served<'_>,
        waiting: &mut WaitLists,
    ) -> Result<(), Error> {
        for grant in grants {
            // One whose row is damaged is left alone: tried again, it would fail every commit from
            // now on, and it ends by itself.
            _ = names::for_client(self.take_one_back(grant, file, waiting))?;
        }
        Ok(())
    }

    fn take_one_back(
        &mut self,
        grant: &Grant,
        file: &Served<'_>,
        waiting: &mut WaitLists,
    ) -> Result<(), Error> {
        let now_ms = self.now_ms;
        match grant {
            Grant::Slot { id, lease } => match file.db.pools().at(now_ms).return_slot(id, lease) {
                Ok(true) => self.freed(id, file, waiting),
                Ok(false) | Err(Error::NoSuchPool) => Ok(()),
                Err(error) => Err(error),
            },
            Grant::Name(lease) => match file.db.at(now_ms).release(lease)? {
                ReleaseResult::Released { name, .. } => {
                    self.freed(&Id::Name(name.into()), file, waiting)
                }
                ReleaseResult::Rejected { .. } => Ok(()),
            },
            Grant::Fetched(lease) if file.db.token(&lease.name)? == Some(lease.token) => {
                names::wait_for_owner(file.db, lease)?;
                let id = Id::Name(lease.name.as_str().into());
                waiting.hand_over(&id, file, self)
            }
            Grant::Fetched(_) => Ok(()),
            Grant::Item { id, receipt, visible_at_ms } => {
                let undone = file.db.with_store(|store| {
                    store.undeliver(receipt, *visible_at_ms, When::At(now_ms))
                })?;
                if !undone {
                    return Ok(());
                }
                file.db.notify_waiters();
                self.freed(id, file, waiting)
            }
        }
    }

    /// Serves the waiters of a pool or name that has changed.
    pub(super) fn freed(
        &mut self,
        id: &Id,
        file: &Served<'_>,
        waiting: &mut WaitLists,
    ) -> Result<(), Error> {
        self.changed.push(id.clone());
        waiting.serve(id, file, self)
    }
}

/// What becomes of a borrow or a claim: the client's answer, or an error that fails the whole
/// batch.
pub(super) type Granting = Result<Result<Answer, JobError>, Error>;

/// Lends a slot or grants a name.
pub(super) fn lend(file: &Served<'_>, job: &GrantJob, now_ms: i64) -> Granting {
    let note = match &job.wanted {
        Wanted::Name(claim) => return names::claim(file, job, claim, now_ms),
        Wanted::Item(caller) => return items::receive(file, job, **caller, now_ms),
        Wanted::Slot { note } => note.as_deref(),
        Wanted::NamedSlot(slot) => {
            // A borrow may have waited, and its access key may have been removed meanwhile.
            let names = Names::One(&slot.name);
            if let Err(refused) = file.keys.check(slot.caller, Scope::Claim, names, now_ms) {
                return Ok(Err(refused));
            }
            slot.note.as_deref()
        }
    };
    let (ttl_ms, has_key) = (job.ttl_ms, job.key.is_some());
    let options = BorrowOptions { note, key: job.key.as_deref() };
    let lent = file.db.pools().at(now_ms).borrow_with(&job.id, duration(ttl_ms), options);
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
fn as_answer(done: Result<Answer, Error>) -> Granting {
    match done {
        Ok(answer) => Ok(Ok(answer)),
        Err(Error::NoSuchPool) => Ok(Err(JobError::NoSuchPool)),
        Err(Error::TokenExhausted { .. }) => Ok(Err(JobError::Exhausted)),
        Err(error) => Err(error),
    }
}

pub(super) fn duration(ms: i64) -> Duration {
    Duration::from_millis(ms.max(0).unsigned_abs())
}
