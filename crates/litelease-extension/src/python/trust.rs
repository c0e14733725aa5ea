//! Holds on servers, for Python: Python renews them over HTTP, and this module counts how long they
//! are trusted.

use std::sync::Arc;
use std::time::Duration;

use litelease_hold::{Clock, HeldGrant, Hold, Loss, Renewal, SystemClock, Window};

use crate::python::Context;
use crate::python::api::{Object, Raised, Result, float, in_capsule};
use crate::python::holds::{PythonHeld, name_at, of_server, optional};
use crate::python::values::to_integer;
use crate::python::waiting::seconds;

/// Answers the seconds of the clock that measures trust.
pub(crate) fn clock(_: &'static Context, _: Object) -> Result<Object> {
    float(SystemClock.now().as_secs_f64())
}

/// Makes the hold of a grant that was requested at a time of [`clock`]. Its arguments are the name,
/// the owner, the token, the ttl in seconds, and that time.
pub(crate) fn begin(context: &'static Context, given: Object) -> Result<Object> {
    let (name, owner) = (name_at(context, &given, 0)?, name_at(context, &given, 1)?);
    let token = to_integer(&given.item(2)?).unwrap_or(0);
    let (ttl, start) = (seconds(&given.item(3)?), seconds(&given.item(4)?));
    let window = Window::new(ttl).ok_or(Raised)?;
    let grant = HeldGrant { name, owner, token, ttl, secret: String::new() };
    of_server(Arc::new(Hold::new(grant, window, start, Renewal::whole(0))))
}

/// Calls `work` with the hold, if it has not ended, and the other arguments. Answers in how many
/// seconds the hold needs a renewal; or None if it is over.
fn with_hold(
    context: &'static Context,
    arguments: &Object,
    work: impl FnOnce(&'static Context, &Hold, &Object) -> Result<()>,
) -> Result<Object> {
    let held = in_capsule::<PythonHeld>(&arguments.item(0)?)?;
    let Some(hold) = held.server_hold() else { return context.names.none() };
    work(context, &hold, arguments)?;
    let now = SystemClock.now();
    match hold.check(now).ok().and_then(|()| hold.next()) {
        Some(next) => float(next.saturating_sub(now).as_secs_f64()),
        None => context.names.none(),
    }
}

pub(crate) fn due(context: &'static Context, given: Object) -> Result<Object> {
    with_hold(context, &given, |_, _, _| Ok(()))
}

/// Answers until when it is trusted, by [`clock`]; 0 once it has ended.
pub(crate) fn until(_: &'static Context, given: Object) -> Result<Object> {
    let held = in_capsule::<PythonHeld>(&given.item(0)?)?;
    let until = held.server_hold().map_or(Duration::ZERO, |hold| hold.trusted_until());
    float(until.as_secs_f64())
}

/// Records the answer to a renewal. Its arguments are the hold, when the renewal began, the seconds
/// that were granted or None, and the kind of the loss, the newest token, and the error. Without a
/// beginning, the hold is lost at once.
pub(crate) fn settle(context: &'static Context, given: Object) -> Result<Object> {
    with_hold(context, &given, |context, hold, given| {
        let (start, granted, kind) = (given.item(1)?, given.item(2)?, given.item(3)?);
        let granted = (!context.names.is_none(&granted)).then(|| seconds(&granted));
        let answer = match context.names.is_none(&kind) {
            true => Ok(Renewal {
                expires_at_ms: 0,
                granted: granted.filter(|it| *it < hold.grant().ttl),
            }),
            false => {
                let by = optional(context, &given.item(4)?).unwrap_or(0);
                Err(loss_of(kind.text()?, by, given.item(5)?.shown()))
            }
        };
        match answer {
            Err(loss) if context.names.is_none(&start) => hold.fail(loss),
            answer => {
                let (start, now) = (seconds(&start), SystemClock.now());
                let next = start + hold.window().interval(granted);
                hold.settle(start, now, answer, next.max(now + Duration::from_millis(1)));
            }
        }
        Ok(())
    })
}

/// Returns a loss by the name that Python has for its kind.
fn loss_of(kind: &str, by: i64, error: String) -> Loss {
    match kind {
        "Superseded" => Loss::Superseded { by, owner: None },
        "Expired" => Loss::Expired,
        "ReleasedElsewhere" => Loss::ReleasedElsewhere,
        "Broken" => Loss::Broken,
        "FileReplaced" => Loss::FileReplaced,
        "NoProgress" => Loss::NoProgress,
        "TimeIsUp" => Loss::TimeIsUp,
        "Requested" => Loss::Requested,
        _ => Loss::CannotRenew { error },
    }
}
