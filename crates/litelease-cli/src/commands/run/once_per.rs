//! The tick of a command: which one is planned, how often it may be granted, and until when.

use std::ffi::OsString;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use litelease::TickRequest;
use litelease_hold::schedule::{Planner, Planning, Schedule};

use crate::duration::parse_positive;
use crate::exit::{Failure, Result};
use crate::output::printable;

/// The options of a tick in `run` and `every`.
#[derive(clap::Args)]
pub(crate) struct TickOptions {
    /// The time zone of the schedule, such as Europe/Berlin [default: UTC]
    #[arg(long)]
    zone: Option<String>,
    /// Grant a tick at most so many times, if its holders die [default: 5]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(i64).range(1..))]
    attempts: Option<i64>,
    /// Never begin a tick a second time: the same as --attempts 1
    #[arg(long, conflicts_with = "attempts")]
    at_most_once: bool,
    /// Do not begin a tick that is older than this
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    late: Option<Duration>,
    /// Repeat the command so many times if it fails, under the same grant, after a pause that grows
    /// from a second to a minute
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub(crate) retries: u32,
}

impl TickOptions {
    /// Reads a schedule: a period, or a cron line.
    pub(crate) fn schedule(&self, text: &str) -> Result<Schedule> {
        schedule(text, self.zone.as_deref())
    }

    pub(crate) fn planning(&self) -> Planning {
        let plain = Planning::default();
        let attempts = if self.at_most_once { Some(1) } else { self.attempts };
        let late_ms = self.late.and_then(|late| i64::try_from(late.as_millis()).ok());
        Planning { late_ms, attempts: attempts.unwrap_or(plain.attempts), ..plain }
    }

    /// Returns the words that pass these options on to a `litelease run` of one tick. That it is
    /// late was decided before.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = vec!["--attempts".into(), self.planning().attempts.to_string()];
        words.extend(self.zone.iter().flat_map(|zone| ["--zone".to_owned(), zone.clone()]));
        words.extend(["--retries".into(), self.retries.to_string()]);
        words
    }

    /// Checks whether any of them is given that only a tick has.
    fn has_any(&self) -> bool {
        let TickOptions { zone, attempts, late, at_most_once, .. } = self;
        zone.is_some() || attempts.is_some() || late.is_some() || *at_most_once
    }
}

/// The options of a tick in `run`.
#[derive(clap::Args)]
pub(crate) struct TickArgs {
    /// Run once per tick of this schedule, although several crontabs have it: a cron line, or a
    /// period such as 15m or 1d
    ///
    /// The tick is the latest one that is planned. While another run of it is under way this waits,
    /// takes over if that one dies, and gives up when the next tick begins. If the tick is taken it
    /// exits with 0 in silence.
    #[arg(long, value_name = "SCHEDULE")]
    once_per: Option<String>,
    /// Run this tick: a date, a date and time in UTC or RFC 3339, `now`, or Unix milliseconds
    #[arg(long, value_name = "WHEN", value_parser = when)]
    tick: Option<i64>,
    #[command(flatten)]
    pub(crate) options: TickOptions,
}

/// The tick that a command is to run.
pub(crate) struct PlannedTick {
    pub(crate) request: TickRequest,
    /// The schedule and the command, for `ticks`.
    pub(crate) schedule: String,
    pub(crate) is_late: bool,
    planner: Option<Planner>,
}

impl PlannedTick {
    /// Returns how long to wait for it: not longer than until the next tick.
    pub(crate) fn wait(&self, asked: Duration) -> Duration {
        let left =
            |planner: &Planner| planner.longest_wait(self.request.tick_ms, litelease::now_ms());
        self.planner.as_ref().map_or(asked, |planner| left(planner).min(asked))
    }
}

impl TickArgs {
    /// Returns the tick that is due for this command, if one is asked for.
    pub(crate) fn planned(&self, name: &str, command: &[OsString]) -> Result<Option<PlannedTick>> {
        let schedule = match &self.once_per {
            Some(text) => Some(self.options.schedule(text)?),
            None => None,
        };
        let (now_ms, planning) = (litelease::now_ms(), self.options.planning());
        let Some(tick_ms) = self.tick.or_else(|| schedule.as_ref()?.planned_about(now_ms)) else {
            if self.options.has_any() && schedule.is_none() {
                let text = "--zone, --attempts, --at-most-once and --late are for a tick: add --once-per or --tick";
                return Err(Failure::usage(text));
            }
            return match schedule {
                None => Ok(None),
                Some(schedule) => {
                    let name = printable(name);
                    Err(Failure::usage(format!("{schedule} has no tick of {name} in the past")))
                }
            };
        };
        Ok(Some(PlannedTick {
            request: TickRequest { tick_ms, attempts: planning.attempts },
            schedule: with_command(schedule.as_ref(), command),
            is_late: planning.is_late(tick_ms, now_ms),
            planner: schedule.map(|schedule| Planner::new(schedule, planning)),
        }))
    }
}

/// Reads a schedule: a period, or a cron line.
fn schedule(text: &str, zone: Option<&str>) -> Result<Schedule> {
    let placed = text.parse::<Schedule>().and_then(|schedule| match zone {
        Some(zone) => schedule.in_zone(zone),
        None => Ok(schedule),
    });
    placed.map_err(Failure::usage)
}

/// Returns the text that is stored with a tick: the schedule, and a hash that tells whether another
/// command has the same name.
fn with_command(schedule: Option<&Schedule>, command: &[OsString]) -> String {
    // FNV-1a, which is the same in every build on every machine.
    let bytes = command.iter().flat_map(|word| word.as_encoded_bytes().iter().chain(&[0]));
    let hash = bytes
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    let schedule = schedule.map(|schedule| format!("{schedule} ")).unwrap_or_default();
    format!("{schedule}#{hash:08x}")
}

/// Reads back the schedule of a tick, without the hash of its command.
pub(crate) fn stored_schedule(text: &str) -> Option<Schedule> {
    let text = text.rsplit_once('#').map_or(text, |(schedule, _)| schedule).trim();
    schedule(text, None).ok().or_else(|| {
        let (text, zone) = text.rsplit_once(' ')?;
        schedule(text, Some(zone)).ok()
    })
}

/// Reads a time: a date, a date and time in UTC, RFC 3339, `now`, or Unix milliseconds.
pub(crate) fn when(text: &str) -> std::result::Result<i64, String> {
    let wrong = || {
        "a time is a date (2026-03-29), a date and time in UTC (2026-03-29T03:00), RFC 3339 \
         (2026-03-29T03:00:00+02:00), now, or Unix milliseconds"
            .to_owned()
    };
    if text == "now" {
        return Ok(litelease::now_ms());
    }
    if let Ok(ms) = text.parse() {
        return Ok(ms);
    }
    let date = text.parse::<Timestamp>().or_else(|_| {
        let civil = text.parse::<DateTime>()?;
        TimeZone::UTC.to_timestamp(civil)
    });
    date.map(Timestamp::as_millisecond).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn times_are_read_as_dates_and_numbers() {
        for (text, ms) in [
            ("2026-03-29", 1_774_742_400_000),
            ("2026-03-29T03:00", 1_774_753_200_000),
            ("2026-03-29T03:00:00+02:00", 1_774_746_000_000),
            ("1774746000000", 1_774_746_000_000),
            ("-1", -1),
        ] {
            assert_eq!(when(text), Ok(ms), "{text}");
        }
        assert!(when("now").unwrap() > 1_774_746_000_000);
        for text in ["", "today", "03:00", "2026-02-30", "1.5"] {
            assert!(when(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_schedule_is_read_back_from_the_text_that_is_stored() {
        for (text, zone) in [
            ("15m", None),
            ("1d", Some("Europe/Berlin")),
            ("0 3 * * *", None),
            ("30 1 * * mon-fri", Some("America/New_York")),
            ("@daily", Some("Asia/Tehran")),
        ] {
            let schedule = schedule(text, zone).unwrap();
            let stored = with_command(Some(&schedule), &["backup.sh".into()]);
            let back = stored_schedule(&stored).unwrap();
            assert_eq!((back.to_string(), back.next(0)), (schedule.to_string(), schedule.next(0)));
        }
        assert!(stored_schedule("#0a1b2c3d").is_none());
        assert_ne!(with_command(None, &["a".into()]), with_command(None, &["b".into()]));
        for wrong in ["0s", "5 parsecs", "0 25 * * *", ""] {
            assert!(schedule(wrong, None).is_err(), "{wrong:?}");
        }
    }
}
