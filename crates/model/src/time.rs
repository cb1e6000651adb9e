//! [`Timestamp`]: points in time in records.

use std::cmp::Ordering;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::value::RawValue;

use crate::json::{DecodeError, JsonField, finite_number, json_serde, write_float};

/// Seconds since 1970 as a float, never NaN nor infinite.
#[derive(Clone, Copy)]
pub struct Timestamp(f64);

impl Timestamp {
    /// Returns `None` if `seconds` is NaN or infinite.
    pub fn from_secs(seconds: f64) -> Option<Self> {
        seconds.is_finite().then_some(Self(seconds))
    }

    pub fn as_secs(self) -> f64 {
        self.0
    }

    /// Returns the time since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        let seconds = self.0 - earlier.0;
        if seconds > 0.0 {
            Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
        } else {
            Duration::ZERO
        }
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self(after.as_secs_f64()),
            Err(before) => Self(-before.duration().as_secs_f64()),
        }
    }
}

impl PartialEq for Timestamp {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Timestamp {}

impl PartialOrd for Timestamp {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timestamp {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl JsonField for Timestamp {
    fn read(value: &RawValue) -> Result<Self, DecodeError> {
        finite_number(value).map(Self)
    }

    fn write(&self, out: &mut String) {
        write_float(out, self.0);
    }
}

json_serde!(Timestamp);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_python_float_survives() {
        for text in ["1700000000.1234567", "0.0", "1.5", "1727787600.0", "1e300"] {
            let time: Timestamp = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&time).unwrap(), text);
        }
        assert!(serde_json::from_str::<Timestamp>("1e999").is_err());
        assert!(serde_json::from_str::<Timestamp>("\"1\"").is_err());
        assert_eq!(Timestamp::from_secs(f64::NAN), None);
    }

    #[test]
    fn ages_are_never_negative() {
        let [early, late] = [10.0, 12.5].map(|s| Timestamp::from_secs(s).unwrap());
        assert_eq!(late.since(early), Duration::from_millis(2500));
        assert_eq!(early.since(late), Duration::ZERO);
        let [first, last] = [f64::MIN, f64::MAX].map(|s| Timestamp::from_secs(s).unwrap());
        assert_eq!(last.since(first), Duration::MAX);
    }
}
