//! A limit of bytes per second.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// Shared by all connections of a download.
#[derive(Debug)]
pub(super) struct Throttle {
    rate: Option<u64>,
    /// When what was taken so far is paid for.
    paid_at: Mutex<Instant>,
}

impl Throttle {
    pub(super) fn new(rate: Option<u64>) -> Self {
        Self {
            rate: rate.filter(|rate| *rate > 0),
            paid_at: Mutex::new(Instant::now()),
        }
    }

    /// Waits until so many more bytes may be taken.
    pub(super) async fn take(&self, bytes: u64) {
        let Some(rate) = self.rate else { return };
        #[expect(clippy::cast_precision_loss, reason = "a pause need not be exact")]
        let price = Duration::from_secs_f64(bytes as f64 / rate as f64);
        let until = {
            let mut paid_at = self.paid_at.lock().await;
            *paid_at = (*paid_at).max(Instant::now()) + price;
            *paid_at
        };
        tokio::time::sleep_until(until).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_connections_share_one_rate() {
        let throttle = Throttle::new(Some(1000));
        let begun = Instant::now();
        let take = || throttle.take(2000);
        tokio::join!(take(), take(), take());
        assert_eq!(begun.elapsed(), Duration::from_secs(6));
        Throttle::new(None).take(u64::MAX).await;
    }
}
