//! A cached list of the images of a cloud, shared by concurrent callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nodeyard_driver::{CloudImage, Error};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The last list. It is cached because every request asks whether its image exists.
#[derive(Debug)]
pub(super) struct ImageList {
    lifetime: Duration,
    /// Incremented by each invalidation.
    changes: AtomicU64,
    last: Mutex<Option<Listed>>,
}

#[derive(Debug)]
struct Listed {
    images: Arc<[CloudImage]>,
    at: Instant,
    /// The count when the list was requested.
    changes: u64,
}

impl ImageList {
    pub(super) fn new(lifetime: Duration) -> Self {
        Self {
            lifetime,
            changes: AtomicU64::new(0),
            last: Mutex::new(None),
        }
    }

    /// Returns the cached list, or calls `list` if it has expired. Concurrent callers share one call.
    pub(super) async fn recent(
        &self,
        list: impl Future<Output = Result<Vec<CloudImage>, Error>> + Send,
    ) -> Result<Arc<[CloudImage]>, Error> {
        self.not_older_than(self.lifetime, list).await
    }

    /// Returns the cached list unless it is older than `lifetime`.
    pub(super) async fn not_older_than(
        &self,
        lifetime: Duration,
        list: impl Future<Output = Result<Vec<CloudImage>, Error>> + Send,
    ) -> Result<Arc<[CloudImage]>, Error> {
        let mut last = self.last.lock().await;
        let changes = self.changes.load(Ordering::SeqCst);
        if let Some(known) = &*last
            && known.changes == changes
            && known.at.elapsed() < lifetime.min(self.lifetime)
        {
            return Ok(Arc::clone(&known.images));
        }
        let at = Instant::now();
        let images: Arc<[CloudImage]> = list.await?.into();
        *last = Some(Listed {
            images: Arc::clone(&images),
            at,
            changes,
        });
        Ok(images)
    }

    /// Makes the next caller list again.
    pub(super) fn invalidate(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME: Duration = Duration::from_secs(30);

    async fn nothing() -> Result<Vec<CloudImage>, Error> {
        Ok(Vec::new())
    }

    async fn not_asked() -> Result<Vec<CloudImage>, Error> {
        Err(Error::retry("asked"))
    }

    async fn advance(secs: u64) {
        tokio::time::advance(Duration::from_secs(secs)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_is_cached_until_it_expires_or_is_invalidated() {
        let list = ImageList::new(LIFETIME);
        list.recent(nothing()).await.unwrap();
        advance(29).await;
        assert!(list.recent(not_asked()).await.is_ok());
        advance(1).await;
        assert!(list.recent(not_asked()).await.is_err());
        list.recent(nothing()).await.unwrap();
        advance(1).await;
        let impatient = list.not_older_than(Duration::from_secs(1), not_asked());
        assert!(impatient.await.is_err());
        list.invalidate();
        assert!(list.recent(not_asked()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_during_a_list_invalidates_it() {
        let list = ImageList::new(LIFETIME);
        let slow = async {
            list.invalidate();
            nothing().await
        };
        list.recent(slow).await.unwrap();
        assert!(list.recent(not_asked()).await.is_err());
    }
}
