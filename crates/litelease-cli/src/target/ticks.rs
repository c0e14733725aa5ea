//! Ticks in a file, as a command under a lease has them.

use std::time::Duration;

use jiff::Timestamp;
use litelease::{Lease, Litelease, NewestTick, TickState};
use litelease_hold::abandon;

use super::{Finish, HoldRequest, Variable, file};
use crate::exit::{Failure, code, is_locked};
use crate::output::printable;
use crate::{Common, database};

/// The busy timeout of one attempt to finish a tick in a locked file.
const FINISH_PAUSE: Duration = Duration::from_millis(5);

/// Returns the variables of a tick. A command without one does not find those of a run around it.
pub(super) fn variables(wanted: &HoldRequest, previous_ms: Option<i64>) -> Vec<Variable> {
    let tick_ms = wanted.tick.as_ref().map(|(tick, _)| tick.tick_ms);
    let date = |ms: Option<i64>| ms.map(|ms| shown(ms).into());
    vec![("LITELEASE_TICK", date(tick_ms)), ("LITELEASE_PREVIOUS_TICK", date(previous_ms))]
}

/// Returns a tick as a date in UTC.
pub(crate) fn shown(ms: i64) -> String {
    Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |date| date.to_string())
}

/// Returns the answer to a command whose tick is taken. It is silent, unless the command should
/// know that the tick is not run as it means.
pub(super) fn taken(db: &Litelease, wanted: &HoldRequest, newest: NewestTick) -> Failure {
    let name = printable(&wanted.name);
    let (asked_ms, own) = match &wanted.tick {
        Some((asked, text)) => (Some(asked.tick_ms), Some(text)),
        None => (None, None),
    };
    let info = db.newest_tick(&wanted.name).ok().flatten();
    let other = info.as_ref().and_then(|info| info.schedule.as_ref());
    let is_other = own.zip(other).is_some_and(|(own, other)| hash(own) != hash(other));
    Failure::taken(match info {
        _ if is_other => Some(format!(
            "the tick of {name} is taken by another command under this name: only one of them is run, so give \
             each a name of its own"
        )),
        // A tick under way would be busy.
        Some(info) if newest.state == TickState::Open && asked_ms == Some(newest.tick_ms) => {
            Some(format!(
                "the tick {} of {name} is not done and has had its {} attempts: litelease ticks again {name} runs it \
             once more",
                shown(newest.tick_ms),
                info.tick.attempts,
            ))
        }
        _ => None,
    })
}

/// Returns the part of a schedule's text that tells commands apart.
fn hash(schedule: &str) -> &str {
    schedule.rsplit_once('#').map_or("", |(_, hash)| hash)
}

/// Returns the answer to a command whose name is held. To one that does not wait, a tick under way
/// is taken.
pub(super) fn busy(db: &Litelease, wanted: &HoldRequest, current: &Lease) -> Failure {
    let Some((tick, _)) = &wanted.tick else { return file::busy(current) };
    let info = db.newest_tick(&wanted.name).ok().flatten();
    let is_under_way = info
        .is_some_and(|info| info.holder.is_some() && info.tick.newest().tick_ms >= tick.tick_ms);
    match wanted.wait.is_zero() && is_under_way {
        true => Failure::taken(None),
        false => file::busy(current),
    }
}

/// Returns what finishes a tick in the file.
pub(super) fn finish(common: &Common) -> Finish {
    let common = common.clone();
    Box::new(move |held, outcome| {
        // The lease is renewed while this waits for a locked file. After its end the tick can still
        // be finished, unless another one was granted it; and while the file is locked, none is.
        let db = database::open_patiently(&common, Duration::MAX)?;
        // Asks more often than those that wait to claim it.
        db.conn().busy_timeout(FINISH_PAUSE).map_err(litelease::Error::from)?;
        let finished = loop {
            match db.finish_tick(held, outcome) {
                Err(error) if is_locked(&error) => {}
                finished => break finished?,
            }
        };
        abandon(held);
        if finished.is_finished() {
            return Ok(());
        }
        let name = printable(held.name());
        let text = format!(
            "the command has ended, but another one was granted the tick of {name} meanwhile"
        );
        Err(Failure::new(code::LOST, "Lost", text))
    })
}
