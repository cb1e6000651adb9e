//! Cached responses of the cloud that concurrent operations share.

use std::error::Error as _;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_driver::{Error, ErrorClass};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The last response to one request. An operation that needs a newer one sends the request; others wait for its response
/// and share it, or its failure.
#[derive(Debug)]
pub(crate) struct ResponseCache<T>(Mutex<Option<Cached<T>>>);

#[derive(Debug)]
struct Cached<T> {
    requested: Instant,
    response: Result<Arc<T>, SharedError>,
}

/// An error that several operations return.
#[derive(Debug, Clone)]
struct SharedError {
    class: ErrorClass,
    text: String,
    source: Option<String>,
}

impl SharedError {
    fn new(error: &Error) -> Self {
        let mut texts = Vec::new();
        let mut source = error.source();
        while let Some(cause) = source {
            texts.push(cause.to_string());
            source = cause.source();
        }
        Self {
            class: error.class(),
            text: error.to_string(),
            source: (!texts.is_empty()).then(|| texts.join(": ")),
        }
    }

    fn to_error(&self) -> Error {
        let error = Error::new(self.class, self.text.clone());
        match &self.source {
            Some(source) => error.because(source.clone()),
            None => error,
        }
    }
}

impl<T> Default for ResponseCache<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> ResponseCache<T> {
    /// Returns the response to a request sent no longer than `age` ago. `fetch` runs only if there is none. A failure serves
    /// only those that waited for it.
    pub(crate) async fn within(
        &self,
        age: Duration,
        fetch: impl Future<Output = Result<T, Error>>,
    ) -> Result<Arc<T>, Error> {
        let now = Instant::now();
        let earliest = now.checked_sub(age).unwrap_or(now);
        let mut last = self.0.lock().await;
        match &*last {
            Some(Cached {
                requested,
                response: Ok(value),
            }) if *requested > earliest => return Ok(Arc::clone(value)),
            Some(Cached {
                requested,
                response: Err(error),
            }) if *requested > now => return Err(error.to_error()),
            _ => {}
        }
        let requested = Instant::now();
        let response = fetch.await.map(Arc::new);
        let shared = match &response {
            Ok(value) => Ok(Arc::clone(value)),
            Err(error) => Err(SharedError::new(error)),
        };
        *last = Some(Cached {
            requested,
            response: shared,
        });
        response
    }

    pub(crate) async fn forget(&self) {
        *self.0.lock().await = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn concurrent_requests_share_a_response() {
        let (cache, requests) = (ResponseCache::default(), AtomicUsize::new(0));
        let fetch = |age| {
            cache.within(age, async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(requests.fetch_add(1, Ordering::SeqCst))
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

    #[tokio::test(start_paused = true)]
    async fn a_failed_list_is_not_requested_again_by_each_waiter() {
        let (cache, requests) = (ResponseCache::<()>::default(), AtomicUsize::new(0));
        let fetch = || {
            cache.within(Duration::from_secs(5), async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                requests.fetch_add(1, Ordering::SeqCst);
                Err(Error::retry("busy").because("503"))
            })
        };
        let later = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            tokio::join!(fetch(), fetch(), fetch())
        };
        let (_, (_, _, last)) = tokio::join!(fetch(), later);
        let error = last.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Retry);
        assert_eq!(error.source().unwrap().to_string(), "503");
        // The others began after the first request was sent, and share the failure of the next one.
        assert_eq!(requests.load(Ordering::SeqCst), 2);
        fetch().await.unwrap_err();
        assert_eq!(requests.load(Ordering::SeqCst), 3);
    }
}
