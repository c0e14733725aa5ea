//! Times of day on a calendar, without any zone: those of a cron line, or midnights.

use cronp::{CivilDateTime, ParseError, Vixie};
use jiff::civil::{Date, DateTime, Time, date};

/// Days are searched for so long: the 29th of February comes every four years, and once in eight.
const MOST_DAYS: usize = 9 * 366;

/// Times of day.
#[derive(Clone, Debug)]
pub(super) enum Calendar {
    /// Those of a cron line.
    Cron(Box<cronp::Calendar<Vixie>>),
    /// The midnights of every so many days since 1970.
    EveryDays(i64),
}

impl Calendar {
    pub(super) fn parse(fields: &str) -> Result<Self, String> {
        match cronp::Schedule::parse(fields).map_err(|error: ParseError| error.to_string())? {
            cronp::Schedule::Calendar(calendar) => Ok(Calendar::Cron(Box::new(calendar))),
            _ => Err("it has no times".into()),
        }
    }

    pub(super) fn every_days(days: i64) -> Self {
        Calendar::EveryDays(days)
    }

    /// Returns the first minute that is not earlier than `from`.
    pub(super) fn next(&self, from: DateTime) -> Option<DateTime> {
        let mut day = from.date();
        for _ in 0..MOST_DAYS {
            if self.has_day(day) {
                let from = if day == from.date() { from.time() } else { Time::midnight() };
                if let Some(time) = self.times_from(from).next() {
                    return Some(day.to_datetime(time));
                }
            }
            day = day.tomorrow().ok()?;
        }
        None
    }

    /// Returns the last minute that is not later than `to`.
    pub(super) fn previous(&self, to: DateTime) -> Option<DateTime> {
        let mut day = to.date();
        for _ in 0..MOST_DAYS {
            if self.has_day(day) {
                let to = if day == to.date() { to.time() } else { Time::MAX };
                if let Some(time) = self.times_to(to).next() {
                    return Some(day.to_datetime(time));
                }
            }
            day = day.yesterday().ok()?;
        }
        None
    }

    fn has_day(&self, day: Date) -> bool {
        match self {
            Calendar::EveryDays(days) => {
                let since =
                    day.since(date(1970, 1, 1)).map_or(0, |span| i64::from(span.get_days()));
                since.rem_euclid(*days) == 0
            }
            Calendar::Cron(_) => {
                // The days of a line have no name of their own, so ask for its first minute there.
                let first = self.times_from(Time::midnight()).next();
                first.is_some_and(|first| self.matches(day, first))
            }
        }
    }

    fn matches(&self, day: Date, time: Time) -> bool {
        let Calendar::Cron(line) = self else { return false };
        let year = u16::try_from(day.year()).unwrap_or_default();
        let (month, day) = (day.month().unsigned_abs(), day.day().unsigned_abs());
        let (hour, minute) = (time.hour().unsigned_abs(), time.minute().unsigned_abs());
        let civil = CivilDateTime::new(year, month, day, hour, minute, 0);
        civil.is_ok_and(|civil| line.matches(civil))
    }

    fn has_hour(&self, hour: i8) -> bool {
        match self {
            Calendar::EveryDays(_) => hour == 0,
            Calendar::Cron(line) => line.admits_hour(hour.unsigned_abs()),
        }
    }

    fn has_minute(&self, minute: i8) -> bool {
        match self {
            Calendar::EveryDays(_) => minute == 0,
            Calendar::Cron(line) => line.admits_minute(minute.unsigned_abs()),
        }
    }

    fn times_from(&self, from: Time) -> impl Iterator<Item = Time> {
        let hours = (from.hour()..24).filter(|hour| self.has_hour(*hour));
        let times = hours.flat_map(|hour| self.minutes(hour));
        times.filter(move |time| *time >= from)
    }

    fn times_to(&self, to: Time) -> impl Iterator<Item = Time> {
        let hours = (0..=to.hour()).rev().filter(|hour| self.has_hour(*hour));
        let times = hours.flat_map(|hour| self.minutes(hour).rev());
        times.filter(move |time| *time <= to)
    }

    fn minutes(&self, hour: i8) -> impl DoubleEndedIterator<Item = Time> {
        let minutes = (0..60).filter(|minute| self.has_minute(*minute));
        minutes.map(move |minute| Time::constant(hour, minute, 0, 0))
    }
}
