//! Times on the command line: `250ms`, `30s`, `5m`, `1h30m`, `30d`; a bare number is seconds.

use std::time::Duration;

/// Reads a time. Several parts are added up: `1h30m`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
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

/// Reads a time that is not zero.
pub(crate) fn parse_positive(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err("it must be more than zero".into()),
        time => Ok(time),
    }
}

/// Returns a time in milliseconds in the two largest units that matter: `250 ms`, `4.2 s`, `3m
/// 20s`, `2d 4h`.
pub(crate) fn shown(ms: i64) -> String {
    let ms = ms.max(0);
    let (seconds, minutes, hours, days) = (ms / 1000, ms / 60_000, ms / 3_600_000, ms / 86_400_000);
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..60_000 => format!("{}.{} s", seconds, ms % 1000 / 100),
        60_000..3_600_000 => format!("{minutes}m {}s", seconds % 60),
        3_600_000..86_400_000 => format!("{hours}h {}m", minutes % 60),
        _ => format!("{days}d {}h", hours % 24),
    }
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
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(parse("30d"), Ok(Duration::from_secs(30 * 86_400)));
        for (text, seconds) in [("1h30m", 5400), ("2d4h", 187_200), ("1m2s", 62), ("1e2", 100)] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(parse("1d2h3m4s5ms"), Ok(Duration::from_millis(93_784_005)));
        for text in ["", "s", "-1s", "5 s", "5y", "1e400", "NaN", "inf", "0x10", "5ß"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        for text in ["30m1h", "1h1h", "1h30", "1h 30m", "1h-5m", "1hm", "h30m", "1h30y", "1ms5ms"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        assert!(parse_positive("0").is_err());
    }

    #[test]
    fn times_are_shown() {
        let cases = [
            (-5, "0 ms"),
            (250, "250 ms"),
            (4_249, "4.2 s"),
            (200_000, "3m 20s"),
            (7_500_000, "2h 5m"),
            (187_200_000, "2d 4h"),
        ];
        for (ms, text) in cases {
            assert_eq!(shown(ms), text);
        }
    }
}
