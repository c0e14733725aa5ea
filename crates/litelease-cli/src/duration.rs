//! Times on the command line: `250ms`, `30s`, `5m`, `12h`, `30d`; a bare number is seconds.

use std::time::Duration;

/// Reads a time.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let seconds_each = match &text[digits.len()..] {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(wrong()),
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * seconds_each).map_err(|_| wrong())
}

/// Reads a time that is not zero.
pub(crate) fn parse_positive(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err("it must be more than zero".into()),
        time => Ok(time),
    }
}

/// A time in milliseconds in the two largest units that matter: `250 ms`, `4.2 s`, `3m 20s`, `2d 4h`.
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
    "a time is a number and ms, s, m, h or d: 250ms, 30s, 12h".into()
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
        for text in ["", "s", "-1s", "5 s", "5y", "1e400", "NaN", "inf", "0x10", "5ß"] {
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
