//! Retry decisions: backoff, transient status codes and Retry-After.

use std::time::{Duration, SystemTime};

use hyper::StatusCode;
use hyper::header::{HeaderMap, RETRY_AFTER};

/// Exponential backoff with full jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    pub initial_delay: Duration,
    pub max_delay: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            initial_delay: Duration::from_secs(2),
            max_delay: Duration::from_secs(300),
        }
    }
}

impl Backoff {
    /// Returns the delay after `failures` consecutive failures, at least `retry_after` but at most [`Self::max_delay`].
    pub fn delay(&self, failures: u32, retry_after: Option<Duration>) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let span = self
            .initial_delay
            .saturating_mul(1 << doublings)
            .min(self.max_delay);
        let delay = span.mul_f64(fastrand::f64());
        retry_after.map_or(delay, |retry_after| {
            delay.max(retry_after.min(self.max_delay))
        })
    }
}

/// Returns whether a request that got this status may succeed when retried.
pub fn is_transient_status(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
    ) || status.is_server_error()
}

/// Returns whether this status means that a file next to a readable one does not exist.
///
/// 403 is included: object stores like S3 return it instead of 404 to clients without permission to list.
pub fn is_absent_status(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::NOT_FOUND | StatusCode::GONE | StatusCode::FORBIDDEN
    )
}

/// Returns the delay that a Retry-After header requests.
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_limited_and_respect_retry_after() {
        let backoff = Backoff {
            initial_delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(8),
        };
        for failures in 0..100 {
            assert!(backoff.delay(failures, None) <= Duration::from_secs(8));
        }
        assert!(backoff.delay(1, None) <= Duration::from_secs(1));
        let retry_after = Some(Duration::from_secs(5));
        assert!(backoff.delay(1, retry_after) >= Duration::from_secs(5));
        let endless = Some(Duration::from_secs(1 << 40));
        assert_eq!(backoff.delay(1, endless), Duration::from_secs(8));
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let parse = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().unwrap());
            retry_after(&headers, now)
        };
        assert_eq!(parse("7"), Some(Duration::from_secs(7)));
        assert_eq!(
            parse("Sun, 06 Nov 1994 08:50:37 GMT"),
            Some(Duration::from_secs(60))
        );
        assert_eq!(parse("Sun, 06 Nov 1994 08:00:00 GMT"), Some(Duration::ZERO));
        assert_eq!(parse("soon"), None);
    }
}
