//! Cached responses of the cloud that concurrent operations share.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// The last response to one request. An operation that needs a newer one sends the request; others wait for its response
/// and share it.
#[derive(Debug)]
pub(crate) struct ResponseCache<T>(Mutex<Option<Cached<T>>>);

#[derive(Debug)]
struct Cached<T> {
    requested: Instant,
    value: Arc<T>,
}

impl<T> Default for ResponseCache<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> ResponseCache<T> {
    /// Returns the response to a request sent no longer than `age` ago. `fetch` runs only if there is none.
    pub(crate) async fn within<E>(
        &self,
        age: Duration,
        fetch: impl Future<Output = Result<T, E>>,
    ) -> Result<Arc<T>, E> {
        let now = Instant::now();
        let earliest = now.checked_sub(age).unwrap_or(now);
        let mut last = self.0.lock().await;
        if let Some(cached) = &*last
            && cached.requested > earliest
        {
            return Ok(Arc::clone(&cached.value));
        }
        let requested = Instant::now();
        let value = Arc::new(fetch.await?);
        *last = Some(Cached {
            requested,
            value: Arc::clone(&value),
        });
        Ok(value)
    }

    pub(crate) async fn forget(&self) {
        *self.0.lock().await = None;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn concurrent_requests_share_a_response() {
        let (cache, requests) = (ResponseCache::default(), AtomicUsize::new(0));
        let fetch = |age| {
            cache.within(age, async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok::<_, Infallible>(requests.fetch_add(1, Ordering::SeqCst))
            })
        };
        // The others began after the first request was sent, and share the next one.
        let first = fetch(Duration::ZERO);
        let later = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            tokio::join!(
                fetch(Duration::ZERO),
                fetch(Duration::ZERO),
                fetch(Duration::ZERO)
            )
        };
        let (first, (a, b, c)) = tokio::join!(first, later);
        assert_eq!(*first.unwrap(), 0);
        assert_eq!([*a.unwrap(), *b.unwrap(), *c.unwrap()], [1, 1, 1]);
        assert_eq!(*fetch(Duration::from_secs(5)).await.unwrap(), 1);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(*fetch(Duration::from_secs(5)).await.unwrap(), 2);
    }
}
