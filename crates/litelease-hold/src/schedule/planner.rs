//! Decides what a scheduler does next, look after look. It knows the time, and no place.

use std::time::Duration;

use litelease_core::{Tick, backoff};

use super::{Due, Planning, Schedule, due};

/// The longest time without a look at the row and the clock: either may have been changed.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The first pause before a tick is begun again that was begun here and not finished.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Decides what the scheduler of one job does next.
///
/// ```
/// # use std::time::Duration;
/// # use litelease_hold::schedule::{Planner, Planning, Schedule, Step};
/// let mut planner = Planner::new(Schedule::every(Duration::from_secs(60))?, Planning::default());
/// assert_eq!(planner.step(None, 130_000), Step::Install(120_000));
/// # Ok::<(), litelease_hold::schedule::InvalidSchedule>(())
/// ```
#[derive(Clone, Debug)]
pub struct Planner {
    schedule: Schedule,
    planning: Planning,
    begun: Option<Begun>,
}

/// The tick that was begun last, unless a look since has found it settled.
#[derive(Clone, Copy, Debug)]
struct Begun {
    tick_ms: i64,
    /// How often it was begun.
    count: i64,
    /// The pause after that is over.
    has_paused: bool,
}

/// The next step of a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Run this tick.
    Run(i64),
    /// Store this tick as skipped: installing a schedule runs nothing.
    Install(i64),
    /// Sleep for this long, and look again.
    Wait(Duration),
}

impl Planner {
    /// Returns the planner of a schedule.
    pub fn new(schedule: Schedule, planning: Planning) -> Self {
        Planner { schedule, planning, begun: None }
    }

    /// Returns the schedule.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Decides the next step. `stored` is the newest tick of the name, and the text of the schedule
    /// that has planned it.
    pub fn step(&mut self, stored: Option<(Tick, Option<&str>)>, now_ms: i64) -> Step {
        let stored = stored.map(|(tick, text)| (tick, self.has_planned(text)));
        match due(stored, &self.schedule, self.planning, now_ms) {
            Due::Now(tick_ms) => self.begin(tick_ms),
            Due::Install(tick_ms) => Step::Install(tick_ms),
            Due::Wait(next_ms) => {
                self.begun = None;
                Step::Wait(until(next_ms, now_ms).min(LONGEST_WAIT))
            }
        }
    }

    /// Begins a tick. One that was not finished must not be begun again and again without a pause.
    fn begin(&mut self, tick_ms: i64) -> Step {
        let last = self.begun.filter(|last| last.tick_ms == tick_ms);
        if let Some(last) = last.filter(|last| !last.has_paused) {
            self.begun = Some(Begun { has_paused: true, ..last });
            return Step::Wait(backoff(FIRST_PAUSE, LONGEST_WAIT, last.count, 0));
        }
        let count = last.map_or(1, |last| last.count + 1);
        self.begun = Some(Begun { tick_ms, count, has_paused: false });
        Step::Run(tick_ms)
    }

    /// Returns how long a run of this tick may wait for the name: until the next tick begins.
    pub fn longest_wait(&self, tick_ms: i64, now_ms: i64) -> Duration {
        until(self.schedule.next(tick_ms.max(now_ms)), now_ms)
    }

    /// Checks whether a stored text is that of this schedule. A command adds a hash of its own.
    fn has_planned(&self, text: Option<&str>) -> bool {
        let schedule =
            |text: &str| text.rsplit_once(" #").map_or(text, |(text, _)| text).to_owned();
        text.is_some_and(|text| schedule(text) == self.schedule.to_string())
    }
}

/// Returns the time until a tick is planned; for ever if there is none.
fn until(next_ms: Option<i64>, now_ms: i64) -> Duration {
    let left_ms = next_ms.map(|next_ms| next_ms.saturating_sub(now_ms));
    let left = |ms: i64| Duration::from_millis(u64::try_from(ms).unwrap_or_default());
    left_ms.map_or(Duration::MAX, left)
}
