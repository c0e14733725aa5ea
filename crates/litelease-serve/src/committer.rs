//! The one thread that writes: jobs that have come together share one durable commit, and answers go out after it.
//!
//! It also knows who waits, and hands a slot that comes free to the head of the queue in the same commit.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use litelease::{BorrowOptions, Borrowed, Error, Litelease, Pools};
use tokio::sync::broadcast;

use crate::expiry_schedule::ExpirySchedule;
use crate::file;
use crate::high_water::HighWater;
use crate::job::{
    Answer, Answered, Answers, BorrowJob, Id, Job, JobError, Lent, Receiver, RecvTimeoutError,
    Reply, State, receive,
};
use crate::metrics::Metrics;
use crate::options::Options;
use crate::pending_borrow::deliver;
use crate::queue::Queue;
use crate::server_lock::ServerLock;

/// How often to look whether another process has changed the file, while somebody waits or watches.
const CHANGE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long to wait for the next of those who are about to ask, and how often.
const BATCH_WAIT_STEP: Duration = Duration::from_micros(50);
const MAX_BATCH_WAIT_STEPS: u32 = 3;

/// How long to leave a database alone that has failed, while nobody asks for anything.
const RETRY_PAUSE: Duration = Duration::from_millis(RETRY_PAUSE_MS.unsigned_abs());
const RETRY_PAUSE_MS: i64 = 1_000;

/// How often to look after what nobody waits for: the lock of the server.
const IDLE: Duration = Duration::from_secs(5);

/// How long it is taken for granted that what was stored, or not, would be so again.
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// The id of the pool that has changed, or none if it may be any of them.
pub(crate) type Changed = Option<Id>;

pub(crate) struct Committer {
    db: Litelease,
    mark: HighWater,
    queues: HashMap<Id, Queue>,
    waiters: usize,
    max_waiters: usize,
    max_batch: usize,
    clock: fn() -> i64,
    stopping: bool,
    /// Jobs that are to be done in the next commit, and those who want to look after it.
    todo: VecDeque<Job>,
    looks: Vec<(Id, Reply)>,
    /// Those who ask whether something could be stored.
    readies: Vec<Reply>,
    /// When something was to be stored last, and why it was not.
    stored: Option<(Instant, Result<(), &'static str>)>,
    /// How many jobs the last commit had, and how long it took to commit them.
    last_batch: usize,
    last_took: Duration,
    /// Grants that nobody has received, to be returned with the next commit.
    unclaimed: Vec<(Id, String)>,
    /// When to try again what the database has failed to do.
    retry_at: Option<Instant>,
    /// Where answers are handed over. After a stop nobody may be there, and the writer delivers them itself.
    answers: Option<Answers>,
    changes: broadcast::Sender<Changed>,
    metrics: Arc<Metrics>,
    /// SQLite's count of commits by others, as last seen.
    version: i64,
    polled_at: Instant,
    poll_interval: Duration,
    /// When a lease ends by itself that somebody may be waiting for.
    expiries: ExpirySchedule,
    /// When all who wait are looked after, whatever they wait for, in Unix milliseconds.
    all_due_ms: i64,
    /// Held until the database is closed. Tests do without.
    lock: Option<ServerLock>,
}

/// Answers of one commit, to be sent once it has succeeded.
#[derive(Default)]
struct Batch {
    now_ms: i64,
    answers: Vec<Answered>,
    changed: Vec<Id>,
}

impl Batch {
    fn answer(&mut self, id: Id, reply: Reply, answer: Result<Answer, JobError>) {
        self.answers.push(Answered { id, reply, answer });
    }
}

impl Committer {
    pub(crate) fn new(
        db: Litelease,
        mark: HighWater,
        lock: Option<ServerLock>,
        options: &Options,
        answers: Answers,
        changes: broadcast::Sender<Changed>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Committer {
            db,
            mark,
            queues: HashMap::new(),
            waiters: 0,
            max_waiters: options.max_waiters,
            max_batch: options.max_batch.max(1),
            clock: options.clock,
            stopping: false,
            todo: VecDeque::new(),
            looks: Vec::new(),
            readies: Vec::new(),
            stored: None,
            last_batch: 0,
            last_took: Duration::ZERO,
            unclaimed: Vec::new(),
            retry_at: None,
            answers: Some(answers),
            changes,
            metrics,
            version: 0,
            polled_at: Instant::now(),
            poll_interval: CHANGE_POLL_INTERVAL,
            expiries: ExpirySchedule::default(),
            all_due_ms: i64::MAX,
            lock,
        }
    }

    /// Works until nobody can send a job any more.
    pub(crate) fn work(mut self, jobs: &Receiver<Job>) {
        while self.turn(jobs) {}
        // Whoever left last may have left a grant behind. If it cannot be returned now, it ends by itself.
        self.retry_at = None;
        self.commit(jobs);
        self.sync_mark();
    }

    /// Waits for a job, or until there is something to do without one, and does it. False if nobody can send a job
    /// any more.
    fn turn(&mut self, jobs: &Receiver<Job>) -> bool {
        match receive(jobs, self.patience()) {
            Ok(job) => self.take(job),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        self.poll_for_changes();
        self.commit(jobs);
        true
    }

    /// Takes a job in. What needs no commit is done at once.
    fn take(&mut self, job: Job) {
        match job {
            Job::Look { id, reply } => self.looks.push((id, reply)),
            Job::Ready { reply } => self.readies.push(reply),
            Job::Leave { id, place } => self.leave(&id, place),
            Job::Stop => self.stop(),
            Job::GiveBack { id, lease } => self.unclaimed.push((id, lease)),
            job => self.todo.push_back(job),
        }
    }

    /// The next job of a commit in which so many were done, while there are any.
    ///
    /// Those who were answered together ask again together, one after the other. A commit that begins with the first of
    /// them would leave the others to wait for the next one, so it waits for as many: a few steps for each, as they may
    /// share a core with us, and in all no longer than a commit takes.
    fn next(&mut self, jobs: &Receiver<Job>, done: usize, since: Instant) -> Option<Job> {
        if done >= self.max_batch {
            return None;
        }
        let mut steps = 0;
        while self.todo.is_empty() {
            let expects = done < self.last_batch && since.elapsed() <= self.last_took;
            match jobs.try_recv() {
                Ok(job) => self.take(job),
                Err(_) if expects && steps < MAX_BATCH_WAIT_STEPS => {
                    // Asleep, and not waiting: whoever comes meanwhile need not wake us, one after the other.
                    std::thread::sleep(BATCH_WAIT_STEP);
                    steps += 1;
                }
                Err(_) => return None,
            }
        }
        self.todo.pop_front()
    }

    /// How long there is nothing to do unless somebody comes.
    fn patience(&self) -> Duration {
        let patience = match self.waiters > 0 || self.changes.receiver_count() > 0 {
            true => CHANGE_POLL_INTERVAL.min(self.until_due()),
            false => IDLE,
        };
        let patience = self.mark.due().map_or(patience, |due| patience.min(due));
        match self.unclaimed.is_empty() {
            true => patience,
            false => patience.min(self.retry_pause()),
        }
    }

    /// How long not to try again what has failed, unless somebody asks for something.
    fn retry_pause(&self) -> Duration {
        let until = self.retry_at;
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    fn until_due(&self) -> Duration {
        let due_ms =
            self.expiries.first().map_or(self.all_due_ms, |at_ms| at_ms.min(self.all_due_ms));
        let left_ms = due_ms.saturating_sub((self.clock)());
        Duration::from_millis(left_ms.max(0).unsigned_abs())
    }

    /// Remembers when the next lease of a pool ends, if somebody waits there.
    fn mind(&mut self, id: &Id) {
        if !self.queues.contains_key(id) {
            return;
        }
        match self.db.pools().next_expiry(id) {
            Ok(Some(at_ms)) => self.expiries.set(id, at_ms),
            Ok(None) => self.expiries.remove(id),
            Err(_) => self.expiries.set(id, (self.clock)().saturating_add(RETRY_PAUSE_MS)),
        }
    }

    /// Looks whether others have changed the file.
    fn poll_for_changes(&mut self) {
        if self.polled_at.elapsed() < self.poll_interval {
            return;
        }
        self.polled_at = Instant::now();
        // Whether it is lost is told when something is to be stored.
        let _ = self.lock.as_mut().map(ServerLock::ensure);
        let sql = "PRAGMA data_version";
        let version = self.db.conn().query_row(sql, [], |row| row.get(0)).unwrap_or(self.version);
        if version != self.version {
            self.version = version;
            self.all_due_ms = i64::MIN;
            // Nobody may be listening.
            let _ = self.changes.send(None);
        }
    }

    /// Does all jobs in one commit and answers them. If it fails, it fails for all of them.
    fn commit(&mut self, jobs: &Receiver<Job>) {
        let due = self.due();
        let returns = !self.unclaimed.is_empty() && self.retry_pause().is_zero();
        if !self.todo.is_empty() || returns || !due.is_empty() {
            let unclaimed = std::mem::take(&mut self.unclaimed);
            let mut batch = Batch::default();
            match self.write(jobs, &unclaimed, &due, &mut batch) {
                Ok(()) => self.send(batch),
                Err(error) => self.fail(batch, unclaimed, &error),
            }
        }
        let looks = std::mem::take(&mut self.looks);
        if !looks.is_empty() {
            let look = |(id, reply): (Id, Reply)| Answered { answer: self.look(&id), id, reply };
            let answers = looks.into_iter().map(look).collect();
            self.hand_over(answers);
        }
        self.tell_ready();
        if self.mark.due().is_some_and(|due| due.is_zero()) {
            self.sync_mark();
        }
        self.metrics.waiters(self.waiters);
    }

    fn sync_mark(&mut self) {
        if let Err(error) = self.mark.sync() {
            tracing::warn!(error = %error, "the high-water mark cannot be written");
        }
    }

    /// Answers those who ask whether something could be stored: by the last commit if it was just now, else by trying.
    fn tell_ready(&mut self) {
        if self.readies.is_empty() {
            return;
        }
        let known = self.stored.filter(|(since, _)| since.elapsed() < KNOWN_FOR);
        let is_ready = match (self.check(), known) {
            (Err(error), _) => Err(file::reason(&error)),
            (Ok(()), Some((_, known))) => known,
            (Ok(()), None) => {
                let probed = file::probe(&self.db);
                if let Err(error) = &probed {
                    let _ = self.db.rollback_batch();
                    tracing::error!(error = %error, "the database cannot be written");
                }
                self.remember(&probed);
                probed.map_err(|error| file::reason(&error))
            }
        };
        let answer = is_ready.map(|()| Answer::Ready).map_err(JobError::NotReady);
        for reply in self.readies.drain(..) {
            // Whoever asked may be gone.
            let _ = reply.send(answer.clone());
        }
    }

    fn remember(&mut self, stored: &Result<(), Error>) {
        let known = stored.as_ref().map_err(|error| file::reason(error)).copied();
        self.stored = Some((Instant::now(), known));
    }

    /// Makes sure that this is still the server of the file, and the file where it was.
    fn check(&mut self) -> Result<(), Error> {
        self.lock.as_mut().map_or(Ok(()), ServerLock::ensure)?;
        file::check_place(&self.db)
    }

    /// The pools where something is to be done for those who wait, because a lease is over or another process has
    /// changed the file.
    fn due(&mut self) -> Vec<Id> {
        let now_ms = (self.clock)();
        let mut due = self.expiries.take(now_ms);
        let is_all = now_ms >= self.all_due_ms;
        if is_all {
            self.all_due_ms = i64::MAX;
            due = self.queues.keys().cloned().collect();
        }
        let started = Instant::now();
        due.retain(|id| self.has_something_to_serve(id, now_ms));
        if is_all {
            // Where thousands of pools have somebody who waits, who asks for something comes first.
            self.poll_interval = CHANGE_POLL_INTERVAL.max(started.elapsed() * 10);
        }
        due
    }

    /// Whether a slot may be free for those who wait here. If not, it is remembered when one may be.
    fn has_something_to_serve(&mut self, id: &Id, now_ms: i64) -> bool {
        let pools = self.db.pools();
        match (pools.at(now_ms).info(id), pools.next_expiry(id)) {
            // A lease that is over is found to be by serving, even where the pool has become too small to lend its slot
            // again. Otherwise it would hide the next one to end.
            (Ok(Some(info)), Ok(next)) if next.is_none_or(|at_ms| at_ms > now_ms) => {
                next.iter().for_each(|at_ms| self.expiries.set(id, *at_ms));
                info.available() > 0
            }
            // Or it was deleted, or the file is in error: whoever waits must be told.
            _ => true,
        }
    }

    fn write(
        &mut self,
        jobs: &Receiver<Job>,
        unclaimed: &[(Id, String)],
        due: &[Id],
        batch: &mut Batch,
    ) -> Result<(), Error> {
        let started = Instant::now();
        let begun = match self.check() {
            Ok(()) => self.db.begin_batch(),
            Err(error) => Err(error),
        };
        let mut count = 0;
        let changes = self.db.conn().total_changes();
        let done = begun.and_then(|()| {
            // The clock is read under the write lock: waiting for the lock takes time too.
            batch.now_ms = (self.clock)();
            for (id, lease) in unclaimed {
                match self.db.pools().at(batch.now_ms).return_slot(id, lease) {
                    Ok(true) => self.freed(id, batch)?,
                    Ok(false) | Err(Error::NoSuchPool) => {}
                    Err(error) => return Err(error),
                }
            }
            while let Some(job) = self.next(jobs, count, started) {
                count += 1;
                self.perform(job, batch)?;
            }
            due.iter().try_for_each(|id| self.freed(id, batch))
        });
        let ending = Instant::now();
        let done = done.and_then(|()| self.db.commit_batch());
        // A commit of nothing works on any disk.
        if done.is_err() || self.db.conn().total_changes() > changes {
            self.remember(&done);
        }
        match done {
            Ok(()) => {
                self.metrics.committed(count, started.elapsed());
                (self.last_batch, self.last_took) = (count, ending.elapsed());
                self.retry_at = None;
            }
            Err(_) => {
                // What cannot be rolled back now is before the next one begins.
                let _ = self.db.rollback_batch();
                // Every job is answered, also those that were not reached because one before them failed.
                for (id, reply) in self.todo.drain(..).filter_map(Job::into_reply) {
                    batch.answer(id, reply, Err(JobError::Database));
                }
            }
        }
        done
    }

    /// Does one job. An error that is nobody's fault but the database's fails the whole batch.
    fn perform(&mut self, job: Job, batch: &mut Batch) -> Result<(), Error> {
        let now_ms = batch.now_ms;
        let pools = self.db.pools();
        if self.stopping {
            if let Some((id, reply)) = job.into_reply() {
                batch.answer(id, reply, Err(JobError::Stopping));
            }
            return Ok(());
        }
        let (id, reply, answered) = match job {
            Job::Register { id, count, reply } => {
                let answered = pools.at(now_ms).register(&id, count).map(Answer::Pool);
                (id, reply, answered)
            }
            Job::Delete { id, reply } => {
                let answered = pools.delete(&id).map(|_| Answer::Deleted);
                (id, reply, answered)
            }
            Job::Borrow(borrow) => return self.borrow(borrow, batch),
            Job::Return { id, lease, reply } => {
                let answered = pools.at(now_ms).return_slot(&id, &lease).map(Answer::Returned);
                (id, reply, answered)
            }
            Job::Renew { id, lease, ttl_ms, reply } => {
                let renewed = pools.at(now_ms).renew(&id, &lease, in_ms(ttl_ms));
                let answered = renewed.map(|renewed| match renewed {
                    Some(slot) => {
                        let ttl_ms = slot.expires_at_ms.saturating_sub(now_ms);
                        Answer::Renewed { lease, slot, ttl_ms }
                    }
                    None => Answer::Over,
                });
                (id, reply, answered)
            }
            Job::Look { .. }
            | Job::Ready { .. }
            | Job::Leave { .. }
            | Job::GiveBack { .. }
            | Job::Stop => {
                return Ok(());
            }
        };
        let answered = as_answer(answered);
        match answered {
            Ok(answer) => batch.answer(Arc::clone(&id), reply, answer),
            Err(error) => {
                batch.answer(id, reply, Err(JobError::Database));
                return Err(error);
            }
        }
        self.freed(&id, batch)
    }

    /// A borrow gets its slot, or its place in the queue, or a no.
    fn borrow(&mut self, borrow: BorrowJob, batch: &mut Batch) -> Result<(), Error> {
        // Whoever is gone has left already, so nobody would take it out of the queue.
        if borrow.reply.is_closed() {
            return Ok(());
        }
        // Nobody overtakes those who wait. At one instant, a pool that has nothing for them has nothing at all.
        self.serve(&borrow.id, batch)?;
        let lent = lend(&self.db.pools(), &borrow, batch.now_ms);
        match as_answer(lent) {
            Ok(Ok(Answer::Nothing)) if borrow.waits && self.waiters >= self.max_waiters => {
                batch.answer(borrow.id, borrow.reply, Err(JobError::TooManyWaiters));
            }
            Ok(Ok(Answer::Nothing)) if borrow.waits => {
                self.waiters += 1;
                batch.changed.push(Arc::clone(&borrow.id));
                self.queues.entry(Arc::clone(&borrow.id)).or_default().join(borrow);
            }
            Ok(answer) => {
                if matches!(answer, Ok(Answer::Lent(_))) {
                    batch.changed.push(Arc::clone(&borrow.id));
                }
                batch.answer(borrow.id, borrow.reply, answer);
            }
            Err(error) => {
                batch.answer(borrow.id, borrow.reply, Err(JobError::Database));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Something about a pool has changed: whoever waits there may be served.
    fn freed(&mut self, id: &Id, batch: &mut Batch) -> Result<(), Error> {
        batch.changed.push(Arc::clone(id));
        self.serve(id, batch)
    }

    /// Lends slots to those who wait, in their order, as long as there are any.
    fn serve(&mut self, id: &Id, batch: &mut Batch) -> Result<(), Error> {
        let Some(queue) = self.queues.get_mut(id) else { return Ok(()) };
        loop {
            let (gone, head) = queue.head();
            self.waiters = self.waiters.saturating_sub(gone);
            let Some(head) = head else { break };
            let options = BorrowOptions { note: head.note.as_deref(), key: head.key.as_deref() };
            let lent =
                self.db.pools().at(batch.now_ms).borrow_with(id, in_ms(head.ttl_ms), options);
            let (ttl_ms, has_key) = (head.ttl_ms, head.key.is_some());
            let lent = lent.map(|lent| as_lent(lent, ttl_ms, has_key, batch.now_ms));
            let (answer, error) = match as_answer(lent) {
                Ok(Ok(Answer::Nothing)) => break,
                Ok(answer) => (answer, None),
                Err(error) => (Err(JobError::Database), Some(error)),
            };
            let waiter = queue.pop();
            for (_, reply) in waiter.into_iter().flat_map(|waiter| waiter.replies) {
                self.waiters = self.waiters.saturating_sub(1);
                batch.answer(Arc::clone(id), reply, answer.clone());
            }
            batch.changed.push(Arc::clone(id));
            if let Some(error) = error {
                return Err(error);
            }
        }
        self.forget_if_empty(id);
        Ok(())
    }

    /// Sends the answers of a commit. A grant whose client is gone is given back with the next one.
    fn send(&mut self, mut batch: Batch) {
        let mut newest = 0;
        let now_ms = (self.clock)();
        for Answered { answer, .. } in &mut batch.answers {
            if let Ok(Answer::Lent(lent)) = answer {
                newest = newest.max(lent.borrowed.slot.token);
                match lent.borrowed.slot.is_live(now_ms) {
                    true => self.metrics.lent(),
                    // Committing takes time too.
                    false => *answer = Err(JobError::TooShort),
                }
            }
        }
        if let Err(error) = self.mark.rise(newest) {
            // The grants are stored; what is missing is the means to notice a restored backup.
            tracing::warn!(error = %error, "the high-water mark cannot be written");
        }
        self.hand_over(batch.answers);
        let mut changed = batch.changed;
        changed.sort_unstable();
        changed.dedup();
        for id in changed {
            self.mind(&id);
            // Nobody may be listening.
            let _ = self.changes.send(Some(id));
        }
    }

    /// Answers all of them with one message.
    fn hand_over(&mut self, answers: Vec<Answered>) {
        // Whoever is answered and looks at the metrics then must not be counted as waiting.
        self.metrics.waiters(self.waiters);
        let answers = match &self.answers {
            Some(sender) => match sender.send(answers) {
                Ok(()) => return,
                Err(unsent) => unsent.0,
            },
            None => answers,
        };
        deliver(answers, |id, lease| self.unclaimed.push((id, lease)));
    }

    /// A commit that failed: nobody has got anything. Where it is not known whether it was stored, what was
    /// granted in it is given back as soon as the database works again.
    fn fail(&mut self, mut batch: Batch, unclaimed: Vec<(Id, String)>, error: &Error) {
        self.metrics.failed();
        // The text of the error has the path of the file, and no id.
        tracing::error!(error = %error, requests = batch.answers.len(), "the database failed");
        self.unclaimed.extend(unclaimed);
        // Whoever still waits is looked after when it works again.
        self.all_due_ms = (self.clock)().saturating_add(RETRY_PAUSE_MS);
        for Answered { id, answer, .. } in &mut batch.answers {
            // A key may have found a lease that its holder has had for long, and keeps a new one for the retry.
            if let Ok(Answer::Lent(lent)) = answer
                && !lent.has_key
            {
                self.unclaimed.push((Arc::clone(id), std::mem::take(&mut lent.borrowed.lease_id)));
            }
            *answer = Err(JobError::Database);
        }
        self.hand_over(batch.answers);
        // Not in a tight loop, while the cause lasts.
        self.retry_at = Instant::now().checked_add(RETRY_PAUSE);
    }

    fn look(&self, id: &Id) -> Result<Answer, JobError> {
        let now_ms = (self.clock)();
        let pools = self.db.pools();
        let placed = file::check_place(&self.db);
        let looked = placed.and_then(|()| pools.at(now_ms).info(id));
        let looked = looked.and_then(|info| match info {
            Some(info) => Ok(Some((info, pools.at(now_ms).slots(id)?))),
            None => Ok(None),
        });
        match looked {
            Ok(Some((info, slots))) => {
                let waiters = self.queues.get(id).map_or(0, Queue::len);
                Ok(Answer::State(State { info, slots, waiters, now_ms }))
            }
            Ok(None) | Err(Error::NoSuchPool) => Err(JobError::NoSuchPool),
            Err(error) => {
                tracing::error!(error = %error, "the database failed");
                Err(JobError::Database)
            }
        }
    }

    fn leave(&mut self, id: &Id, place: u64) {
        let Some(queue) = self.queues.get_mut(id) else { return };
        if queue.leave(place) {
            self.waiters = self.waiters.saturating_sub(1);
            let _ = self.changes.send(Some(Arc::clone(id)));
        }
        self.forget_if_empty(id);
    }

    /// A queue that nobody is in needs no looking after.
    fn forget_if_empty(&mut self, id: &Id) {
        if self.queues.get(id).is_some_and(Queue::is_empty) {
            self.queues.remove(id);
            self.expiries.remove(id);
        }
    }

    fn stop(&mut self) {
        self.stopping = true;
        self.waiters = 0;
        self.expiries.clear();
        // What was handed over before is delivered, and then the end of this channel is seen.
        self.answers = None;
        for (_, mut queue) in self.queues.drain() {
            while let Some(waiter) = queue.pop() {
                for (_, reply) in waiter.replies {
                    // Whoever waited may be gone.
                    let _ = reply.send(Err(JobError::Stopping));
                }
            }
        }
    }
}

impl Job {
    /// Whom to answer, if anybody.
    fn into_reply(self) -> Option<(Id, Reply)> {
        match self {
            Job::Register { id, reply, .. }
            | Job::Delete { id, reply }
            | Job::Return { id, reply, .. }
            | Job::Renew { id, reply, .. }
            | Job::Look { id, reply } => Some((id, reply)),
            Job::Borrow(borrow) => Some((borrow.id, borrow.reply)),
            Job::Ready { reply } => Some(("".into(), reply)),
            Job::Leave { .. } | Job::GiveBack { .. } | Job::Stop => None,
        }
    }
}

fn lend(pools: &Pools<'_>, borrow: &BorrowJob, now_ms: i64) -> Result<Answer, Error> {
    let options = BorrowOptions { note: borrow.note.as_deref(), key: borrow.key.as_deref() };
    let lent = pools.at(now_ms).borrow_with(&borrow.id, in_ms(borrow.ttl_ms), options)?;
    Ok(as_lent(lent, borrow.ttl_ms, borrow.key.is_some(), now_ms))
}

fn as_lent(lent: Option<Borrowed>, ttl_ms: i64, has_key: bool, now_ms: i64) -> Answer {
    match lent {
        Some(borrowed) => {
            // One that was there already, by its key, has less time left, or more, than is asked for.
            let left_ms = borrowed.slot.expires_at_ms.saturating_sub(now_ms);
            let ttl_ms = if has_key { left_ms } else { ttl_ms };
            Answer::Lent(Lent { borrowed, ttl_ms, has_key })
        }
        None => Answer::Nothing,
    }
}

/// What is the client's to know, and what fails the whole commit.
fn as_answer(done: Result<Answer, Error>) -> Result<Result<Answer, JobError>, Error> {
    match done {
        Ok(answer) => Ok(Ok(answer)),
        Err(Error::NoSuchPool) => Ok(Err(JobError::NoSuchPool)),
        Err(Error::TokenExhausted { .. }) => Ok(Err(JobError::Exhausted)),
        Err(error) => Err(error),
    }
}

fn in_ms(ttl_ms: i64) -> Duration {
    Duration::from_millis(ttl_ms.max(0).unsigned_abs())
}

#[cfg(test)]
mod tests;
