//! Times in the format of OpenStack.

use std::time::Duration;

use nodeyard_model::Timestamp;

pub(super) fn after(time: Timestamp, wait: Duration) -> Timestamp {
    Timestamp::from_secs(time.as_secs() + wait.as_secs_f64()).unwrap_or(time)
}

/// Formats to the microsecond, so that images created in the same second are ordered.
pub(super) fn iso(time: Timestamp) -> String {
    let micros = (time.as_secs() * 1e6) as i64;
    jiff::Timestamp::from_microsecond(micros)
        .unwrap_or(jiff::Timestamp::UNIX_EPOCH)
        .to_string()
}
