//! Waits at a database file without the GIL, and wakes waiters.

use std::ffi::CStr;
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) use litelease_hold::Notifier;
use litelease_hold::{Waiter, time_to_next_read as sleep_time};

use crate::python::Context;
use crate::python::api::{self, Object, Result, in_box, py};
use crate::python::holds::{UNSTOPPED, interruptible};
use crate::python::values::to_integer;

impl api::Boxed for Waiter {
    const NAME: &'static CStr = c"litelease.waiter";
}

/// Made with the GIL held, so that no fork happens while a thread starts to watch the file.
pub(crate) fn waiter(_: &'static Context, given: Object) -> Result<Object> {
    api::boxed(Waiter::at(Path::new(given.item(0)?.text()?)))
}

pub(crate) fn generation(_: &'static Context, given: Object) -> Result<Object> {
    let waiter = given.item(0)?;
    api::integer(i64::from(in_box::<Waiter>(&waiter)?.generation()))
}

pub(crate) fn time_to_next_read(_: &'static Context, arguments: Object) -> Result<Object> {
    let until_expiry_ms = to_integer(&arguments.item(0)?).unwrap_or(i64::MAX);
    api::float(sleep_time(until_expiry_ms, seconds(&arguments.item(1)?)).as_secs_f64())
}

/// Sleeps until it is woken, for so many seconds. Answers whether it was.
pub(crate) fn listen(context: &'static Context, arguments: Object) -> Result<Object> {
    let capsule = arguments.item(0)?;
    let waiter = in_box::<Waiter>(&capsule)?;
    let generation = to_integer(&arguments.item(1)?).and_then(|seen| u32::try_from(seen).ok());
    let is_woken = in_slices(context, UNSTOPPED, seconds(&arguments.item(2)?), |time| {
        let begin = Instant::now();
        waiter.wait_for_change(generation.unwrap_or(0), time);
        (begin.elapsed() < time).then_some(())
    })?;
    api::integer(i64::from(is_woken.is_some()))
}

/// Calls `wait` with a time of at most `slice`, again and again, until it has an answer or `time`
/// is over.
/// Python handles signals in between. Answers none, too, once the interpreter ends.
pub(super) fn in_slices<T>(
    context: &Context,
    slice: Duration,
    time: Duration,
    mut wait: impl FnMut(Duration) -> Option<T>,
) -> Result<Option<T>> {
    // Once the interpreter ends, the waiter is told so by its next verb.
    let Some(_counted) = context.calls.begin() else { return Ok(None) };
    let end = Instant::now() + time;
    let (answer, handled) = interruptible(
        context,
        || Ok(()),
        |goes_on| loop {
            let left = end.saturating_duration_since(Instant::now());
            let answer = wait(left.min(slice));
            if answer.is_some() || left.is_zero() || !goes_on() {
                break answer;
            }
        },
    );
    handled?;
    Ok(answer)
}

/// Reads a number of seconds. Other objects count as none.
pub(super) fn seconds(number: &Object) -> Duration {
    // SAFETY: the object is alive.
    let number = unsafe { (py().PyFloat_AsDouble)(number.as_raw()) };
    api::clear();
    if number > 1e9 {
        return Duration::from_secs(1_000_000_000);
    }
    Duration::try_from_secs_f64(number).unwrap_or(Duration::ZERO)
}
