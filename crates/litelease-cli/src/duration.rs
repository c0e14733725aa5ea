//! Times on the command line: `250ms`, `30s`, `5m`, `1h30m`, `30d`; a bare number is seconds.

use std::time::Duration;

pub(crate) use litelease_hold::schedule::parse_time as parse;

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

#[cfg(test)]
mod tests {
    use super::*;

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
