//! Schedulers: a thread per job, which runs the job once per tick among all processes that have its
//! schedule.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use litelease_hold::file::{DatabaseFile, FileTicks};
use litelease_hold::schedule::{InvalidSchedule, Planning, Schedule};
use litelease_hold::{HeldTick, Job, JobLoop, Window, abandon};
use rusqlite::ToSql;

use crate::error::{into_rusqlite, rusqlite_error};
use crate::file::{connect, file_of};
use crate::worker::Handler;
use crate::{
    Cancel, Error, FinishTickResult, HoldError, Leases, Litelease, LiteleaseRef, LossSignal, Lost,
    Queue, TickOutcome, Transaction,
};

type Result<T, E = HoldError> = std::result::Result<T, E>;

/// The busy timeout of a job's connection.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// How a job is scheduled.
///
/// ```
/// use std::time::Duration;
/// use litelease::JobOptions;
///
/// let options = JobOptions::new()
///     .late(Duration::from_secs(2 * 3600))
///     .retries(2)
///     .max_time(Duration::from_secs(600));
/// # let _ = options;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobOptions {
    planning: Planning,
    retries: u32,
    ttl: Duration,
    max_time: Option<Duration>,
}

/// The jobs of a process and their schedules, made by [`Litelease::scheduler`].
///
/// Every process that has a schedule runs a scheduler, and each tick is run by one of them. A job
/// has a thread and a connection of its own, works with no transaction open, and under a lease that
/// is renewed in the background. If its process dies, another one runs the tick, under a new token.
/// Two runs of one job never overlap, and a tick that comes due meanwhile waits. Several that were
/// missed are one run. The first start runs nothing: it stores the last past tick as skipped.
///
/// A job that returns `Ok` makes its tick done. After an error or a panic it is repeated as often
/// as its options say; then the tick has failed, and is not run again.
///
/// In a process that was forked, the threads of its parent do not exist: start another scheduler
/// there.
///
/// ```no_run
/// use litelease::{Litelease, Schedule};
///
/// # fn main() -> Result<(), litelease::HoldError> {
/// let db = Litelease::open_own("app.sqlite3")?;
/// let nightly = Schedule::cron("0 3 * * *")?.in_zone("Europe/Berlin")?;
/// db.scheduler()
///     .add("nightly", nightly, |tick| {
///         // The slow work, with no transaction open.
///         tick.check()?; // Err(Lost { reason }) once another process may have the tick
///         tick.finish(|tx| {
///             tx.conn().execute("INSERT INTO reports DEFAULT VALUES", [])?;
///             Ok(())
///         })
///     })
///     .run()?; // until it is cancelled
/// # Ok(())
/// # }
/// ```
#[must_use = "a scheduler does nothing until it runs"]
pub struct Scheduler {
    /// The file, or why it cannot have a scheduler.
    file: Result<DatabaseFile>,
    jobs: Vec<(Job, Work)>,
    cancel: Cancel,
    on_trouble: Option<OnTrouble>,
}

type Work = Box<dyn Fn(&JobTick<'_>) -> Result<(), String> + Send + Sync>;
type OnTrouble = Arc<dyn Fn(&Error) + Send + Sync>;

/// A scheduler that runs in the background. Dropping it stops it: it begins no tick, and the drop
/// returns when the jobs under way have ended.
///
/// ```
/// # litelease_doctest::file!(db);
/// let hourly = Schedule::every(Duration::from_secs(3600))?;
/// let running = db.scheduler().add("sync", hourly, |_| Ok::<(), String>(())).start()?;
/// running.stop()?;
/// # Ok::<(), HoldError>(())
/// ```
#[must_use = "a scheduler that is dropped is stopped"]
pub struct RunningScheduler {
    cancel: Cancel,
    threads: Vec<JoinHandle<Result<()>>>,
    pid: u32,
}

/// A tick in the hands of a job.
///
/// Its lease is renewed in the background. [`check`](JobTick::check) fails once it can no longer be
/// trusted: stop the work then, for another process may have the tick. Whatever `check` says,
/// [`finish`](JobTick::finish) is decided by the token in the file.
///
/// ```
/// # litelease_doctest::file!(db);
/// let cancel = Cancel::default();
/// let every = Schedule::every(Duration::from_millis(10))?;
/// let stop = cancel.clone();
/// db.scheduler()
///     .cancel(cancel)
///     .add("sync", every, move |tick| {
///         println!("{}, attempt {}, token {}", tick.tick_ms(), tick.tick_attempt(), tick.token());
///         stop.cancel();
///         tick.check()
///     })
///     .run()?;
/// # Ok::<(), HoldError>(())
/// ```
pub struct JobTick<'t> {
    db: &'t Litelease,
    tick: &'t HeldTick,
    is_finished: Cell<bool>,
}

impl JobOptions {
    /// Returns options for a job whose ticks are granted five times at most if its holders die, and
    /// which is not repeated after an error.
    pub fn new() -> Self {
        let ttl = Duration::from_secs(30);
        JobOptions { planning: Planning::default(), retries: 0, ttl, max_time: None }
    }

    /// Begins no tick that is older than this. An operator's [`tick_again`](Leases::tick_again) is
    /// begun nevertheless.
    pub fn late(self, late: Duration) -> Self {
        let late_ms = i64::try_from(late.as_millis()).ok();
        JobOptions { planning: Planning { late_ms, ..self.planning }, ..self }
    }

    /// Runs every tick that was missed, in order, and not only the last one; none that is older
    /// than a day, or than [`late`](JobOptions::late).
    pub fn each(self) -> Self {
        JobOptions { planning: Planning { each: true, ..self.planning }, ..self }
    }

    /// Runs the last past tick at the first start.
    pub fn at_start(self) -> Self {
        JobOptions { planning: Planning { at_start: true, ..self.planning }, ..self }
    }

    /// Grants a tick at most so many times, if its holders die: 5 unless set. The smallest number
    /// that any process gives counts.
    pub fn attempts(self, attempts: i64) -> Self {
        JobOptions { planning: Planning { attempts, ..self.planning }, ..self }
    }

    /// Never begins a tick a second time.
    pub fn at_most_once(self) -> Self {
        self.attempts(1)
    }

    /// Repeats the job so many times after an error, under the same grant, after a pause that grows
    /// from a second to a minute.
    pub fn retries(self, retries: u32) -> Self {
        JobOptions { retries, ..self }
    }

    /// Renews the lease for so long at a time: 30 seconds unless set. So long the tick waits for
    /// another process if the machine of its holder is gone.
    pub fn ttl(self, ttl: Duration) -> Self {
        JobOptions { ttl, ..self }
    }

    /// Ends the lease of a run after this time: its [`check`](JobTick::check) fails then, and the
    /// tick is left to others.
    pub fn max_time(self, time: Duration) -> Self {
        JobOptions { max_time: Some(time), ..self }
    }

    fn check(&self) -> Result<()> {
        if self.planning.attempts < 1 {
            let max_attempts = self.planning.attempts;
            return Err(Error::InvalidAttempts { max_attempts }.into());
        }
        let first = self.max_time.map_or(self.ttl, |time| time.min(self.ttl));
        Window::new(first).map(drop).ok_or(HoldError::TtlTooShort(first))
    }
}

impl Default for JobOptions {
    fn default() -> Self {
        JobOptions::new()
    }
}

macro_rules! scheduling {
    () => {
        /// Returns a scheduler of jobs in this file, without any job. It opens connections of its
        /// own, so it fails to run for a database in memory.
        ///
        /// ```
        /// # litelease_doctest::file!(db);
        /// let weekly = Schedule::cron("0 9 * * mon")?;
        /// let running = db.scheduler().add("report", weekly, |_| Ok::<(), String>(())).start()?;
        /// drop(running); // stopped
        /// # Ok::<(), HoldError>(())
        /// ```
        pub fn scheduler(&self) -> Scheduler {
            Scheduler::at(self)
        }
    };
}

impl Litelease {
    scheduling!();
}

impl LiteleaseRef<'_> {
    scheduling!();
}

impl Queue<'_> {
    /// Returns a scheduler that sends an item at each tick of a schedule, in the commit of the
    /// tick: one item per tick, exactly, however many processes have the schedule.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let daily = Schedule::cron("0 8 * * *")?;
    /// let running = db.queue("mail").every("digest", daily, "the digest of yesterday").start()?;
    /// running.stop()?;
    /// # Ok::<(), HoldError>(())
    /// ```
    pub fn every(
        &self,
        name: &str,
        schedule: Schedule,
        body: impl ToSql + Send + Sync + 'static,
    ) -> Scheduler {
        Scheduler::at(self.leases).send(name, schedule, self.name, body)
    }
}

impl Scheduler {
    fn at(leases: &Leases) -> Self {
        let file = match leases.store().is_in_transaction() {
            true => Err(HoldError::InTransaction),
            false => file_of(leases),
        };
        Scheduler { file, jobs: Vec::new(), cancel: Cancel::default(), on_trouble: None }
    }

    /// Adds a job. Jobs with one name, in one process or in several, run each tick once among them.
    pub fn add<E: fmt::Display>(
        self,
        name: &str,
        schedule: Schedule,
        job: impl Fn(&JobTick<'_>) -> Result<(), E> + Send + Sync + 'static,
    ) -> Self {
        self.add_with(name, schedule, JobOptions::new(), job)
    }

    /// Adds a job with options.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let options = JobOptions::new().retries(2).at_most_once();
    /// let nightly = Schedule::cron("0 3 * * *")?;
    /// let scheduler = db.scheduler().add_with("pay", nightly, options, |tick| tick.check());
    /// scheduler.start()?.stop()?;
    /// # Ok::<(), HoldError>(())
    /// ```
    pub fn add_with<E: fmt::Display>(
        mut self,
        name: &str,
        schedule: Schedule,
        options: JobOptions,
        job: impl Fn(&JobTick<'_>) -> Result<(), E> + Send + Sync + 'static,
    ) -> Self {
        if let Err(error) = options.check() {
            self.file = self.file.and(Err(error));
        }
        let JobOptions { planning, retries, ttl, max_time } = options;
        let added = Job { name: name.into(), schedule, planning, retries, ttl, max_time };
        let work = move |tick: &JobTick<'_>| job(tick).map_err(|error| error.to_string());
        self.jobs.push((added, Box::new(work)));
        self
    }

    /// Adds a job that sends an item to a queue in the commit of each tick: see [`Queue::every`].
    pub fn send(
        self,
        name: &str,
        schedule: Schedule,
        queue: &str,
        body: impl ToSql + Send + Sync + 'static,
    ) -> Self {
        let queue = queue.to_owned();
        self.add(name, schedule, move |tick| {
            tick.finish(|tx| tx.queue(&queue).send(&body).map(drop))
        })
    }

    /// Stops the scheduler when this is cancelled.
    pub fn cancel(self, cancel: Cancel) -> Self {
        Scheduler { cancel, ..self }
    }

    /// Calls `on_trouble` when the file cannot be read or written and the scheduler tries again: it
    /// is locked, the disk is full or fails, or its clock was set back behind a tick
    /// ([`TickAhead`](Error::TickAhead)). Without this function the last of these ends the
    /// scheduler.
    pub fn on_trouble(self, on_trouble: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        Scheduler { on_trouble: Some(Arc::new(on_trouble)), ..self }
    }

    /// Runs the jobs until it is [cancelled](Scheduler::cancel), or an error comes that does not
    /// pass by itself.
    pub fn run(self) -> Result<()> {
        self.start()?.join()
    }

    /// Runs the jobs in the background. See [`RunningScheduler`].
    pub fn start(self) -> Result<RunningScheduler> {
        let (file, cancel, pid) = (self.file?, self.cancel, std::process::id());
        let mut running = RunningScheduler { cancel, threads: Vec::new(), pid };
        let mut opened = Vec::new();
        for (job, work) in self.jobs {
            let db = Litelease::from_connection(connect(&file, BUSY_TIMEOUT)?);
            opened.push((
                FileTicks::new(Handler(db), on_trouble(self.on_trouble.as_ref())),
                job,
                work,
            ));
        }
        for (ticks, job, work) in opened {
            let cancel = running.cancel.clone();
            let body = move || {
                let mut job = JobLoop::new(job, cancel.clone());
                let ended = job.run(&ticks, |tick| run_once(&ticks.asks.0, tick, &work));
                // One that cannot go on ends the others, too.
                ended.inspect_err(|_| cancel.cancel()).map_err(HoldError::from)
            };
            let thread = thread::Builder::new().name("litelease job".into());
            // If it cannot be started, the drop stops the others.
            running.threads.push(thread.spawn(body).map_err(HoldError::NoThread)?);
        }
        Ok(running)
    }
}

/// Runs a job for one tick. Returns whether the job has finished the tick itself.
fn run_once(db: &Litelease, tick: &HeldTick, work: &Work) -> Result<bool, String> {
    /// Rolls back what a job has left open, also on panic: it would block all other writers.
    struct Tidy<'d>(&'d Litelease);
    impl Drop for Tidy<'_> {
        fn drop(&mut self) {
            if self.0.store().is_in_transaction() {
                let _ = self.0.store().rollback();
            }
        }
    }
    let _tidy = Tidy(db);
    let tick = JobTick { db, tick, is_finished: Cell::new(false) };
    let worked = work(&tick);
    match (tick.is_finished.get(), worked) {
        (true, _) => Ok(true),
        (false, Ok(())) if db.store().is_in_transaction() => {
            Err("the job left a transaction open".into())
        }
        (false, worked) => worked.map(|()| false),
    }
}

fn on_trouble(
    on_trouble: Option<&OnTrouble>,
) -> Option<Arc<dyn Fn(litelease_store::Error) + Send + Sync>> {
    let on_trouble = on_trouble?.clone();
    Some(Arc::new(move |error| on_trouble(&rusqlite_error(error))))
}

impl RunningScheduler {
    /// Begins no further tick, and waits for the jobs under way. Returns the error that has ended a
    /// job before, if one has.
    pub fn stop(self) -> Result<()> {
        self.cancel.cancel();
        self.join()
    }

    /// Checks whether it has ended by itself, because of an error, which
    /// [`stop`](RunningScheduler::stop) returns.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    fn join(mut self) -> Result<()> {
        // In a forked process the threads do not exist, and would be waited for in vain.
        if self.pid != std::process::id() {
            return Err(HoldError::Forked);
        }
        let mut result = Ok(());
        for thread in std::mem::take(&mut self.threads) {
            // A job's panic does not get here.
            let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(ended);
        }
        result
    }
}

impl Drop for RunningScheduler {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            self.cancel.cancel();
            // A drop returns no error.
            std::mem::take(&mut self.threads).into_iter().for_each(|it| drop(it.join()));
        }
    }
}

impl<'t> JobTick<'t> {
    /// Returns the name of the job.
    pub fn name(&self) -> &str {
        self.tick.held.name()
    }

    /// Returns the instant that the schedule has planned, in Unix milliseconds.
    pub fn tick_ms(&self) -> i64 {
        self.tick.tick_ms
    }

    /// Returns the number of this grant among those of the tick, from 1.
    pub fn tick_attempt(&self) -> i64 {
        self.tick.attempt
    }

    /// Returns the newest tick before this one that was done.
    pub fn previous_tick_ms(&self) -> Option<i64> {
        self.tick.previous_ms
    }

    /// Returns the fencing token of this grant, for effects outside the file.
    pub fn token(&self) -> i64 {
        self.tick.held.token()
    }

    /// Returns the handle of the job's thread, with a connection of its own.
    ///
    /// Leave no transaction open: it would block every other writer. Write effects with
    /// [`finish`](JobTick::finish).
    pub fn db(&self) -> &'t Litelease {
        self.db
    }

    /// Checks whether the tick can still be trusted to be this process's. Once this has failed it
    /// always fails.
    pub fn check(&self) -> Result<(), Lost> {
        if self.is_finished.get() { Ok(()) } else { self.tick.held.check() }
    }

    /// Returns a signal on which another thread can wait until the tick is lost.
    pub fn lost(&self) -> LossSignal {
        self.tick.held.lost()
    }

    /// Writes the effect of the job and finishes the tick, in one transaction. If another process
    /// was granted the name meanwhile, the effect is not run, with [`StaleTick`](Error::StaleTick).
    ///
    /// Do the slow work before: while the transaction is open, no other connection can write.
    pub fn finish<T>(
        &self,
        effect: impl FnOnce(&Transaction<'_>) -> crate::Result<T>,
    ) -> crate::Result<T> {
        self.try_finish(effect)
    }

    /// Finishes like [`finish`](JobTick::finish), with an effect that has errors of its own.
    pub fn try_finish<T, E: From<Error>>(
        &self,
        effect: impl FnOnce(&Transaction<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let held = &self.tick.held;
        let done = self.db.finish_tick_with(held.name(), held.token(), effect)?;
        self.is_finished.set(true);
        abandon(held);
        Ok(done)
    }
}

impl Litelease {
    /// Runs an effect and finishes the tick of a grant, in one transaction.
    fn finish_tick_with<T, E: From<Error>>(
        &self,
        name: &str,
        token: i64,
        effect: impl FnOnce(&Transaction<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let tx = Transaction::begin(self, self.conn())?;
        let passes = |finished: FinishTickResult| match finished {
            FinishTickResult::Finished => Ok(()),
            // A repetition, too: no effect may be repeated.
            FinishTickResult::Repeated => {
                Err(Error::StaleTick { name: name.into(), token, newest: None })
            }
            FinishTickResult::Stale { newest } => {
                Err(Error::StaleTick { name: name.into(), token, newest })
            }
        };
        // A holder that was replaced does not run the effect at all.
        passes(into_rusqlite(self.store().check_tick(name, token))?)?;
        let done = effect(&tx)?;
        // Finished last, in case the effect has ended this transaction and begun another one.
        passes(tx.finish_tick((name, token), TickOutcome::Done)?)?;
        tx.commit()?;
        Ok(done)
    }
}

impl From<InvalidSchedule> for HoldError {
    fn from(error: InvalidSchedule) -> Self {
        HoldError::Lease(error.into())
    }
}
