//! When to try again.

use std::time::{Duration, SystemTime};

use hyper::StatusCode;
use hyper::header::{HeaderMap, RETRY_AFTER};

/// How long to wait before another try: a random part of a span that doubles, so that those who failed together do not
/// come back together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    pub first: Duration,
    pub longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(2),
            longest: Duration::from_secs(300),
        }
    }
}

impl Backoff {
    /// After so many failures in a row; never sooner than the server asked for, as far as that is bearable.
    pub fn delay(&self, failures: u32, asked: Option<Duration>) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let span = self.first.saturating_mul(1 << doublings).min(self.longest);
        let delay = span.mul_f64(fastrand::f64());
        asked.map_or(delay, |asked| delay.max(asked.min(self.longest)))
    }
}

/// Answers after which the same request may work.
pub fn is_transient_status(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
    ) || status.is_server_error()
}

/// Answers that say that a file beside another one is not there.
///
/// 403 is one of them: stores like S3 say it instead of 404 to those who may not list what there is, and whoever asks
/// has just been let to the other file. 401 is not: it says that credentials are wanted, and nothing about the file.
pub fn is_absent_status(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::NOT_FOUND | StatusCode::GONE | StatusCode::FORBIDDEN
    )
}

/// How long the server wants us to wait.
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
    fn a_delay_grows_to_its_limit_and_heeds_the_server() {
        let backoff = Backoff {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(8),
        };
        for failures in 0..100 {
            assert!(backoff.delay(failures, None) <= Duration::from_secs(8));
        }
        assert!(backoff.delay(1, None) <= Duration::from_secs(1));
        let asked = Some(Duration::from_secs(5));
        assert!(backoff.delay(1, asked) >= Duration::from_secs(5));
        let endless = Some(Duration::from_secs(1 << 40));
        assert_eq!(backoff.delay(1, endless), Duration::from_secs(8));
    }

    #[test]
    fn a_server_may_name_seconds_or_a_date() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let asked = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().unwrap());
            retry_after(&headers, now)
        };
        assert_eq!(asked("7"), Some(Duration::from_secs(7)));
        assert_eq!(
            asked("Sun, 06 Nov 1994 08:50:37 GMT"),
            Some(Duration::from_secs(60))
        );
        assert_eq!(asked("Sun, 06 Nov 1994 08:00:00 GMT"), Some(Duration::ZERO));
        assert_eq!(asked("soon"), None);
    }
}
