//! Scheduled jobs for Python: each waits for its ticks and finishes them on a connection of its
//! own. The jobs themselves run in Python.

use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::sync::Arc;
use std::time::Duration;

use litelease_hold::file::{
    DatabaseFile, FileConnection, FileError, FileTicks, Own, OwnConnection,
};
use litelease_hold::schedule::{Planning, Schedule};
use litelease_hold::{Cancel, HeldGrant, HoldError, Job, JobLoop, Settled, WorkEnd};

use crate::python::api::{
    Boxed, Object, OfProcess, Result, boxed, float, in_box, integer, string, tuple, without_gil,
};
use crate::python::holds::{
    Ending, PythonHeld, SLICE, capsule, failed, file_at, in_duration, name_at, optional, run,
};
use crate::python::session::Failed;
use crate::python::values::to_integer;
use crate::python::{Context, raise};

/// How long its connection waits for another connection's lock at a time.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);

const REENTERED: &str = "another call on this job is under way";
const FORKED: &str =
    "this process was forked since the scheduler was started: start another one here";

/// A job, as long as its loop runs.
struct Waiting {
    job: RefCell<JobLoop>,
    cancel: Cancel,
    file: DatabaseFile,
    own: OwnConnection<FileConnection>,
    /// The tick that the job has.
    current: RefCell<Option<(HeldGrant, Arc<PythonHeld>)>>,
    is_in_call: Cell<bool>,
}

/// The parts that a forked process leaves alone.
struct PythonJob(OfProcess<Waiting>);

impl Boxed for PythonJob {
    const NAME: &'static CStr = c"litelease.job";
}

/// Makes a job. Its arguments are the path, the name, the schedule, the zone or None, the ms after
/// which a tick is late or None, whether each tick counts, whether to run at the start, the number
/// of attempts and of retries, the ttl in ms, and the longest time in ms or None.
pub(crate) fn job(context: &'static Context, given: Object) -> Result<Object> {
    let file = file_at(context, &given.item(0)?)?;
    let schedule = match schedule(context, &given.item(2)?, &given.item(3)?)? {
        Ok(schedule) => schedule,
        Err(text) => return raise(context, Failed::Kind("ValueError", text)),
    };
    let planning = Planning {
        late_ms: optional(context, &given.item(4)?),
        each: given.item(5)?.is_true()?,
        at_start: given.item(6)?.is_true()?,
        attempts: to_integer(&given.item(7)?).unwrap_or(1),
    };
    let retries = to_integer(&given.item(8)?).and_then(|retries| u32::try_from(retries).ok());
    let job = Job {
        name: name_at(context, &given, 1)?,
        schedule,
        planning,
        retries: retries.unwrap_or_default(),
        ttl: in_duration(to_integer(&given.item(9)?).unwrap_or(0)),
        max_time: optional(context, &given.item(10)?).map(in_duration),
    };
    let opened = run(context, &file, &context.names.none, |aside| aside.open(BUSY_TIMEOUT))?;
    let own = match opened.answer {
        Ok(own) => own,
        Err(error) => return raise(context, failed(HoldError::Lease(error))),
    };
    let cancel = Cancel::default();
    boxed(PythonJob(OfProcess::new(Waiting {
        job: RefCell::new(JobLoop::new(job, cancel.clone())),
        cancel,
        file,
        own,
        current: RefCell::default(),
        is_in_call: Cell::new(false),
    })))
}

/// Waits for the next tick. Answers the tick, the attempt, the newest one before that was done or
/// None, the token, and the capsule of the hold; or None once the job is stopped.
pub(crate) fn job_next(context: &'static Context, given: Object) -> Result<Object> {
    with_job(context, &given, |context, waiting, _| {
        // What was left is released before the next tick.
        let last = waiting.current.take();
        let last = last.and_then(|(_, held)| held.end("Released", "its tick has ended"));
        without_gil(|| drop(last));
        let none = &context.names.none;
        let next = run(context, &waiting.file, none, |aside| {
            waiting.job.borrow_mut().next(&waiting.ticks(aside.go_on))
        })?;
        let tick = match next.answer {
            Ok(Some(tick)) => tick,
            Ok(None) => return context.names.none(),
            Err(error) => return raise(context, failed(error)),
        };
        let grant = tick.held.grant().clone();
        let (token, previous_ms) = (tick.held.token(), tick.previous_ms);
        let held = PythonHeld::new(tick.held, None, false);
        let answer = tuple(vec![
            integer(tick.tick_ms)?,
            integer(tick.attempt)?,
            previous_ms.map_or_else(|| context.names.none(), integer)?,
            integer(token)?,
            capsule(context, &held, None)?,
        ]);
        drop(waiting.current.replace(Some((grant, held))));
        answer
    })
}

/// Returns how many seconds to wait before the job is repeated after so many errors, or None.
pub(crate) fn job_retry(context: &'static Context, given: Object) -> Result<Object> {
    with_job(context, &given, |context, waiting, given| {
        let failures = to_integer(&given.item(1)?).and_then(|count| u32::try_from(count).ok());
        let current = waiting.current.borrow();
        let held = current.as_ref().filter(|(_, held)| held.over().is_none());
        let delay = held.zip(failures).and_then(|((grant, _), failures)| {
            waiting.job.borrow().retry_delay(grant.token, failures)
        });
        delay.map_or_else(|| context.names.none(), |delay| float(delay.as_secs_f64()))
    })
}

/// Ends the work on a tick in one of the ways of [`word`]. Answers the way in which it has ended.
pub(crate) fn job_end(context: &'static Context, given: Object) -> Result<Object> {
    with_job(context, &given, |context, waiting, given| {
        let how = given.item(1)?;
        let how = how.text()?;
        let all = [WorkEnd::Done, WorkEnd::Failed, WorkEnd::Finished];
        let end = all.into_iter().find(|end| word(*end) == how).unwrap_or(WorkEnd::Left);
        let current = waiting.current.borrow();
        let Some((grant, held)) = &*current else { return string(word(WorkEnd::Left)) };
        let ended = run(context, &waiting.file, &context.names.none, |aside| {
            let is_trusted = held.over().is_none();
            waiting.job.borrow().end(&waiting.ticks(aside.go_on), grant, is_trusted, end)
        })?;
        match ended.answer {
            Ok(WorkEnd::Left) => string(word(WorkEnd::Left)),
            Ok(ended) => {
                held.settle(Settled::Done);
                string(word(ended))
            }
            Err(error) => raise(context, failed(HoldError::Lease(error))),
        }
    })
}

/// Stops a job: it begins no tick. Any thread may call it, and a signal handler.
pub(crate) fn job_stop(context: &'static Context, given: Object) -> Result<Object> {
    if let Some(waiting) = in_box::<PythonJob>(&given.item(0)?)?.0.get() {
        waiting.cancel.cancel();
    }
    context.names.none()
}

/// Returns the tick that is planned for about now. Its arguments are the schedule, the zone or
/// None, and the time in ms.
pub(crate) fn planned(context: &'static Context, given: Object) -> Result<Object> {
    let now_ms = to_integer(&given.item(2)?).unwrap_or(0);
    match schedule(context, &given.item(0)?, &given.item(1)?)? {
        Ok(schedule) => match schedule.planned_about(now_ms) {
            Some(tick_ms) => integer(tick_ms),
            None => context.names.none(),
        },
        Err(text) => raise(context, Failed::Kind("ValueError", text)),
    }
}

fn schedule(
    context: &'static Context,
    text: &Object,
    zone: &Object,
) -> Result<std::result::Result<Schedule, String>> {
    let read = text.text()?.parse::<Schedule>();
    let read = match context.names.is_none(zone) {
        true => read,
        false => {
            let zone = zone.text()?;
            read.and_then(|schedule| schedule.in_zone(zone))
        }
    };
    Ok(read.map_err(|invalid| invalid.to_string()))
}

/// Returns the word for the end of a job in Python.
fn word(end: WorkEnd) -> &'static str {
    match end {
        WorkEnd::Done => "done",
        WorkEnd::Failed => "failed",
        WorkEnd::Finished => "finished",
        WorkEnd::Left => "left",
    }
}

/// Calls `work` with the job of a capsule and the other arguments.
fn with_job(
    context: &'static Context,
    arguments: &Object,
    work: impl FnOnce(&'static Context, &Waiting, &Object) -> Result<Object>,
) -> Result<Object> {
    let capsule = arguments.item(0)?;
    let refuse = |text: &str| raise(context, Failed::Kind("LiteleaseError", text.into()));
    let Some(waiting) = in_box::<PythonJob>(&capsule)?.0.get() else { return refuse(FORKED) };
    if waiting.is_in_call.replace(true) {
        return refuse(REENTERED);
    }
    let answer = work(context, waiting, arguments);
    waiting.is_in_call.set(false);
    answer
}

impl Waiting {
    fn ticks<'w>(
        &'w self,
        go_on: &'w dyn Fn() -> std::result::Result<(), FileError>,
    ) -> FileTicks<Own<'w, &'w OwnConnection<FileConnection>>> {
        FileTicks::new(Own { own: &self.own, go_on, longest_sleep: SLICE }, None)
    }
}
