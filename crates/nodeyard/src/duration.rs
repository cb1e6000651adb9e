//! Durations on the command line: `90`, `90s`, `30m`, `1h 30m`, `2d`.

use std::time::Duration;

/// Parses a duration of whole seconds, at least one.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let seconds = match text.parse::<u64>() {
        Ok(seconds) => seconds,
        Err(_) => {
            // A day is 24 hours.
            let (days, rest) = match text.split_once('d') {
                Some((days, rest)) => (days.trim().parse::<u64>().map_err(invalid)?, rest.trim()),
                None => (0, text),
            };
            let rest = match rest {
                "" => 0,
                rest => {
                    let rest: jiff::SignedDuration = rest.parse().map_err(invalid)?;
                    u64::try_from(rest.as_secs()).map_err(invalid)?
                }
            };
            days.saturating_mul(86_400).saturating_add(rest)
        }
    };
    match seconds {
        0 => Err("expected at least one second".to_owned()),
        seconds => Ok(Duration::from_secs(seconds)),
    }
}

fn invalid(_: impl std::error::Error) -> String {
    "expected a number of seconds, or a duration such as 90s, 30m, 1h30m or 2d".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_in_all_notations_are_parsed() {
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
