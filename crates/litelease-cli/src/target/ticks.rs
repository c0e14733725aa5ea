//! Ticks in a file or on a server, as a command under a lease and operators have them.

use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use litelease::{Lease, NewestTick, TickChange, TickInfo, TickState};
use litelease_client::{Client, Error, Grant};
use litelease_hold::abandon;

use super::{Finish, HoldRequest, Target, Variable, failure, file};
use crate::exit::{Failure, Result, code, is_locked};
use crate::output::printable;
use crate::{Common, database};

/// The busy timeout of one attempt to finish a tick in a locked file.
const FINISH_PAUSE: Duration = Duration::from_millis(5);

/// The pause between two attempts to finish a tick on a server that is away.
const AWAY_PAUSE: Duration = Duration::from_secs(1);

impl Target {
    /// Checks that the place has ticks, and makes a file that is not there yet.
    pub(crate) fn prepare_for_ticks(&self) -> Result<()> {
        match self {
            Target::File(file) => database::open_patiently(&file.common, Duration::ZERO).map(drop),
            Target::Server(_) => Ok(()),
            Target::Engine(_) => Err(self.no_ticks()),
        }
    }

    /// Returns the newest tick of every name.
    pub(crate) fn ticks(&self) -> Result<Vec<TickInfo>> {
        match self {
            Target::File(file) => match file.open_if_any()? {
                Some(db) => Ok(db.ticks()?),
                None => Ok(Vec::new()),
            },
            Target::Server(server) => server.client.ticks("").map_err(failure),
            Target::Engine(_) => Err(self.no_ticks()),
        }
    }

    /// Returns the newest tick of a name.
    pub(crate) fn newest_tick(&self, name: &str) -> Result<Option<TickInfo>> {
        match self {
            Target::File(file) => match file.open_if_any()? {
                Some(db) => Ok(db.newest_tick(name)?),
                None => Ok(None),
            },
            Target::Server(server) => server.client.newest_tick(name).map_err(failure),
            Target::Engine(_) => Err(self.no_ticks()),
        }
    }

    /// Makes every tick up to now, or up to a time, skipped.
    pub(crate) fn skip_ticks(
        &self,
        name: &str,
        until_ms: Option<i64>,
        breaks: bool,
    ) -> Result<TickChange> {
        match self {
            Target::File(file) => Ok(file.open()?.skip_ticks(name, until_ms, breaks)?),
            Target::Server(server) => {
                server.client.skip_ticks(name, until_ms, breaks).map_err(failure)
            }
            Target::Engine(_) => Err(self.no_ticks()),
        }
    }

    /// Opens the newest tick once more.
    pub(crate) fn tick_again(&self, name: &str) -> Result<TickChange> {
        match self {
            Target::File(file) => Ok(file.open()?.tick_again(name)?),
            Target::Server(server) => server.client.tick_again(name).map_err(failure),
            Target::Engine(_) => Err(self.no_ticks()),
        }
    }

    /// Deletes the newest tick of a schedule that is no more.
    pub(crate) fn forget_tick(&self, name: &str) -> Result<TickChange> {
        match self {
            Target::File(file) => Ok(file.open()?.forget_tick(name)?),
            Target::Server(server) => server.client.forget_tick(name).map_err(failure),
            Target::Engine(_) => Err(self.no_ticks()),
        }
    }

    /// Counts the newest past tick of a new schedule as skipped.
    pub(crate) fn install_schedule(&self, name: &str, tick_ms: i64, text: &str) -> Result<()> {
        match self {
            Target::File(file) => {
                Ok(file.open()?.install_schedule(name, tick_ms, text).map(drop)?)
            }
            Target::Server(server) => {
                server.client.install_schedule(name, tick_ms, text).map(drop).map_err(failure)
            }
            Target::Engine(_) => Err(self.no_ticks()),
        }
    }

    /// Refuses a tick on an engine.
    pub(super) fn no_ticks(&self) -> Failure {
        Failure::usage(format!(
            "ticks on {0} need the service: run litelease serve --db {0}, then name it with --server; \
             without one, litelease run -n NAME keeps runs from overlapping",
            printable(&self.shown())
        ))
    }
}

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
pub(super) fn taken(info: Option<TickInfo>, wanted: &HoldRequest, newest: NewestTick) -> Failure {
    let name = printable(&wanted.name);
    let (asked_ms, own) = match &wanted.tick {
        Some((asked, text)) => (Some(asked.tick_ms), Some(text)),
        None => (None, None),
    };
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
pub(super) fn busy(
    info: impl FnOnce() -> Option<TickInfo>,
    wanted: &HoldRequest,
    current: &Lease,
) -> Failure {
    let Some((tick, _)) = &wanted.tick else { return file::busy(current) };
    let is_under_way = info()
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
        Err(lost(held.name()))
    })
}

/// Returns what finishes a tick on a server.
pub(super) fn finish_at(client: &Client, grant: &Grant) -> Finish {
    let (client, grant) = (client.clone(), grant.clone());
    Box::new(move |held, outcome| {
        // A renewal that comes after the end would look like a loss. Where the server cannot be
        // reached to finish, it could not be reached to renew.
        abandon(held);
        // The job is done: as on a locked file, it waits for a server that is away.
        let mut is_said = false;
        loop {
            match client.finish_tick(&grant, outcome) {
                Err(Error::StaleTick { .. }) => return Err(lost(held.name())),
                Err(error @ Error::Unreachable(_)) => {
                    if !std::mem::replace(&mut is_said, true) {
                        failure(error).adding("the tick is finished when it is back").print(false);
                    }
                    // Some errors come at once, such as a certificate that is not trusted.
                    thread::sleep(AWAY_PAUSE);
                }
                finished => return finished.map_err(failure),
            }
        }
    })
}

fn lost(name: &str) -> Failure {
    let name = printable(name);
    let text =
        format!("the command has ended, but another one was granted the tick of {name} meanwhile");
    Failure::new(code::LOST, "Lost", text)
}
