//! The line that a holder writes into the lock file. It is informational: only the lock itself
//! excludes.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::system;

/// The holder of a lock, as named in the lock file.
///
/// ```
/// use litelease_sys::write_lock::Holder;
///
/// let holder = Holder::parse("pid:12345 time:2025-01-15T10:30:45Z\n").unwrap();
/// assert_eq!(holder.pid, 12345);
/// assert_eq!(Holder::parse("garbage"), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The process.
    pub pid: u32,
    /// When it took the lock, in UTC.
    pub since: String,
    /// A note of the holder, such as the address where it serves.
    pub note: Option<String>,
}

/// How many bytes of the file are read: more than a line has.
pub(crate) const LONGEST: usize = 256;

impl Holder {
    /// Returns this process, holding from now on.
    pub(crate) fn me() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Holder { pid: std::process::id(), since: utc(since.as_secs()), note: None }
    }

    /// Parses a line, and a note in the next line. A stale, empty, half-written or invalid line
    /// gives `None` or a holder that is gone.
    pub fn parse(line: &str) -> Option<Self> {
        let (line, note) = line.split_once('\n').unwrap_or((line, ""));
        let (pid, since) = line.trim_end().strip_prefix("pid:")?.split_once(" time:")?;
        let is_time = since.len() == 20
            && since.ends_with('Z')
            && since.bytes().all(|b| b.is_ascii_digit() || b"-:TZ".contains(&b));
        let pid = pid.parse().ok().filter(|pid| *pid > 0)?;
        let note = note
            .lines()
            .next()
            .filter(|note| !note.is_empty() && note.bytes().all(|byte| byte.is_ascii_graphic()));
        is_time.then(|| Holder { pid, since: since.into(), note: note.map(str::to_owned) })
    }

    /// Checks whether the process has ended. Returns false if the system cannot say.
    pub fn is_gone(&self) -> bool {
        system::has_ended(self.pid)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid:{} time:{}", self.pid, self.since)
    }
}

/// Formats Unix time as RFC 3339.
fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Count years from March: then the leap day is the last day, and months have fixed offsets.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_736_937_045, "2025-01-15T10:30:45Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }

    #[test]
    fn garbage_is_nobody() {
        let far = format!("pid:1 time:{}", "9".repeat(1 << 16));
        for line in [
            "",
            "\0",
            "pid:",
            "pid:1",
            "pid:1 time:",
            "pid:0 time:2025-01-15T10:30:45Z",
            "pid:-1 time:2025-01-15T10:30:45Z",
            "pid:99999999999 time:2025-01-15T10:30:45Z",
            "pid:1 time:yesterday, I believe!!",
            "time:2025-01-15T10:30:45Z pid:1",
            &far,
        ] {
            assert_eq!(Holder::parse(line), None, "{line:.40}");
        }
    }
}
