//! The jobs of one transaction, and the answers to send once it is committed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use litelease::{Actor, BorrowOptions, Error, Lease, Litelease, ReleaseResult, Scope, StaleReason};
use litelease_store::When;

use super::bounds::Bounds;
use super::items;
use super::names;
use super::wait_lists::WaitLists;
use crate::access::{Caller, Keys, Names};
use crate::answer::{Answer, Effect, NameAnswer, PoolAnswer, UndeliveredGrant, stale};
use crate::job::{
    Answered, Asker, GrantJob, Id, Job, JobError, OnGrant, Task, Wanted, Work, no_id,
};
use crate::mirror::Mirror;

/// The file inside a transaction, and the access keys of its clients.
pub(crate) struct Served<'a> {
    pub(crate) db: &'a Litelease,
    pub(super) keys: &'a Keys,
    pub(super) bounds: &'a Bounds,
    /// The engine that names are rows of, if they are. Some of them belong to the service.
    pub(super) mirror: Option<&'a Mirror>,
}

/// The operator who wants something, and the reason that was given.
pub(crate) struct Operator {
    pub(crate) caller: Caller,
    pub(crate) reason: Option<String>,
}

impl Served<'_> {
    /// Does the work of an operator, who is named in the history.
    pub(crate) fn acting<T>(
        &self,
        operator: &Operator,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let key = self.keys.name(operator.caller).map(|name| name.to_string());
        let actor = Actor { key, note: operator.reason.clone(), result: None };
        self.db.acting(&actor, work)
    }
}

/// The outcome of a job: the answer to its client, or the error.
pub(crate) type Done = Result<Answer, Failed>;

/// The reason why a job is not done.
#[derive(Debug)]
pub(crate) enum Failed {
    /// This concerns its client alone.
    Client(JobError),
    /// The whole batch fails.
    Batch(Error),
}

impl Served<'_> {
    /// Checks whether a program at the engine has handed this lease over to its owner, who may
    /// fetch it here.
    pub(super) fn was_handed_over(&self, lease: &Lease) -> bool {
        self.mirror.is_some_and(|mirror| mirror.was_handed_over(lease))
    }
}

impl From<JobError> for Failed {
    fn from(error: JobError) -> Self {
        Failed::Client(error)
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Failed::Client(match error {
            Error::NoSuchPool => JobError::NoSuchPool,
            Error::TimeOverflow { .. } => JobError::TooLong,
            Error::TokenExhausted { .. } => JobError::Exhausted,
            Error::InvalidLeaseRow(_) | Error::SchemaMismatch { .. } => {
                let kind = error.kind();
                tracing::error!(kind, "a stored row or table is not as it should be");
                JobError::Damaged
            }
            error => return Failed::Batch(error),
        })
    }
}

/// Returns the answer, and the error if the whole batch fails.
pub(super) fn split<T>(done: Result<T, Failed>) -> (Result<T, JobError>, Option<Error>) {
    match done {
        Ok(done) => (Ok(done), None),
        Err(Failed::Client(refused)) => (Err(refused), None),
        Err(Failed::Batch(error)) => (Err(JobError::Database), Some(error)),
    }
}

#[derive(Default)]
pub(super) struct Batch {
    pub(super) now_ms: i64,
    pub(super) answers: Vec<Decided>,
    /// Names that a client begins to wait for.
    joined: Vec<Id>,
    /// The pools and names that have changed, in any order, some of them more than once.
    pub(super) changed: Vec<Id>,
    /// Jobs of which a part was done. The next commit goes on with them.
    pub(super) unfinished: Vec<Job>,
    /// Names whose open request is by a client that may wait for them here.
    pub(super) requesters: Vec<(Id, String)>,
}

/// A request that was decided on, and its answer.
pub(super) struct Decided {
    pub(super) id: Id,
    pub(super) asker: Asker,
    pub(super) answer: Result<Answer, JobError>,
}

impl Decided {
    /// Returns the name that the answer is about, if it is about one.
    pub(super) fn name(&self) -> Option<&Arc<str>> {
        match &self.id {
            Id::Name(name) if self.answer.is_ok() && !name.is_empty() => Some(name),
            _ => None,
        }
    }

    pub(super) fn answered(self) -> Answered {
        Answered { id: self.id, reply: self.asker.into_reply(), answer: self.answer }
    }
}

impl Batch {
    pub(super) fn answer(
        &mut self,
        id: Id,
        asker: impl Into<Asker>,
        answer: Result<Answer, JobError>,
    ) {
        self.answers.push(Decided { id, asker: asker.into(), answer });
    }

    /// Answers a request for a slot, a name or an item.
    pub(super) fn answer_grant(&mut self, job: GrantJob, answer: Result<Answer, JobError>) {
        self.answer(job.id.clone(), job, answer);
    }

    /// Returns the names that something is about to be answered about, or that a client begins to
    /// wait for.
    pub(super) fn names(&self) -> BTreeSet<Arc<str>> {
        let joined = self.joined.iter().filter_map(|id| match id {
            Id::Name(name) => Some(name),
            _ => None,
        });
        self.answers.iter().filter_map(Decided::name).chain(joined).cloned().collect()
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
        match job {
            Job::Grant(job) => self.grant(job, file, waiting),
            Job::Work(work) => self.work(*work, file, waiting),
            Job::Many(job) => self.change_many(job, file, waiting),
            // The committer does these without a transaction.
            Job::Inspect { .. }
            | Job::Read { .. }
            | Job::Ready(_)
            | Job::Leave { .. }
            | Job::GiveBack(_)
            | Job::Stop => Ok(()),
        }
    }

    fn work(
        &mut self,
        work: Work,
        file: &Served<'_>,
        waiting: &mut WaitLists,
    ) -> Result<(), Error> {
        let Work { caller, scope, task, reply } = work;
        let (id, done, task) = self.perform_task(caller, scope, task, file);
        let (answer, error) = split(done);
        let effect = answer.as_ref().map_or(Effect::Nothing, Answer::effect);
        if let Ok(Answer::Name(NameAnswer::Requested(open))) = &answer {
            self.requesters.push((id.clone(), open.requester.clone()));
        }
        let asker = match task {
            Some(task) => Asker::Work(Box::new(Work { caller, scope, task, reply })),
            None => Asker::Reply(reply),
        };
        self.answer(id.clone(), asker, answer);
        if let Some(error) = error {
            return Err(error);
        }
        match effect {
            Effect::Nothing => Ok(()),
            Effect::Changed => {
                self.changed.push(id);
                Ok(())
            }
            Effect::Freed => self.freed(&id, file, waiting),
            Effect::HandedOver => {
                self.changed.push(id.clone());
                waiting.hand_over(&id, file, self)
            }
        }
    }

    /// Finds the name or pool of a task, and runs it if the client may. Returns a task about a
    /// name, too: it may have to be run again.
    fn perform_task(
        &self,
        caller: Caller,
        scope: Scope,
        task: Task,
        file: &Served<'_>,
    ) -> (Id, Done, Option<Task>) {
        let now_ms = self.now_ms;
        let check = |names| file.keys.check(caller, scope, names, now_ms);
        match task {
            Task::Pool(id, work) | Task::Slot(id, work) => {
                let done = work(file, &id, now_ms);
                (id, done, None)
            }
            Task::Queue(id, work) => {
                let checked = check(Names::One(&id)).map_err(Failed::from);
                let done = checked.and_then(|()| work(file, &id, now_ms));
                (id, done, None)
            }
            Task::Name(id, work) => {
                let checked = check(Names::One(&id)).map_err(Failed::from);
                let done = checked.and_then(|()| work(file, &id, now_ms));
                (id.clone(), done, Some(Task::Name(id, work)))
            }
            Task::Grant(secret, work) => {
                let mut id = no_id();
                let done = self.on_grant(caller, scope, &secret, &work, file, &mut id);
                (id, done, Some(Task::Grant(secret, work)))
            }
            Task::Receipt { queue: Some(queue), work, .. } => {
                self.perform_task(caller, scope, Task::Queue(Id::Queue(queue), work), file)
            }
            Task::Receipt { queue: None, receipt, work } => {
                match file.db.with_store(|store| store.queue_of(&receipt)) {
                    Ok(found) => {
                        let queue = found.unwrap_or_default();
                        let done = match check(Names::Some) {
                            // A receipt of a queue that the client may not use is unknown to it,
                            // like a receipt of a queue that it has not named.
                            Ok(()) if !queue.is_empty() && check(Names::One(&queue)).is_err() => {
                                Ok(stale(StaleReason::Unknown.word()).into())
                            }
                            Ok(()) => work(file, &queue, now_ms),
                            Err(refused) => Err(refused.into()),
                        };
                        (Id::Queue(queue.into()), done, None)
                    }
                    Err(error) => (no_id(), Err(error.into()), None),
                }
            }
        }
    }

    /// Runs `work` on the grant of a secret. Sets `id` to its name.
    fn on_grant(
        &self,
        caller: Caller,
        scope: Scope,
        secret: &str,
        work: &OnGrant,
        file: &Served<'_>,
        id: &mut Id,
    ) -> Done {
        file.keys.check_key(caller, self.now_ms)?;
        let Some(grant) = names::find(file.db, secret)? else {
            return Ok(names::unknown_grant().into());
        };
        *id = Id::Name(grant.name.as_str().into());
        file.keys.check(caller, scope, Names::One(&grant.name), self.now_ms)?;
        work(file, &grant, self.now_ms)
    }

    /// Answers a borrow or a claim with a grant or an error, or adds it to the wait list.
    fn grant(
        &mut self,
        mut job: GrantJob,
        file: &Served<'_>,
        waiting: &mut WaitLists,
    ) -> Result<(), Error> {
        // The client is gone, and its `Leave` may have been handled already: the job would stay on
        // the wait list for ever.
        if !job.begin_serving() {
            return Ok(());
        }
        // Waiters come first. If they leave nothing free, this request gets nothing either.
        if let Err(error) = waiting.serve(&job.id, file, self) {
            self.answer_grant(job, Err(JobError::Database));
            return Err(error);
        }
        match split(lend(file, &job, self.now_ms)) {
            (Ok(answer), _) if answer.is_busy() && job.wait.is_some() => {
                match waiting.take_share(job.caller()) {
                    Ok(share) => job.share = Some(share),
                    Err(refused) => {
                        self.answer_grant(job, Err(refused));
                        return Ok(());
                    }
                }
                // Its time to wait has ended meanwhile.
                if !job.keep_waiting() {
                    self.answer_grant(job, Ok(Answer::NoneFree));
                    return Ok(());
                }
                self.changed.push(job.id.clone());
                self.joined.push(job.id.clone());
                if let Wanted::Name(claim) = &job.wanted {
                    self.note_requester(&job.id, &claim.owner, file);
                }
                waiting.join(job);
            }
            (answer, None) => {
                let is_grant =
                    answer.as_ref().is_ok_and(|answer| answer.is_live_grant(self.now_ms).is_some());
                // The same request again, without a time to wait: its client no longer waits.
                let given_up = if is_grant { Vec::new() } else { waiting.take_repeated(&job) };
                if is_grant || !given_up.is_empty() {
                    self.changed.push(job.id.clone());
                }
                for other in given_up {
                    self.answer_grant(other, answer.clone());
                }
                if is_grant && job.tick().is_some() {
                    waiting.refuse_taken(&job.id, file, self);
                }
                self.answer_grant(job, answer);
            }
            (answer, Some(error)) => {
                self.answer_grant(job, answer);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes back grants that no client has received.
    pub(super) fn take_back(
        &mut self,
        grants: &[UndeliveredGrant],
        file: &Served<'_>,
        waiting: &mut WaitLists,
    ) -> Result<(), Error> {
        for grant in grants {
            // A grant whose row is damaged is left alone: it would fail every later commit, and it
            // ends by itself.
            let taken = self.take_one_back(grant, file, waiting);
            if let (_, Some(error)) = split(taken.map_err(Failed::from)) {
                return Err(error);
            }
        }
        Ok(())
    }

    fn take_one_back(
        &mut self,
        grant: &UndeliveredGrant,
        file: &Served<'_>,
        waiting: &mut WaitLists,
    ) -> Result<(), Error> {
        let now_ms = self.now_ms;
        match grant {
            UndeliveredGrant::Slot { id, lease } => {
                match file.db.pools().at(now_ms).return_slot(id, lease) {
                    Ok(true) => self.freed(id, file, waiting),
                    Ok(false) | Err(Error::NoSuchPool) => Ok(()),
                    Err(error) => Err(error),
                }
            }
            // The commit may have failed, and a program that calls itself by the same owner text
            // may have been granted the name under the same token since.
            UndeliveredGrant::Name(lease) if !names::has_granted(file.db, lease)? => Ok(()),
            UndeliveredGrant::Name(lease) => match file.db.at(now_ms).release(lease)? {
                ReleaseResult::Released { name, .. } => {
                    self.freed(&Id::Name(name.into()), file, waiting)
                }
                ReleaseResult::Rejected { .. } => Ok(()),
            },
            UndeliveredGrant::Fetched(lease)
                if file.db.token(&lease.name)? == Some(lease.token) =>
            {
                names::wait_for_owner(file.db, lease)?;
                let id = Id::Name(lease.name.as_str().into());
                waiting.hand_over(&id, file, self)
            }
            UndeliveredGrant::Fetched(_) => Ok(()),
            UndeliveredGrant::Item { id, receipt, visible_at_ms } => {
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

    /// Serves the waiters of a pool or name that others may have freed, or handed over to one of
    /// them.
    pub(super) fn due(
        &mut self,
        id: &Id,
        file: &Served<'_>,
        waiting: &mut WaitLists,
    ) -> Result<(), Error> {
        if let Id::Name(name) = id
            && let Some(current) = file.db.at(self.now_ms).inspect(name)?
            && file.was_handed_over(&current)
        {
            waiting.hand_over(id, file, self)?;
        }
        self.freed(id, file, waiting)
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

/// Lends a slot or grants a name.
pub(super) fn lend(file: &Served<'_>, job: &GrantJob, now_ms: i64) -> Done {
    let note = match &job.wanted {
        Wanted::Name(claim) => return names::claim(file, job, claim, now_ms),
        Wanted::Item(caller) => return items::receive(file, job, **caller, now_ms),
        Wanted::Slot { note } => note.as_deref(),
        Wanted::NamedSlot(slot) => {
            // A borrow may have waited, and its access key may have been removed meanwhile.
            file.keys.check(slot.caller, Scope::Claim, Names::One(&slot.name), now_ms)?;
            slot.note.as_deref()
        }
    };
    let (ttl_ms, has_key) = (job.ttl_ms, job.key.is_some());
    let options = BorrowOptions { note, key: job.key.as_deref() };
    let lent = file.db.pools().at(now_ms).borrow_with(&job.id, duration(ttl_ms), options)?;
    Ok(lent.map_or(Answer::NoneFree, |borrowed| {
        // A key may have found the lease of an earlier request, with less time left than was
        // requested.
        let left_ms = borrowed.slot.expires_at_ms.saturating_sub(now_ms);
        let ttl_ms = if has_key { left_ms } else { ttl_ms };
        PoolAnswer::Lent { borrowed, ttl_ms, has_key }.into()
    }))
}

pub(crate) fn duration(ms: i64) -> Duration {
    Duration::from_millis(ms.max(0).unsigned_abs())
}
