//! Environment variables by which tests of the daemons shorten what is otherwise waited for.

use std::time::Duration;

use tracing::warn;

/// The seconds that a variable says; what is no number of seconds is passed over.
pub(super) fn seconds(variable: &str) -> Option<Duration> {
    let text = std::env::var(variable).ok()?;
    let seconds = text.parse().ok();
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    if time.is_none() {
        warn!(variable, text, "not a number of seconds; ignored");
    }
    time
}
