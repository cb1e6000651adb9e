//! Environment variables that shorten intervals in tests of the daemons.

use std::time::Duration;

use tracing::warn;

/// Returns the duration in a variable; invalid values are ignored.
pub(super) fn seconds(variable: &str) -> Option<Duration> {
    let text = std::env::var(variable).ok()?;
    let seconds = text.parse().ok();
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    if time.is_none() {
        warn!(variable, text, "not a number of seconds; ignored");
    }
    time
}
