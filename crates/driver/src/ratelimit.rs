//! How fast a provider may be called.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Spaces calls evenly, in the order in which they ask. One for each provider.
#[derive(Debug)]
pub struct RateLimiter {
    interval: Duration,
    next: Mutex<Option<Instant>>,
}

impl RateLimiter {
    /// At most one call in each `interval`; zero is without limit.
    pub fn every(interval: Duration) -> Self {
        Self {
            interval,
            next: Mutex::new(None),
        }
    }

    pub fn unlimited() -> Self {
        Self::every(Duration::ZERO)
    }

    /// Waits for its turn. A turn that was given is used up, also if the caller goes away.
    pub async fn turn(&self) {
        if self.interval.is_zero() {
            return;
        }
        sleep_until(self.reserve(Instant::now())).await;
    }

    fn reserve(&self, now: Instant) -> Instant {
        let mut next = self
            .next
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let turn = next.map_or(now, |next| next.max(now));
        *next = Some(turn.checked_add(self.interval).unwrap_or(turn));
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_are_spaced_and_idle_time_is_not_saved_up() {
        let limiter = RateLimiter::every(Duration::from_secs(1));
        let start = Instant::now();
        let turns = |count| {
            let limiter = &limiter;
            async move {
                let mut seen = Vec::new();
                for _ in 0..count {
                    limiter.turn().await;
                    seen.push(start.elapsed().as_secs());
                }
                seen
            }
        };
        assert_eq!(turns(3).await, [0, 1, 2]);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(turns(3).await, [12, 13, 14]);
    }

    #[tokio::test(start_paused = true)]
    async fn without_limit_nobody_waits() {
        let start = Instant::now();
        for _ in 0..1000 {
            RateLimiter::unlimited().turn().await;
        }
        assert!(start.elapsed().is_zero());
    }
}
