//! Lengths of time on the command line: `90`, `90s`, `30m`, `1h 30m`, `2d`.

use std::time::Duration;

/// Whole seconds, at least one.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let seconds = match text.parse::<u64>() {
        Ok(seconds) => seconds,
        Err(_) => {
            // Days are not of one length for calendars; here they are.
            let (days, rest) = match text.split_once('d') {
                Some((days, rest)) => (days.trim().parse::<u64>().map_err(wrong)?, rest.trim()),
                None => (0, text),
            };
            let rest = match rest {
                "" => 0,
                rest => {
                    let rest: jiff::SignedDuration = rest.parse().map_err(wrong)?;
                    u64::try_from(rest.as_secs()).map_err(wrong)?
                }
            };
            days.saturating_mul(86_400).saturating_add(rest)
        }
    };
    match seconds {
        0 => Err("it must be at least a second".to_owned()),
        seconds => Ok(Duration::from_secs(seconds)),
    }
}

fn wrong(_: impl std::error::Error) -> String {
    "it must be seconds, or a text like 90s, 30m, 1h30m or 2d".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_write_times_in_many_ways() {
        for (text, seconds) in [
            ("90", 90),
            ("90s", 90),
            ("30m", 1800),
            ("1h30m", 5400),
            ("1h 30m", 5400),
            ("2d", 172_800),
            ("1d 12h", 129_600),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "0", "0s", "-1", "-5m", "1x", "h", "d", "1.5.2s"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
