//! Bandwidth limit.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// An optional limit of bytes per second, shared by all clones.
#[derive(Debug, Clone, Default)]
pub struct Throttle(Option<Arc<ThrottleState>>);

#[derive(Debug)]
struct ThrottleState {
    rate: u64,
    /// When the bytes taken so far are within the rate.
    next_free: Mutex<Instant>,
}

impl Throttle {
    pub fn new(rate: u64) -> Self {
        let state = ThrottleState {
            rate: rate.max(1),
            next_free: Mutex::new(Instant::now()),
        };
        Self(Some(Arc::new(state)))
    }

    /// Waits until `bytes` more are within the rate.
    pub(super) async fn take(&self, bytes: u64) {
        let Some(state) = &self.0 else { return };
        #[expect(clippy::cast_precision_loss, reason = "a pause need not be exact")]
        let cost = Duration::from_secs_f64(bytes as f64 / state.rate as f64);
        let until = {
            let mut next_free = state.next_free.lock().await;
            *next_free = (*next_free).max(Instant::now()) + cost;
            *next_free
        };
        tokio::time::sleep_until(until).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_clones_share_one_rate() {
        let throttle = Throttle::new(1000);
        let other = throttle.clone();
        let begun = Instant::now();
        tokio::join!(throttle.take(2000), throttle.take(2000), other.take(2000));
        assert_eq!(begun.elapsed(), Duration::from_secs(6));
        Throttle::default().take(u64::MAX).await;
    }
}
