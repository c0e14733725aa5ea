//! The one thread that writes. Jobs that arrive together share one durable commit, and their
//! answers go out after it. A slot that is freed goes to the first waiter in the same commit.
//!
//! This file is the loop, top to bottom: receive, commit, answer. Its parts are in the folder.
//!
//! # The way of a job
//! ```text
//!                a part of a large job is left
//!             ┌─────────────────────────────┐
//!             ▼                             │
//!   job ──▶ inbox ───────────────────────▶ batch ────▶ commit ────▶ answer ────▶ client
//!             │                            ▲ │ ▲          │            │
//!             │ reads         a name or a  │ │ │          │ fails      │ the client is gone
//!             ▼               slot is free │ ▼ │          ▼            ▼
//!   answered between two          wait list    │      error to ──▶ undelivered
//!   commits                                    │      each job       grants
//!                                              │                       │
//!                                              └───────────────────────┘
//!                                                   the next commit returns them
//! ```
//! - *inbox*: jobs that were received. Jobs of holders and of other clients take turns, so that a
//!   renewal does not wait behind everything else. Reads are answered between two commits, for a
//!   few milliseconds at a time.
//! - *batch*: the jobs of one transaction. It first returns undelivered grants, so that their slots
//!   are free again, and serves waiters before newcomers.
//! - *wait list*: borrows and claims that found nothing free, in memory only. A waiter leaves it
//!   with a grant, when its time is up, or when its client is gone.
//! - *commit*: on the disk, or stored by the engine, before any answer goes out. If it fails, it
//!   may still have been stored, so the grants of the batch become undelivered.
//! - *answer*: all answers of a commit go out together. One whose client is gone comes back as
//!   [`Job::GiveBack`], unless the client can ask for it again with its idempotency key.
//! - *undelivered*: grants that no client has. The next commit returns them. After a failed commit
//!   that is the commit of the next job, or the one a second later.

mod batch;
mod bounds;
mod expiry_schedule;
mod inbox;
pub(crate) mod items;
pub(crate) mod names;
pub(crate) mod payloads;
mod queue;
mod reader;
mod requests;
mod served_file;
pub(crate) mod slots;
pub(crate) mod ticks;
mod undelivered;
mod wait_lists;
mod wait_memory;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use litelease::{Error, Litelease};
use tokio::sync::broadcast;

pub(crate) use self::batch::{Done, Operator, Served, duration};
pub(crate) use self::reader::{NameState, Reader};

use self::batch::{Batch, Decided};
use self::inbox::{Inbox, MAX_READ_TIME};
use self::requests::Requests;
use self::served_file::{CHANGE_POLL_INTERVAL, Committed, ServedFile};
use self::undelivered::Undelivered;
use self::wait_lists::WaitLists;
use crate::access::{Caller, Which};
use crate::answer::{Answer, PoolAnswer, PoolSnapshot, QueueAnswer, UndeliveredGrant};
use crate::failure::Failure;
use crate::high_water::HighWater;
use crate::job::{
    Answered, Answers, Asker, Id, Job, JobError, Read, Receiver, RecvTimeoutError, SendAnswer,
    receive,
};
use crate::metrics::Metrics;
use crate::mirror::Mirror;
use crate::options::Options;
use crate::pending_grant::deliver;
use crate::server_lock::ServerLock;
use crate::shares::{Pot, Thing};

/// How often to check the lock of the server while no client waits or watches.
const IDLE: Duration = Duration::from_secs(5);

/// How long a name may be changed or locked by others each time before those of its clients that do
/// not wait are told that nothing was done, and the pause between two tries once that has lasted
/// for so long.
const MAX_CONTENTION: Duration = Duration::from_secs(5);
const CONTENTION_PAUSE: Duration = Duration::from_millis(20);

/// The pool or name that has changed, or `None` if anything may have, access keys as well.
pub(crate) type Changed = Option<Id>;

pub(crate) struct Committer {
    file: ServedFile,
    inbox: Inbox,
    waiting: WaitLists,
    requests: Requests,
    /// Names whose row on the engine was locked or another one, since when and when last, and the
    /// jobs that are to be decided on again after a pause.
    contended: HashMap<String, (Instant, Instant)>,
    later: Vec<(Instant, Job)>,
    undelivered: Undelivered,
    /// Takes the answers of a commit to their requests. `None` after a stop: then the committer
    /// delivers them itself.
    answers: Option<Answers>,
    changes: broadcast::Sender<Changed>,
    metrics: Arc<Metrics>,
    clock: fn() -> i64,
    /// Names are used, so that access keys matter.
    uses_names: bool,
}

impl Committer {
    pub(crate) fn new(
        db: Litelease,
        high_water: HighWater,
        lock: Option<ServerLock>,
        options: &Options,
        answers: Answers,
        changes: broadcast::Sender<Changed>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let file = ServedFile::new(db, Some(high_water), lock, options, Arc::clone(&metrics));
        Committer::on(file, options, answers, changes, metrics)
    }

    /// Returns the committer of a server that writes to an engine.
    pub(crate) fn mirrored(
        mirror: Mirror,
        options: &Options,
        answers: Answers,
        changes: broadcast::Sender<Changed>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, Error> {
        let file = ServedFile::mirrored(mirror, options, Arc::clone(&metrics))?;
        Ok(Committer::on(file, options, answers, changes, metrics))
    }

    fn on(
        file: ServedFile,
        options: &Options,
        answers: Answers,
        changes: broadcast::Sender<Changed>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Committer {
            file,
            inbox: Inbox::new(options.max_batch),
            waiting: WaitLists::new(Pot::new(Thing::Waiters, options)),
            requests: Requests::default(),
            contended: HashMap::new(),
            later: Vec::new(),
            undelivered: Undelivered::default(),
            answers: Some(answers),
            changes,
            metrics,
            clock: options.clock,
            uses_names: false,
        }
    }

    /// Works until every sender of jobs is gone.
    pub(crate) fn work(mut self, jobs: &Receiver<Job>) {
        // A server that takes over loads its rows before the first client asks.
        self.file.refresh();
        while self.turn(jobs) {}
        // The last client may have left a grant behind. If it cannot be returned now, it expires.
        self.undelivered.resume();
        self.commit(jobs);
        self.file.sync_high_water();
    }

    /// Waits for a job, or until other work is due, and does it. Returns false once every sender of
    /// jobs is gone.
    fn turn(&mut self, jobs: &Receiver<Job>) -> bool {
        let patience = if self.inbox.has_more() { Duration::ZERO } else { self.patience() };
        match receive(jobs, patience) {
            Ok(job) => self.take(job),
            Err(RecvTimeoutError::Disconnected) if !self.inbox.has_more() => return false,
            Err(_) => {}
        }
        // A job that writes may be behind thousands that only read.
        self.take_all(jobs);
        if self.file.refresh() | self.file.poll_for_changes() {
            self.waiting.make_all_due();
            self.announce(None);
            self.dismiss();
        }
        self.poll_names();
        self.take_later();
        self.commit(jobs);
        self.answer_inspections();
        self.answer_reads();
        self.answer_readies();
        if self.file.high_water_due_in().is_some_and(|due| due.is_zero()) {
            self.file.sync_high_water();
        }
        self.metrics.waiters(self.waiting.len());
        true
    }

    /// Returns how long to wait for a job.
    fn patience(&self) -> Duration {
        let has_clients = self.waiting.len() > 0 || self.changes.receiver_count() > 0;
        let patience = match has_clients {
            true => CHANGE_POLL_INTERVAL.min(self.waiting.due_in((self.clock)())),
            false => IDLE,
        };
        let requests = self.requests.due_in(self.clock);
        let later = self.later.iter().map(|(due, _)| due.saturating_duration_since(Instant::now()));
        let others =
            [self.file.high_water_due_in(), self.undelivered.due_in(), requests, later.min()];
        others.into_iter().flatten().fold(patience, Duration::min)
    }

    /// Takes in all jobs that have arrived.
    fn take_all(&mut self, jobs: &Receiver<Job>) {
        while let Ok(job) = jobs.try_recv() {
            self.take(job);
        }
    }

    /// Takes a job in. Jobs that need no transaction and no answer are done at once.
    fn take(&mut self, job: Job) {
        match job {
            Job::Inspect { id, with_slots, reply } => {
                self.inbox.inspections.push_back((id, with_slots, reply));
            }
            // Others wait for a short one.
            Job::Read { read, is_first: true, reported } => {
                self.inbox.reads.push_front((read, reported));
            }
            Job::Read { read, is_first: false, reported } => {
                self.inbox.reads.push_back((read, reported));
            }
            Job::Ready(reply) => self.inbox.readies.push(reply),
            Job::Leave { id, sequence } => {
                if self.waiting.leave(&id, sequence) {
                    self.announce(Some(id));
                }
            }
            Job::GiveBack(grant) => self.undelivered.push(grant),
            Job::Stop => {
                // Delivery ends once it has sent the answers that it got before.
                self.answers = None;
                self.waiting.stop(JobError::Stopping);
            }
            job @ (Job::Grant(_) | Job::Work(_) | Job::Many(_)) => self.inbox.push(job),
        }
    }

    /// Answers the waiters if the leases of the file were moved elsewhere.
    fn dismiss(&mut self) {
        // A failure is tried again by the next transaction.
        let _ = self.file.refresh_retirement();
        if let Some(moved) = self.file.moved() {
            self.waiting.stop(moved);
        }
    }

    /// Does all jobs in one commit and answers them. If the commit fails, it fails for all of
    /// them.
    fn commit(&mut self, jobs: &Receiver<Job>) {
        let due = self.take_due();
        let returns = self.undelivered.due_in().is_some_and(|due| due.is_zero());
        let repeats = self.requests.due_in(self.clock).is_some_and(|due| due.is_zero());
        if !self.inbox.has_jobs() && !returns && due.is_empty() && !repeats {
            return;
        }
        let grants = self.undelivered.take();
        let mut batch = Batch::default();
        let started = Instant::now();
        let begun = self.file.begin();
        let done = begun.and_then(|()| Ok(self.fill(&mut batch, jobs, &grants, &due)?));
        let count = *done.as_ref().unwrap_or(&0);
        let names = if self.file.is_on_engine() { batch.names() } else { BTreeSet::new() };
        match self.file.end(done.map(|_| ()), &names) {
            Ok(Committed { took, refused }) => {
                self.metrics.committed(count, started.elapsed());
                self.inbox.committed(count, took);
                self.undelivered.resume();
                let is_done = |name: &&Arc<str>| !refused.contains(&***name);
                names.iter().filter(is_done).for_each(|name| _ = self.contended.remove(&**name));
                self.decide_again(&mut batch, grants, &refused);
                self.send(batch);
                self.wake(&refused);
            }
            Err(error) => self.fail(batch, grants, &error),
        }
    }

    /// Takes out of a commit what was decided on rows that others have changed or locked, to be
    /// decided on again.
    fn decide_again(
        &mut self,
        batch: &mut Batch,
        grants: Vec<UndeliveredGrant>,
        refused: &BTreeSet<String>,
    ) {
        if refused.is_empty() {
            return;
        }
        let now = Instant::now();
        // An old entry is of a name that no job has asked for since.
        self.contended.retain(|_, (_, last)| now.duration_since(*last) < MAX_CONTENTION);
        for name in refused {
            self.contended.entry(name.clone()).or_insert((now, now)).1 = now;
        }
        let is_refused = |grant: &UndeliveredGrant| match grant {
            UndeliveredGrant::Name(lease) | UndeliveredGrant::Fetched(lease) => {
                refused.contains(&lease.name)
            }
            _ => false,
        };
        self.undelivered.extend(grants.into_iter().filter(is_refused));
        self.undelivered.pause_for(CONTENTION_PAUSE);
        let mut at_once = Vec::new();
        for decided in std::mem::take(&mut batch.answers) {
            let name = decided.name().filter(|name| refused.contains(&***name));
            let Some((since, _)) = name.and_then(|name| self.contended.get(&**name)) else {
                batch.answers.push(decided);
                continue;
            };
            let contended_for = now.saturating_duration_since(*since);
            let Decided { id, asker, .. } = decided;
            let job = match asker {
                Asker::Grant(job) if job.wait.is_some() && !job.keep_waiting() => {
                    batch.answer_grant(*job, Ok(Answer::NoneFree));
                    continue;
                }
                // Who waits has time: it waits on, however long that takes.
                Asker::Grant(job) if job.share.is_some() => {
                    self.waiting.join(*job);
                    continue;
                }
                Asker::Grant(job) if job.wait.is_some() => Ok(Job::Grant(*job)),
                _ if contended_for > MAX_CONTENTION => Err(asker),
                Asker::Grant(job) => Ok(Job::Grant(*job)),
                Asker::Work(work) => Ok(Job::Work(work)),
                asker @ Asker::Reply(_) => Err(asker),
            };
            match job {
                Ok(job) if contended_for < CONTENTION_PAUSE => at_once.push(job),
                Ok(job) => self.later.push((now + CONTENTION_PAUSE, job)),
                Err(asker) => batch.answer(id, asker, Err(JobError::Contended)),
            }
        }
        self.inbox.push_again(at_once);
    }

    /// Takes in jobs whose pause is over.
    fn take_later(&mut self) {
        if self.later.is_empty() {
            return;
        }
        let now = Instant::now();
        let due = self.later.extract_if(.., |(due, _)| *due <= now).map(|(_, job)| job);
        self.inbox.push_again(due.collect());
    }

    /// Serves the waiters of names again that others have changed or locked.
    fn wake(&mut self, names: &BTreeSet<String>) {
        let pause_ms = i64::try_from(CONTENTION_PAUSE.as_millis()).unwrap_or(0);
        let at_ms = (self.clock)().saturating_add(pause_ms);
        for name in names {
            self.waiting.make_due(&Id::Name(name.as_str().into()), at_ms);
        }
    }

    /// Serves the waiters of names that others have changed, and tells who watches.
    fn poll_names(&mut self) {
        if !self.file.is_on_engine() || !self.file.is_poll_due() {
            return;
        }
        let (waiting, is_watched) = (&self.waiting, self.changes.receiver_count() > 0);
        let is_awaited = |name: &str| waiting.has(&Id::Name(name.into()));
        let changed = self.file.poll_names(is_awaited, || waiting.names(), is_watched);
        self.noticed(changed);
    }

    fn noticed(&mut self, changed: Vec<String>) {
        let now_ms = (self.clock)();
        for name in changed {
            let id = Id::Name(name.into());
            self.waiting.make_due(&id, now_ms);
            self.announce(Some(id));
        }
    }

    /// Returns the pools whose waiters may be served, because a lease is over or another process
    /// has changed the file.
    fn take_due(&mut self) -> Vec<Id> {
        let (now_ms, started) = ((self.clock)(), Instant::now());
        let are_all_due = self.waiting.are_all_due(now_ms);
        let due = self.waiting.take_due(&self.file.served(), now_ms);
        if are_all_due {
            self.file.adapt_poll_interval(started.elapsed());
        }
        due
    }

    /// Does the work of one transaction. Returns how many jobs it did.
    fn fill(
        &mut self,
        batch: &mut Batch,
        jobs: &Receiver<Job>,
        grants: &[UndeliveredGrant],
        due: &[Id],
    ) -> Result<usize, Error> {
        // Read the clock under the write lock: waiting for the lock takes time too.
        batch.now_ms = (self.clock)();
        let (mut count, started) = (0, Instant::now());
        if self.uses_names {
            self.file.refresh_keys();
        }
        batch.take_back(grants, &self.file.served(), &mut self.waiting)?;
        self.requests.repeat(&self.file.db, &self.waiting, batch.now_ms)?;
        while let Some(job) = self.next_job(jobs, count, started) {
            count += 1;
            // A job may have been sent after the batch began. Dated from there, its lease would end
            // before its client stops to trust it.
            batch.now_ms = (self.clock)();
            if !self.uses_names && job.needs_keys() {
                self.uses_names = true;
                self.file.refresh_keys();
            }
            // It waits for the answer of the first, which is stored with the last slice.
            if let Job::Many(many) = &job
                && self.inbox.others().chain(&batch.unfinished).any(|other| many.repeats(other))
            {
                batch.unfinished.push(job);
                continue;
            }
            match self.refusal(&job) {
                Some(error) => batch.refuse(job, error),
                None => batch.perform(job, &self.file.served(), &mut self.waiting)?,
            }
        }
        self.requests.watch(&mut batch.requesters, &self.waiting, batch.now_ms);
        for id in due {
            batch.now_ms = (self.clock)();
            batch.due(id, &self.file.served(), &mut self.waiting)?;
        }
        Ok(count)
    }

    /// Returns the error for a job that is not done any more.
    fn refusal(&self, job: &Job) -> Option<JobError> {
        match self.answers {
            None => Some(JobError::Stopping),
            Some(_) if job.begins_something() => {
                let moved = self.file.moved()?;
                Some(self.check_key(job.caller()).err().map_or(moved, |refused| {
                    // A client that needs no key gets no address either.
                    if job.needs_keys() { refused } else { JobError::Moved("another place") }
                }))
            }
            Some(_) => None,
        }
    }

    fn check_key(&self, caller: Caller) -> Result<(), JobError> {
        self.file.served().keys.check_key(caller, (self.clock)())
    }

    fn next_job(&mut self, jobs: &Receiver<Job>, done: usize, started: Instant) -> Option<Job> {
        if self.inbox.is_full(done, started) {
            return None;
        }
        // A holder's job may be behind those of other clients.
        self.take_all(jobs);
        while !self.inbox.has_jobs() {
            let job = self.inbox.receive(jobs, done, started)?;
            self.take(job);
        }
        self.inbox.pop()
    }

    /// Sends the answers of a commit.
    fn send(&mut self, mut batch: Batch) {
        let (mut newest, now_ms) = (0, (self.clock)());
        let answers = std::mem::take(&mut batch.answers).into_iter().map(Decided::answered);
        let mut answers: Vec<Answered> = answers.collect();
        let last_name = names::last_grant(&answers, &self.file.db);
        for Answered { id, answer, .. } in &mut answers {
            // A retired file has no larger token.
            if let (Err(JobError::Exhausted), Some(moved)) = (&*answer, self.file.moved()) {
                *answer = Err(moved);
            }
            let Ok(granted) = &*answer else { continue };
            if let Answer::Pool(PoolAnswer::Lent { borrowed, .. }) = granted {
                newest = newest.max(borrowed.slot.token);
            }
            if let Answer::Name(answer) = granted
                && let Some((name, tick_ms, has_passed)) = answer.begun_tick()
            {
                self.metrics.tick_begun(name, now_ms.saturating_sub(tick_ms), has_passed);
            }
            match granted.is_live_grant(now_ms) {
                None => {}
                Some(true) => self.metrics.lent(),
                // The commit took longer than the ttl. An item whose client gets no receipt counts
                // as not delivered.
                Some(false) => {
                    let late = std::mem::replace(answer, Err(JobError::TooShort));
                    if let Ok(late @ Answer::Queue(QueueAnswer::Delivered(_))) = late {
                        self.undelivered.extend(late.undelivered(id));
                    }
                }
            }
        }
        batch.unfinished.into_iter().for_each(|job| self.inbox.push(job));
        self.file.raise_high_water(newest, last_name);
        self.hand_over(answers);
        batch.changed.sort_unstable();
        batch.changed.dedup();
        for id in batch.changed {
            self.waiting.schedule(&id, &self.file.db, self.clock);
            self.announce(Some(id));
        }
    }

    /// Answers the jobs of a commit that failed. If it may have been stored all the same, its
    /// grants are returned once the database works again.
    fn fail(&mut self, mut batch: Batch, grants: Vec<UndeliveredGrant>, error: &Failure) {
        // Jobs behind the one that failed are answered too.
        let failure = self.file.failure();
        for job in std::mem::take(&mut batch.unfinished) {
            batch.refuse(job, failure);
        }
        while let Some(job) = self.inbox.pop() {
            batch.refuse(job, failure);
        }
        self.metrics.failed();
        if !self.file.is_given_up() {
            // The text of an error may have the path of the file in it, but no id of a pool.
            tracing::error!(error = %error, requests = batch.answers.len(), "the database failed");
        }
        self.undelivered.extend(grants);
        self.waiting.retry_all((self.clock)());
        let answers = batch.answers.into_iter().map(|decided| {
            let Answered { id, reply, answer } = decided.answered();
            self.undelivered.extend(answer.ok().and_then(|answer| answer.undelivered(&id)));
            Answered { id, reply, answer: Err(failure) }
        });
        let answers = answers.collect();
        self.hand_over(answers);
        self.undelivered.pause();
    }

    /// Hands answers over to their requests, with one message for all of them.
    fn hand_over(&mut self, answers: Vec<Answered>) {
        // A client that is answered and reads the metrics then must not find itself waiting there.
        self.metrics.waiters(self.waiting.len());
        let answers = match &self.answers {
            Some(sender) => match sender.send(answers) {
                Ok(()) => return,
                Err(unsent) => unsent.0,
            },
            None => answers,
        };
        deliver(answers, |grant| self.undelivered.push(grant));
    }

    fn announce(&self, changed: Changed) {
        // Fails only if no client watches.
        let _ = self.changes.send(changed);
    }

    fn answer_inspections(&mut self) {
        let (started, mut answers) = (Instant::now(), Vec::new());
        while started.elapsed() < MAX_READ_TIME
            && let Some((id, with_slots, reply)) = self.inbox.inspections.pop_front()
        {
            answers.push(Answered { answer: self.inspect(&id, with_slots), id, reply });
        }
        if !answers.is_empty() {
            self.hand_over(answers);
        }
    }

    fn inspect(&self, id: &Id, with_slots: bool) -> Result<Answer, JobError> {
        let now_ms = (self.clock)();
        match self.file.snapshot(id, with_slots, now_ms) {
            Ok(Some((info, None))) => Ok(PoolAnswer::pool(id, info).into()),
            Ok(Some((info, Some(slots)))) => {
                let waiters = self.waiting.len_of(id);
                Ok(PoolAnswer::Snapshot(PoolSnapshot { info, slots, waiters, now_ms }).into())
            }
            Ok(None) | Err(Failure::Database(Error::NoSuchPool)) => Err(JobError::NoSuchPool),
            Err(error) => {
                tracing::error!(error = %error, "the database failed");
                Err(self.file.failure())
            }
        }
    }

    /// Answers requests that only read, and need an access key.
    fn answer_reads(&mut self) {
        if self.inbox.reads.is_empty() {
            return;
        }
        self.file.refresh_keys();
        if self.file.check_mirror().is_err() {
            for (read, _) in std::mem::take(&mut self.inbox.reads) {
                read(Err(self.file.failure()))();
            }
            return;
        }
        let _ = self.file.refresh_retirement();
        let moved = self.file.moved();
        if self.file.is_on_engine() && !self.refresh_reported() {
            let reads = std::mem::take(&mut self.inbox.reads).into_iter();
            let (failed, others) = reads.partition::<VecDeque<_>, _>(|(_, it)| it.is_some());
            self.inbox.reads = others;
            failed.into_iter().for_each(|(read, _)| read(Err(self.file.failure()))());
        }
        let started = Instant::now();
        while started.elapsed() < MAX_READ_TIME
            && let Some((read, reported)) = self.inbox.reads.pop_front()
        {
            // Nothing is said of a name that has gone elsewhere.
            let has_gone = moved.zip(reported).map(|(moved, reported)| {
                let checked = reported.caller.map_or(Ok(()), |caller| self.check_key(caller));
                checked.err().unwrap_or(moved)
            });
            let send = match has_gone {
                Some(error) => read(Err(error)),
                None => self.read(read),
            };
            // Another process may have removed a key in the commit that was just read. Counted
            // before the answer goes out, so that a stream checks its key again.
            self.file.refresh_keys();
            send();
        }
    }

    /// Reads the names from the engine that are about to be reported. Returns whether it could.
    fn refresh_reported(&mut self) -> bool {
        let (now_ms, keys) = ((self.clock)(), self.file.served().keys);
        let (mut names, mut are_all) = (BTreeSet::new(), false);
        for reported in self.inbox.reads.iter().filter_map(|(_, reported)| reported.as_ref()) {
            match (&reported.names, reported.caller) {
                // It is refused, and must not make us ask the engine.
                (_, Some(caller)) if keys.check_key(caller, now_ms).is_err() => {}
                (Which::One(name), _) => _ = names.insert(Arc::clone(name)),
                (Which::Under(_), _) => are_all = true,
            }
        }
        if names.is_empty() && !are_all {
            return true;
        }
        match self.file.refresh_names(&names, are_all) {
            Ok(changed) => self.noticed(changed),
            Err(error) => {
                tracing::warn!(error = %error, "names cannot be read from the engine");
                return false;
            }
        }
        true
    }

    /// Runs a read. Returns the function that sends the answer.
    fn read(&self, read: Read) -> SendAnswer {
        let (db, keys) = (&self.file.db, self.file.served().keys);
        let (is_on_engine, now_ms) = (self.file.is_on_engine(), (self.clock)());
        read(Ok(&Reader { db, keys, waiting: &self.waiting, is_on_engine, now_ms }))
    }

    fn answer_readies(&mut self) {
        if self.inbox.readies.is_empty() {
            return;
        }
        let writable = self.file.check_writable();
        let answer = writable.map_err(JobError::NotReady);
        for reply in self.inbox.readies.drain(..) {
            // The client may be gone.
            let _ = reply.send(answer);
        }
    }
}

#[cfg(test)]
mod tests;
