//! Times as people write them: `250ms`, `30s`, `5m`, `1h30m`, `30d`; a bare number is seconds.

use std::time::Duration;

/// Reads a time. Several parts are added up: `1h30m`.
///
/// ```
/// # use std::time::Duration;
/// # use litelease_hold::schedule::parse_time;
/// assert_eq!(parse_time("1h30m"), Ok(Duration::from_secs(5400)));
/// assert_eq!(parse_time("1.5"), Ok(Duration::from_millis(1500)));
/// assert!(parse_time("5 parsecs").is_err());
/// ```
pub fn parse_time(text: &str) -> Result<Duration, String> {
    if let Some(time) = part(text) {
        return Ok(time);
    }
    let (mut rest, mut total, mut last_unit) = (text, Duration::ZERO, f64::INFINITY);
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| letter.is_ascii_alphabetic()).ok_or_else(wrong)?;
        let letters = rest[digits..].find(|letter: char| !letter.is_ascii_alphabetic());
        let (word, after) = rest.split_at(letters.map_or(rest.len(), |letters| digits + letters));
        // The larger unit first, and each once: anything else is a slip.
        let unit = seconds_of(&word[digits..]).filter(|unit| *unit < last_unit);
        let time = unit.and_then(|_| part(word)).ok_or_else(wrong)?;
        total = total.checked_add(time).ok_or_else(wrong)?;
        (rest, last_unit) = (after, unit.unwrap_or_default());
    }
    if text.is_empty() { Err(wrong()) } else { Ok(total) }
}

/// Reads a number and its unit; without one it is seconds.
fn part(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let seconds_each = match &text[digits.len()..] {
        "" => 1.0,
        unit => seconds_of(unit)?,
    };
    let number: f64 = digits.parse().ok()?;
    Duration::try_from_secs_f64(number * seconds_each).ok()
}

fn seconds_of(unit: &str) -> Option<f64> {
    Some(match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return None,
    })
}

fn wrong() -> String {
    "a time is a number and ms, s, m, h or d: 250ms, 30s, 1h30m".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        for (text, ms) in [("250ms", 250), ("30s", 30_000), ("1.5", 1500), ("2m", 120_000)] {
            assert_eq!(parse_time(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(parse_time("30d"), Ok(Duration::from_secs(30 * 86_400)));
        for (text, seconds) in [("1h30m", 5400), ("2d4h", 187_200), ("1m2s", 62), ("1e2", 100)] {
            assert_eq!(parse_time(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(parse_time("1d2h3m4s5ms"), Ok(Duration::from_millis(93_784_005)));
        for text in ["", "s", "-1s", "5 s", "5y", "1e400", "NaN", "inf", "0x10", "5ß"] {
            assert!(parse_time(text).is_err(), "{text:?}");
        }
        for text in ["30m1h", "1h1h", "1h30", "1h 30m", "1h-5m", "1hm", "h30m", "1h30y", "1ms5ms"] {
            assert!(parse_time(text).is_err(), "{text:?}");
        }
    }
}
