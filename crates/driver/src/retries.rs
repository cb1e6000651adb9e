//! How often a failed operation is tried again.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, ErrorClass};

/// An operation that ran this long before it failed made progress: its failure counts as the first.
const LONG_RUN: Duration = Duration::from_secs(10);

/// Counts the failures of one operation and returns the pause before the next try.
#[derive(Debug, Clone)]
pub struct Retries {
    limit: u32,
    first_pause: Duration,
    failures: u32,
    started: Instant,
}

impl Retries {
    /// The pause doubles with each failure.
    pub fn new(limit: u32, first_pause: Duration) -> Self {
        Self {
            limit,
            first_pause,
            failures: 0,
            started: Instant::now(),
        }
    }

    /// Starts a try. Call it before each one.
    pub fn start(&mut self) {
        self.started = Instant::now();
    }

    /// Returns the pause before the next try, or None if the error is not of class
    /// [`Retry`](ErrorClass::Retry) or the limit is reached.
    pub fn after(&mut self, error: &Error) -> Option<Duration> {
        if error.class() != ErrorClass::Retry {
            return None;
        }
        if self.started.elapsed() >= LONG_RUN {
            self.failures = 0;
        }
        if self.failures >= self.limit {
            return None;
        }
        let pause = self.first_pause * 2_u32.saturating_pow(self.failures);
        self.failures += 1;
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_millis(500);

    #[tokio::test(start_paused = true)]
    async fn the_pause_doubles_until_the_limit() {
        let mut retries = Retries::new(2, PAUSE);
        retries.start();
        let error = Error::retry("busy");
        assert_eq!(retries.after(&error), Some(PAUSE));
        assert_eq!(retries.after(&error), Some(2 * PAUSE));
        assert_eq!(retries.after(&error), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_run_resets_the_count() {
        let mut retries = Retries::new(1, PAUSE);
        retries.start();
        assert_eq!(retries.after(&Error::retry("busy")), Some(PAUSE));
        retries.start();
        tokio::time::advance(LONG_RUN).await;
        assert_eq!(retries.after(&Error::retry("busy")), Some(PAUSE));
    }

    #[tokio::test]
    async fn other_classes_are_not_retried() {
        let mut retries = Retries::new(3, PAUSE);
        assert_eq!(retries.after(&Error::permanent("no such flavor")), None);
    }
}
