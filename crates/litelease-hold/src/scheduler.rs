//! The one loop of a scheduled job: find out which tick is due, hold it while the job works, repeat
//! the job after an error, and finish the tick.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::sleep;
use std::time::{Duration, Instant};

use litelease_core::{FinishTickResult, Tick, TickOutcome, TickRequest, backoff};

use crate::schedule::{Planner, Planning, Schedule, Step};
use crate::{Cancel, Held, HeldGrant, HoldError, abandon, unique};

/// How long a job waits before it is repeated after an error: at first, and at most.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// The time between two attempts to finish a tick in a place that has failed.
const FINISH_PAUSE: Duration = Duration::from_millis(50);

/// How long the end of a scheduler that was asked to stop is delayed by a place that has failed.
const FINISH_AT_END: Duration = Duration::from_secs(10);

/// The longest time by which a claim is later than its tick, so that processes with one schedule do
/// not ask in the same moment.
const JITTER: Duration = Duration::from_millis(50);

/// The ticks of a place, as a scheduler uses them. Renewing the lease of a tick is the keeper's.
pub trait Ticks {
    /// The error of its verbs.
    type Error;

    /// Returns the Unix time of the clock that judges ticks, in milliseconds.
    fn now_ms(&self) -> i64;

    /// Returns the newest tick of a name, and the text of the schedule that has planned it.
    fn newest(&self, name: &str) -> Result<Option<(Tick, Option<String>)>, Self::Error>;

    /// Stores a past tick as skipped if the name has none yet.
    fn install(&self, name: &str, tick_ms: i64, schedule: &str) -> Result<(), Self::Error>;

    /// Claims a tick, waits for the name for at most [`TickWish::wait`], and keeps the lease alive.
    fn begin(&self, wish: &TickWish<'_>) -> Result<Begun, HoldError<Self::Error>>;

    /// Finishes the tick of a grant.
    fn finish(
        &self,
        grant: &HeldGrant,
        outcome: TickOutcome,
    ) -> Result<FinishTickResult, Self::Error>;

    /// Reports an error that may pass, and returns how long to pause before the next attempt.
    /// Returns any other error.
    fn report(&self, error: Self::Error) -> Result<Duration, Self::Error>;
}

/// A request for a tick under a lease.
#[derive(Clone, Copy, Debug)]
pub struct TickWish<'w> {
    /// The name.
    pub name: &'w str,
    /// The tick, and how often it may be granted.
    pub asked: TickRequest,
    /// The text of the schedule that has planned it.
    pub schedule: &'w str,
    /// How long each renewal lasts.
    pub ttl: Duration,
    /// The longest time that the lease may be held.
    pub max_time: Option<Duration>,
    /// How long to wait while another holder has the name.
    pub wait: Duration,
    /// Ends the wait.
    pub cancel: &'w Cancel,
}

/// The answer to a request for a tick under a lease.
#[derive(Debug)]
pub enum Begun {
    /// It is the caller's.
    Held(HeldTick),
    /// It is taken, or another holder has had the name for the whole wait.
    NotNow,
    /// It is more than a minute ahead of the clock that judges it, which says this.
    InFuture(i64),
}

/// A tick that is held.
#[derive(Debug)]
pub struct HeldTick {
    /// The tick.
    pub tick_ms: i64,
    /// The hold.
    pub held: Held,
    /// The number of this grant among those of the tick, from 1.
    pub attempt: i64,
    /// The newest tick before that was done.
    pub previous_ms: Option<i64>,
}

/// A job and its schedule.
#[derive(Clone, Debug)]
pub struct Job {
    /// The name.
    pub name: String,
    /// When it runs.
    pub schedule: Schedule,
    /// How it treats ticks that were missed or not finished.
    pub planning: Planning,
    /// How often it is repeated under one grant after an error.
    pub retries: u32,
    /// How long each renewal lasts while it works.
    pub ttl: Duration,
    /// The longest time that it may work.
    pub max_time: Option<Duration>,
}

/// The end of the work on a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkEnd {
    /// The job is done.
    Done,
    /// The job has failed, and is not repeated.
    Failed,
    /// The job has finished its tick itself.
    Finished,
    /// The job was not finished: the tick is left to other processes.
    Left,
}

/// The scheduler of one job.
#[derive(Debug)]
pub struct JobLoop {
    job: Job,
    planner: Planner,
    cancel: Cancel,
}

impl JobLoop {
    /// Returns the scheduler of a job, which `cancel` stops: it begins no tick then.
    pub fn new(job: Job, cancel: Cancel) -> Self {
        let planner = Planner::new(job.schedule.clone(), job.planning);
        JobLoop { job, planner, cancel }
    }

    /// Returns the job.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Runs the job at each of its ticks until it is stopped. `work` is called again after an error
    /// as often as the job is to be repeated; a panic is an error. It returns true if it has
    /// finished the tick itself.
    pub fn run<T: Ticks>(
        &mut self,
        ticks: &T,
        mut work: impl FnMut(&HeldTick) -> Result<bool, String>,
    ) -> Result<(), HoldError<T::Error>> {
        while let Some(tick) = self.next(ticks)? {
            let end = self.work_on(&tick, || work(&tick));
            let is_trusted = tick.held.check().is_ok();
            let ended = self.end(ticks, tick.held.grant(), is_trusted, end);
            // What was left is released with the hold.
            if ended.map_err(HoldError::Lease)? != WorkEnd::Left {
                abandon(&tick.held);
            }
        }
        Ok(())
    }

    /// Waits for a tick, and holds it. Returns none once it is stopped.
    pub fn next<T: Ticks>(&mut self, ticks: &T) -> Result<Option<HeldTick>, HoldError<T::Error>> {
        while !self.cancel.is_cancelled() {
            let stepped = self.step(ticks);
            match stepped {
                Ok(Some(tick)) => return Ok(Some(tick)),
                Ok(None) => {}
                Err(HoldError::Lease(error)) => {
                    let pause = ticks.report(error).map_err(HoldError::Lease)?;
                    self.cancel.sleep(pause);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Looks once, and does what is due: sleeps, or claims a tick.
    fn step<T: Ticks>(&mut self, ticks: &T) -> Result<Option<HeldTick>, HoldError<T::Error>> {
        let Job { name, planning, ttl, max_time, .. } = &self.job;
        let stored = ticks.newest(name).map_err(HoldError::Lease)?;
        let stored = stored.as_ref().map(|(tick, text)| (*tick, text.as_deref()));
        let text = self.planner.schedule().to_string();
        let now_ms = ticks.now_ms();
        match self.planner.step(stored, now_ms) {
            Step::Wait(time) => self.cancel.sleep(time.saturating_add(jitter(time))),
            Step::Install(tick_ms) => {
                ticks.install(name, tick_ms, &text).map_err(HoldError::Lease)?;
            }
            Step::Run(tick_ms) => {
                let wish = TickWish {
                    name,
                    asked: TickRequest { tick_ms, attempts: planning.attempts },
                    schedule: &text,
                    ttl: *ttl,
                    max_time: *max_time,
                    wait: self.planner.longest_wait(tick_ms, now_ms),
                    cancel: &self.cancel,
                };
                match ticks.begin(&wish)? {
                    Begun::Held(tick) => return Ok(Some(tick)),
                    Begun::NotNow => {}
                    // Sleeps by the clock that judges.
                    Begun::InFuture(now_ms) => {
                        let left_ms = u64::try_from(tick_ms.saturating_sub(now_ms));
                        let left = Duration::from_millis(left_ms.unwrap_or_default());
                        self.cancel.sleep(left.min(LONGEST_DELAY));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Works on a tick, and repeats the work after an error.
    fn work_on(&self, tick: &HeldTick, mut work: impl FnMut() -> Result<bool, String>) -> WorkEnd {
        let mut failures = 0;
        loop {
            match catch_unwind(AssertUnwindSafe(&mut work)) {
                Ok(Ok(true)) => return WorkEnd::Finished,
                Ok(Ok(false)) => return WorkEnd::Done,
                Ok(Err(_)) | Err(_) => failures += 1,
            }
            let is_trusted = tick.held.check().is_ok();
            let token = tick.held.token();
            let Some(delay) = self.retry_delay(token, failures).filter(|_| is_trusted) else {
                return WorkEnd::Failed;
            };
            self.cancel.sleep(delay);
            if self.cancel.is_cancelled() {
                return WorkEnd::Left;
            }
        }
    }

    /// Returns how long to wait before the work is repeated under the same grant after so many
    /// errors; none if it is not.
    pub fn retry_delay(&self, token: i64, failures: u32) -> Option<Duration> {
        let is_repeated = failures <= self.job.retries;
        is_repeated.then(|| backoff(FIRST_DELAY, LONGEST_DELAY, i64::from(failures), token))
    }

    /// Ends the work on a tick. Returns the end that it has: a tick that another holder was granted
    /// meanwhile is left to that one. The caller ends the hold, and releases it if it is left.
    ///
    /// It tries as long as the place is locked or cannot be reached. No clock ends that: the tick
    /// is finished unless another holder was granted it.
    pub fn end<T: Ticks>(
        &self,
        ticks: &T,
        grant: &HeldGrant,
        is_trusted: bool,
        end: WorkEnd,
    ) -> Result<WorkEnd, T::Error> {
        let outcome = match end {
            WorkEnd::Done => TickOutcome::Done,
            WorkEnd::Failed if is_trusted => TickOutcome::Failed,
            // What was cut short by a loss or a limit has not failed by itself.
            WorkEnd::Failed | WorkEnd::Left => return Ok(WorkEnd::Left),
            WorkEnd::Finished => return Ok(end),
        };
        let mut stopped: Option<Instant> = None;
        let finished = loop {
            let error = match ticks.finish(grant, outcome) {
                Ok(finished) => break finished,
                Err(error) => error,
            };
            if self.cancel.is_cancelled() {
                let since = stopped.get_or_insert_with(Instant::now).elapsed();
                if since > FINISH_AT_END {
                    return Err(error);
                }
            }
            let pause = ticks.report(error)?;
            sleep(pause.min(FINISH_PAUSE));
        };
        Ok(if finished.is_finished() { end } else { WorkEnd::Left })
    }
}

/// Returns by how much longer to sleep than this.
fn jitter(time: Duration) -> Duration {
    let digits = unique();
    let dice = u32::from_str_radix(&digits[digits.len() - 4..], 16).unwrap_or_default();
    JITTER.min(time / 20) * dice / 0xffff
}
