//! Timestamps in RFC 3339 format, in UTC.

use nodeyard_model::Timestamp;

/// Formats a timestamp. Returns None if it is beyond the calendar's range.
pub(crate) fn shown(time: Timestamp) -> Option<String> {
    let microseconds = (time.as_secs() * 1e6).round();
    if microseconds.abs() > 9e18 {
        return None;
    }
    let time = jiff::Timestamp::from_microsecond(microseconds as i64).ok()?;
    Some(time.to_string())
}

/// Formats milliseconds since 1970, as the store counts them.
pub(crate) fn of_millis(milliseconds: i64) -> Option<String> {
    let time = jiff::Timestamp::from_millisecond(milliseconds).ok()?;
    Some(time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_utc_and_bounded() {
        let shown = |seconds| shown(Timestamp::from_secs(seconds).unwrap());
        assert_eq!(shown(0.0).as_deref(), Some("1970-01-01T00:00:00Z"));
        assert_eq!(
            shown(1_700_000_000.25).as_deref(),
            Some("2023-11-14T22:13:20.25Z")
        );
        assert_eq!(shown(1e300), None);
        assert_eq!(shown(-1e13), None);
    }
}
