//! Displays durations for people.

use std::fmt;
use std::time::Duration;

/// `2 d 3 h`, `40 min`, `5 s`: at most two units, of which the smaller is cut off.
///
/// With a precision, as in `{:.1}`, seconds alone have as many decimals: `5.0 s`.
pub(crate) struct HumanDuration(pub(crate) Duration);

impl HumanDuration {
    /// Converts seconds. Invalid values become zero.
    pub(crate) fn of_secs(seconds: f64) -> Self {
        Self(Duration::try_from_secs_f64(seconds).unwrap_or_default())
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str, u64, &str); 3] = [
            (86_400, "d", 3_600, "h"),
            (3_600, "h", 60, "min"),
            (60, "min", 1, "s"),
        ];
        let seconds = self.0.as_secs();
        let units = UNITS.into_iter().find(|(size, ..)| seconds >= *size);
        let Some((larger, unit, smaller, small_unit)) = units else {
            return match f.precision() {
                Some(decimals) => write!(f, "{:.decimals$} s", self.0.as_secs_f64()),
                None => write!(f, "{seconds} s"),
            };
        };
        write!(f, "{} {unit}", seconds / larger)?;
        match seconds % larger / smaller {
            0 => Ok(()),
            count => write!(f, " {count} {small_unit}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_units_are_enough() {
        for (seconds, text) in [
            (0.0, "0 s"),
            (59.9, "59 s"),
            (60.0, "1 min"),
            (500.0, "8 min 20 s"),
            (3_600.0, "1 h"),
            (3_659.0, "1 h"),
            (7_260.0, "2 h 1 min"),
            (86_400.0, "1 d"),
            (86_460.0, "1 d"),
            (94_832_415.9, "1097 d 14 h"),
            (-1.0, "0 s"),
            (f64::INFINITY, "0 s"),
        ] {
            assert_eq!(HumanDuration::of_secs(seconds).to_string(), text);
        }
    }

    #[test]
    fn decimals_are_for_seconds() {
        assert_eq!(format!("{:.1}", HumanDuration::of_secs(12.54)), "12.5 s");
        assert_eq!(format!("{:.1}", HumanDuration::of_secs(0.0)), "0.0 s");
        assert_eq!(format!("{:.1}", HumanDuration::of_secs(90.5)), "1 min 30 s");
    }
}
