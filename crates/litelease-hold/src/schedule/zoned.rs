//! The walk through civil times in a zone: from a calendar to instants.
//!
//! No crate's own search is used: those that were tried hang in Lord Howe, or run a time that does
//! not exist twice.

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp, ToSpan, Unit};

use super::calendar::Calendar;

/// The smallest step of jiff's instants.
const NANOSECOND: SignedDuration = SignedDuration::from_nanos(1);

/// Returns the newest instant of a time of day that is `at_ms` or earlier.
pub(super) fn previous_time_of_day(
    calendar: &Calendar,
    zone: &TimeZone,
    at_ms: i64,
) -> Option<i64> {
    let at = instant(at_ms)?;
    // In the second pass of an overlap, later times of day have been passed before.
    let before = zone.preceding(at).next().and_then(|change| {
        let earlier = change.timestamp().checked_sub(NANOSECOND).ok()?;
        Some(zone.to_offset(earlier))
    });
    let now = zone.to_offset(at);
    let mut civil = before.map_or(now, |before| before.max(now)).to_datetime(at);
    loop {
        civil = calendar.previous(civil)?;
        let found = first_instant(zone, civil)?;
        if found <= at {
            return Some(found.as_millisecond());
        }
        civil = civil.checked_sub(1.minute()).ok()?;
    }
}

/// Returns the first instant of a time of day that is later than `after_ms`.
pub(super) fn next_time_of_day(calendar: &Calendar, zone: &TimeZone, after_ms: i64) -> Option<i64> {
    let after = instant(after_ms)?;
    let mut civil = to_minute(zone.to_datetime(after))?;
    loop {
        civil = calendar.next(civil)?;
        let found = first_instant(zone, civil)?;
        if found > after {
            return Some(found.as_millisecond());
        }
        civil = civil.checked_add(1.minute()).ok()?;
    }
}

/// Returns the newest minute of real time that is `at_ms` or earlier.
pub(super) fn previous_in_real_time(
    calendar: &Calendar,
    zone: &TimeZone,
    at_ms: i64,
) -> Option<i64> {
    let mut at = instant(at_ms)?;
    loop {
        // Between two changes of the offset, civil time is a shifted real time.
        let offset = zone.to_offset(at);
        let begin = zone.preceding(at.checked_add(NANOSECOND).ok()?).next();
        let begin = begin.map(|change| change.timestamp());
        let found = offset.to_timestamp(calendar.previous(offset.to_datetime(at))?).ok()?;
        match begin {
            Some(begin) if found < begin => at = begin.checked_sub(NANOSECOND).ok()?,
            _ => return Some(found.as_millisecond()),
        }
    }
}

/// Returns the first minute of real time that is later than `after_ms`.
pub(super) fn next_in_real_time(
    calendar: &Calendar,
    zone: &TimeZone,
    after_ms: i64,
) -> Option<i64> {
    let mut from = instant(after_ms)?.checked_add(NANOSECOND).ok()?;
    loop {
        let offset = zone.to_offset(from);
        let civil = offset.to_datetime(from);
        let whole = to_minute(civil)?;
        let first = if whole < civil { whole.checked_add(1.minute()).ok()? } else { whole };
        let found = offset.to_timestamp(calendar.next(first)?).ok()?;
        match zone.following(from).next().map(|change| change.timestamp()) {
            Some(end) if found >= end => from = end,
            _ => return Some(found.as_millisecond()),
        }
    }
}

/// Returns the instant of a time of day: the first one if it exists twice, and the first one after
/// the gap if it does not exist.
fn first_instant(zone: &TimeZone, civil: DateTime) -> Option<Timestamp> {
    match zone.to_ambiguous_timestamp(civil).offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(civil).ok(),
        AmbiguousOffset::Fold { before, .. } => before.to_timestamp(civil).ok(),
        AmbiguousOffset::Gap { before, .. } => {
            let inside = before.to_timestamp(civil).ok()?.checked_add(NANOSECOND).ok()?;
            Some(zone.preceding(inside).next()?.timestamp())
        }
    }
}

fn instant(ms: i64) -> Option<Timestamp> {
    Timestamp::from_millisecond(ms).ok()
}

fn to_minute(civil: DateTime) -> Option<DateTime> {
    let round = jiff::civil::DateTimeRound::new().smallest(Unit::Minute);
    civil.round(round.mode(jiff::RoundMode::Trunc)).ok()
}
