//! Waits at a database file without the GIL, and wakes waiters.

use std::ffi::CStr;
use std::path::Path;
use std::time::{Duration, Instant};

#[cfg(unix)]
pub(crate) use litelease_hold::Notifier;
#[cfg(unix)]
use litelease_hold::{Waiter, time_to_next_read as sleep_time};

use crate::python::Context;
use crate::python::api::{self, Object, Result, in_box, py, without_gil};
use crate::python::values::to_integer;

/// The longest time that a signal's handler has to wait.
const SLICE: Duration = Duration::from_millis(50);

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

/// Sleeps for 50 ms at most, because Python handles signals between two calls.
pub(crate) fn listen(context: &'static Context, arguments: Object) -> Result<Object> {
    let capsule = arguments.item(0)?;
    let waiter = in_box::<Waiter>(&capsule)?;
    let generation = to_integer(&arguments.item(1)?).and_then(|seen| u32::try_from(seen).ok());
    let time = seconds(&arguments.item(2)?).min(SLICE);
    // Once the interpreter ends, the waiter's next verb fails.
    let Some(_counted) = context.calls.begin() else { return api::integer(1) };
    let begin = Instant::now();
    without_gil(|| waiter.wait_for_change(generation.unwrap_or(0), time));
    api::integer(i64::from(begin.elapsed() < time))
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

#[cfg(not(unix))]
pub(crate) use elsewhere::Notifier;
#[cfg(not(unix))]
use elsewhere::{Waiter, sleep_time};

/// `litelease-hold` is not built here: waiters sleep and read again.
#[cfg(not(unix))]
mod elsewhere {
    use std::path::Path;
    use std::time::Duration;

    #[derive(Default)]
    pub(crate) struct Notifier;

    impl Notifier {
        pub(crate) fn freed(&self) {}

        pub(crate) fn owes(&self) -> bool {
            false
        }

        pub(crate) fn committed(&self, _: impl FnOnce() -> Option<String>) {}
    }

    pub(super) struct Waiter;

    impl Waiter {
        pub(super) fn at(_: &Path) -> Self {
            Waiter
        }

        pub(super) fn generation(&self) -> u32 {
            0
        }

        pub(super) fn wait_for_change(&self, _: u32, time: Duration) {
            std::thread::sleep(time);
        }
    }

    pub(super) fn sleep_time(until_expiry_ms: i64, left: Duration) -> Duration {
        let until = Duration::from_millis(u64::try_from(until_expiry_ms).unwrap_or(0).max(1));
        until.min(Duration::from_millis(100)).min(left)
    }
}
