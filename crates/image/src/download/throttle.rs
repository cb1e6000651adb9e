//! A limit of bytes per second.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// A limit of bytes per second, or none. All clones share it: the connections of a download, and downloads that belong
/// together.
#[derive(Debug, Clone, Default)]
pub struct Throttle(Option<Arc<Till>>);

#[derive(Debug)]
struct Till {
    rate: u64,
    /// When what was taken so far is paid for.
    paid_at: Mutex<Instant>,
}

impl Throttle {
    pub fn new(rate: u64) -> Self {
        let till = Till {
            rate: rate.max(1),
            paid_at: Mutex::new(Instant::now()),
        };
        Self(Some(Arc::new(till)))
    }

    /// Waits until so many more bytes may be taken.
    pub(super) async fn take(&self, bytes: u64) {
        let Some(till) = &self.0 else { return };
        #[expect(clippy::cast_precision_loss, reason = "a pause need not be exact")]
        let price = Duration::from_secs_f64(bytes as f64 / till.rate as f64);
        let until = {
            let mut paid_at = till.paid_at.lock().await;
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
    async fn all_clones_share_one_rate() {
        let throttle = Throttle::new(1000);
        let other = throttle.clone();
        let begun = Instant::now();
        tokio::join!(throttle.take(2000), throttle.take(2000), other.take(2000));
        assert_eq!(begun.elapsed(), Duration::from_secs(6));
        Throttle::default().take(u64::MAX).await;
    }
}
