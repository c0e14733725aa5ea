//! Which tick is due: a pure function of what is stored, the schedule and the time.

use litelease_core::{DEFAULT_TICK_ATTEMPTS, MAX_AHEAD_MS, Tick, TickState};

use super::{DAY_MS, Schedule};

/// How a schedule treats ticks that were missed or not finished.
///
/// ```
/// # use litelease_hold::schedule::Planning;
/// assert_eq!(Planning::default().attempts, 5);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planning {
    /// A tick that is older than this is not begun.
    pub late_ms: Option<i64>,
    /// Run every tick after the newest, in order, and not only the last one. None is older than
    /// `late_ms`, or than a day.
    pub each: bool,
    /// Run the last past tick when the schedule is installed.
    pub at_start: bool,
    /// The number of grants that a tick may have; 1 means at most once.
    pub attempts: i64,
}

impl Default for Planning {
    fn default() -> Self {
        let attempts = DEFAULT_TICK_ATTEMPTS;
        Planning { late_ms: None, each: false, at_start: false, attempts }
    }
}

impl Planning {
    /// Checks whether a tick is too old to be begun.
    ///
    /// ```
    /// # use litelease_hold::schedule::Planning;
    /// let planning = Planning { late_ms: Some(50), ..Planning::default() };
    /// assert_eq!([150, 151].map(|now_ms| planning.is_late(100, now_ms)), [false, true]);
    /// ```
    pub fn is_late(self, tick_ms: i64, now_ms: i64) -> bool {
        self.late_ms.is_some_and(|late_ms| now_ms.saturating_sub(tick_ms) > late_ms)
    }
}

/// The tick that is due, or what is to be done before one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Claim this tick.
    Now(i64),
    /// Store this tick as skipped: installing a schedule runs nothing.
    Install(i64),
    /// Wait until this tick is planned; for ever if there is none.
    Wait(Option<i64>),
}

/// Decides which tick is due at `now_ms`: the newest planned one, until the next. Several that were
/// missed are one run, unless `each` is asked for.
///
/// `stored` is the newest tick of the name, and whether this schedule has planned it.
///
/// ```
/// # use std::time::Duration;
/// # use litelease_core::installed;
/// # use litelease_hold::schedule::{Due, Planning, Schedule, due};
/// let minutely = Schedule::every(Duration::from_secs(60))?;
/// let plain = Planning::default();
/// assert_eq!(due(None, &minutely, plain, 130_000), Due::Install(120_000));
/// let stored = Some((installed(120_000, 130_000), true));
/// assert_eq!(due(stored, &minutely, plain, 130_000), Due::Wait(Some(180_000)));
/// assert_eq!(due(stored, &minutely, plain, 999_000), Due::Now(960_000));
/// # Ok::<(), litelease_hold::schedule::InvalidSchedule>(())
/// ```
pub fn due(
    stored: Option<(Tick, bool)>,
    schedule: &Schedule,
    planning: Planning,
    now_ms: i64,
) -> Due {
    let Planning { late_ms, each, at_start, attempts } = planning;
    let wait = || Due::Wait(schedule.next(now_ms));
    let planned = schedule.previous(now_ms);
    let in_time = |tick_ms: &i64| !planning.is_late(*tick_ms, now_ms);
    let Some((stored, is_same_schedule)) = stored else {
        return match planned {
            Some(planned) if at_start && in_time(&planned) => Due::Now(planned),
            Some(planned) => Due::Install(planned),
            None => wait(),
        };
    };
    let newest = stored.newest();
    // The clock was set back: the claim fails and says so, instead of a silence until then.
    let is_ahead = newest.tick_ms > now_ms.saturating_add(MAX_AHEAD_MS);
    if is_ahead && newest.state != TickState::Skipped {
        return planned.map_or_else(wait, Due::Now);
    }
    let open = Some(stored).filter(|_| newest.state == TickState::Open && newest.tick_ms <= now_ms);
    // One that has had all its attempts is passed by: no claimant is granted it any more.
    let open = open.filter(|open| open.attempt < open.attempts.min(attempts));
    // What an operator has opened again is due, however old it is.
    if let Some(again) = open.filter(|open| open.attempt == 0) {
        return Due::Now(again.tick_ms);
    }
    if each && is_same_schedule {
        let late_ms = late_ms.unwrap_or(DAY_MS);
        let planning = Planning { late_ms: Some(late_ms), ..planning };
        if let Some(open) = open.filter(|open| !planning.is_late(open.tick_ms, now_ms)) {
            return Due::Now(open.tick_ms);
        }
        let oldest_ms = now_ms.saturating_sub(late_ms).saturating_sub(1);
        let next = schedule.next(newest.tick_ms.max(oldest_ms));
        return next.filter(|next| *next <= now_ms).map_or_else(wait, Due::Now);
    }
    // An open tick that is not planned any more, as after a change of the schedule, is still due.
    let open = open.map(|open| open.tick_ms);
    let new = planned.filter(|planned| *planned > newest.tick_ms);
    new.or(open).filter(in_time).map_or_else(wait, Due::Now)
}
