//! Schedules: when ticks are planned, and which one is due. The rule knows only numbers.
//!
//! Daylight saving is as in Debian's cron. A line with `*` first in its minute or hour follows real
//! time, through both hours of an overlap. Any other names times of day: one that does not exist
//! runs at the first instant after the gap, and one that exists twice runs the first time.

mod calendar;
mod due;
mod period;
mod planner;
mod zoned;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::tz::TimeZone;

pub use due::{Due, Planning, due};
pub use period::parse_time;
pub use planner::{Planner, Step};

use calendar::Calendar;

const DAY_MS: i64 = 86_400_000;

/// A clock that is early runs the tick that it is early for, and not the one before.
const EARLY_MS: i64 = 5_000;

/// When ticks are planned: every so often, or by a cron line.
///
/// ```
/// # use litelease_hold::schedule::Schedule;
/// let nightly = Schedule::cron("0 3 * * *")?.in_zone("Europe/Berlin")?;
/// let noon_ms = 1_767_265_200_000; // 12:00 in Berlin, on the first day of 2026
/// assert_eq!(nightly.previous(noon_ms), Some(noon_ms - 9 * 3_600_000));
/// assert_eq!(nightly.next(noon_ms), Some(noon_ms + 15 * 3_600_000));
/// # Ok::<(), litelease_hold::schedule::InvalidSchedule>(())
/// ```
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The period or the line, as it was written.
    text: String,
    kind: Kind,
    zone: TimeZone,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Multiples of so many milliseconds since the Unix epoch.
    Every(i64),
    /// Times of day, which may be missing or doubled.
    TimesOfDay(Calendar),
    /// Minutes of real time.
    RealTime(Calendar),
}

/// The reason why a text is no schedule.
///
/// ```
/// # use litelease_hold::schedule::Schedule;
/// let wrong = Schedule::cron("0 25 * * *").unwrap_err();
/// assert!(wrong.to_string().contains("\"0 25 * * *\""), "{wrong}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSchedule(String);

impl fmt::Display for InvalidSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidSchedule {}

#[cfg(feature = "rusqlite")]
impl From<InvalidSchedule> for litelease_store::Error<rusqlite::Error> {
    fn from(error: InvalidSchedule) -> Self {
        litelease_store::Error::Hold { kind: "InvalidSchedule", error: Box::new(error) }
    }
}

impl Schedule {
    /// Plans a tick at every multiple of a period since the Unix epoch. Whole days begin at
    /// midnight of the zone, which is UTC unless it is named.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_hold::schedule::Schedule;
    /// let quarterly = Schedule::every(Duration::from_secs(900))?;
    /// assert_eq!(quarterly.previous(1_000_000), Some(900_000));
    /// assert_eq!(quarterly.next(900_000), Some(1_800_000));
    /// # Ok::<(), litelease_hold::schedule::InvalidSchedule>(())
    /// ```
    pub fn every(period: Duration) -> Result<Self, InvalidSchedule> {
        let ms = i64::try_from(period.as_millis()).ok().filter(|ms| *ms > 0);
        let ms = ms.filter(|ms| period == Duration::from_millis(ms.unsigned_abs()));
        let Some(ms) = ms else {
            let text = match period {
                Duration::ZERO => "a period must be more than zero".into(),
                _ => format!("a period is a whole number of milliseconds, not {period:?}"),
            };
            return Err(InvalidSchedule(text));
        };
        Ok(Schedule { text: shown(ms), kind: Kind::Every(ms), zone: TimeZone::UTC })
    }

    /// Plans ticks by a cron line: minute, hour, day of the month, month, day of the week, or a
    /// name such as `@daily`. The zone is UTC unless it is named, never the machine's: machines
    /// with one schedule must mean the same ticks.
    pub fn cron(line: &str) -> Result<Self, InvalidSchedule> {
        let invalid = |reason: &dyn fmt::Display| {
            InvalidSchedule(format!("{line:?} is no cron line: {reason}"))
        };
        let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
        let fields = match words.as_str() {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            name if name.starts_with('@') => {
                return Err(invalid(
                    &"the names are @yearly, @monthly, @weekly, @daily and @hourly",
                ));
            }
            fields => fields,
        };
        let calendar = Calendar::parse(fields).map_err(|reason| invalid(&reason))?;
        let has_star = fields.split(' ').take(2).any(|field| field.starts_with('*'));
        let kind = if has_star { Kind::RealTime(calendar) } else { Kind::TimesOfDay(calendar) };
        let schedule = Schedule { text: words, kind, zone: TimeZone::UTC };
        match schedule.next(0) {
            Some(_) => Ok(schedule),
            None => Err(invalid(&"there is no such day")),
        }
    }

    /// Takes times in a zone of the IANA database, such as `Europe/Berlin`.
    pub fn in_zone(self, name: &str) -> Result<Self, InvalidSchedule> {
        let zone = TimeZone::get(name).map_err(|error| {
            InvalidSchedule(format!("there is no time zone {name:?} on this machine: {error}"))
        })?;
        let kind = match self.kind {
            Kind::Every(ms) if ms % DAY_MS == 0 && zone != TimeZone::UTC => {
                Kind::TimesOfDay(Calendar::every_days(ms / DAY_MS))
            }
            kind => kind,
        };
        Ok(Schedule { kind, zone, ..self })
    }

    /// Returns the newest tick that is planned for `at_ms` or earlier.
    pub fn previous(&self, at_ms: i64) -> Option<i64> {
        match &self.kind {
            Kind::Every(ms) => Some(at_ms - at_ms.rem_euclid(*ms)),
            Kind::TimesOfDay(calendar) => zoned::previous_time_of_day(calendar, &self.zone, at_ms),
            Kind::RealTime(calendar) => zoned::previous_in_real_time(calendar, &self.zone, at_ms),
        }
    }

    /// Returns the tick that is planned for about now, for a job that another program starts at its
    /// time, such as cron: the latest one, which may be a few seconds ahead of this clock.
    ///
    /// ```
    /// # use litelease_hold::schedule::Schedule;
    /// let minutely = Schedule::cron("* * * * *")?;
    /// assert_eq!(minutely.planned_about(59_900), Some(60_000));
    /// assert_eq!(minutely.planned_about(80_000), Some(60_000));
    /// # Ok::<(), litelease_hold::schedule::InvalidSchedule>(())
    /// ```
    pub fn planned_about(&self, now_ms: i64) -> Option<i64> {
        self.previous(now_ms.saturating_add(EARLY_MS))
    }

    /// Returns the first tick that is planned for later than `after_ms`.
    pub fn next(&self, after_ms: i64) -> Option<i64> {
        match &self.kind {
            Kind::Every(ms) => (after_ms - after_ms.rem_euclid(*ms)).checked_add(*ms),
            Kind::TimesOfDay(calendar) => zoned::next_time_of_day(calendar, &self.zone, after_ms),
            Kind::RealTime(calendar) => zoned::next_in_real_time(calendar, &self.zone, after_ms),
        }
    }
}

/// Reads a period, such as `15m`, or a cron line.
///
/// ```
/// # use litelease_hold::schedule::Schedule;
/// let [hourly, nightly] = ["60m", "0 3 * * *"].map(|text| text.parse::<Schedule>().unwrap());
/// assert_eq!([hourly.to_string(), nightly.to_string()], ["1h", "0 3 * * *"]);
/// ```
impl FromStr for Schedule {
    type Err = InvalidSchedule;

    fn from_str(text: &str) -> Result<Self, InvalidSchedule> {
        match parse_time(text) {
            Ok(period) => Schedule::every(period),
            Err(_) => Schedule::cron(text),
        }
    }
}

/// The period or the line, and the zone if it is another one than UTC.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        match self.zone.iana_name() {
            Some(name) if self.zone != TimeZone::UTC => write!(f, " {name}"),
            _ => Ok(()),
        }
    }
}

/// Returns a period in its largest unit.
fn shown(ms: i64) -> String {
    let units = [(DAY_MS, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")];
    let unit = units.into_iter().find(|(unit, _)| ms % unit == 0);
    unit.map_or_else(String::new, |(unit, word)| format!("{}{word}", ms / unit))
}
