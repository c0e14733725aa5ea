//! Schedules: when ticks are planned, and which one is due. The rule knows only numbers.
//!
//! Daylight saving is as in Debian's cron. A line with `*` first in its minute or hour follows real
//! time, through both hours of an overlap. Any other names times of day: one that does not exist
//! runs at the first instant after the gap, and one that exists twice runs the first time.

mod calendar;
mod due;
mod zoned;

use std::fmt;
use std::time::Duration;

use jiff::tz::TimeZone;

pub use due::{Due, Planning, due};

use calendar::Calendar;

const DAY_MS: i64 = 86_400_000;

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
            let text = format!("a period is a whole number of milliseconds, not {period:?}");
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

    /// Reads back a schedule that was stored with a tick: its text, the zone if it has one, and
    /// perhaps a hash of its command after `#`.
    ///
    /// ```
    /// # use litelease_hold::schedule::Schedule;
    /// let stored = Schedule::from_stored("0 3 * * * Europe/Berlin #0a1b2c3d");
    /// assert_eq!(stored.unwrap().to_string(), "0 3 * * * Europe/Berlin");
    /// assert!(Schedule::from_stored("#0a1b2c3d").is_none());
    /// ```
    pub fn from_stored(text: &str) -> Option<Self> {
        let text = text.rsplit_once('#').map_or(text, |(schedule, _)| schedule).trim();
        let read = |text: &str| match period(text) {
            Some(ms) => Schedule::every(Duration::from_millis(ms)).ok(),
            None => Schedule::cron(text).ok(),
        };
        read(text).or_else(|| {
            let (text, zone) = text.rsplit_once(' ')?;
            read(text)?.in_zone(zone).ok()
        })
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

    /// Returns the first tick that is planned for later than `after_ms`.
    pub fn next(&self, after_ms: i64) -> Option<i64> {
        match &self.kind {
            Kind::Every(ms) => (after_ms - after_ms.rem_euclid(*ms)).checked_add(*ms),
            Kind::TimesOfDay(calendar) => zoned::next_time_of_day(calendar, &self.zone, after_ms),
            Kind::RealTime(calendar) => zoned::next_in_real_time(calendar, &self.zone, after_ms),
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

const UNITS: [(i64, &str); 5] =
    [(DAY_MS, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")];

/// Reads a period as [`shown`] writes it, in milliseconds.
fn period(text: &str) -> Option<u64> {
    let (number, word) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit())?);
    let (unit, _) = UNITS.into_iter().find(|(_, unit)| *unit == word)?;
    number.parse::<u64>().ok()?.checked_mul(unit.unsigned_abs())
}

/// Returns a period in its largest unit.
fn shown(ms: i64) -> String {
    let unit = UNITS.into_iter().find(|(unit, _)| ms % unit == 0);
    unit.map_or_else(String::new, |(unit, word)| format!("{}{word}", ms / unit))
}
