//! The images of a cloud, listed once for all who ask.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nodeyard_driver::{CloudImage, Error};
use nodeyard_model::Timestamp;
use tokio::sync::Mutex;

/// The last list. It is believed for a while, since every request asks whether its image is there; whoever knows that
/// it is out of date says so.
#[derive(Debug)]
pub(super) struct ImageList {
    lifetime: Duration,
    /// Counts what is known to have changed.
    changes: AtomicU64,
    last: Mutex<Option<Listed>>,
}

#[derive(Debug)]
struct Listed {
    images: Arc<[CloudImage]>,
    at: Timestamp,
    /// The count when the list was asked for.
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

    /// What is asked of the cloud with `list` if the last answer is too old. Who comes meanwhile gets the same answer.
    pub(super) async fn recent(
        &self,
        now: Timestamp,
        list: impl Future<Output = Result<Vec<CloudImage>, Error>> + Send,
    ) -> Result<Arc<[CloudImage]>, Error> {
        self.not_older_than(self.lifetime, now, list).await
    }

    /// The same for those who cannot wait as long.
    pub(super) async fn not_older_than(
        &self,
        lifetime: Duration,
        now: Timestamp,
        list: impl Future<Output = Result<Vec<CloudImage>, Error>> + Send,
    ) -> Result<Arc<[CloudImage]>, Error> {
        let mut last = self.last.lock().await;
        let changes = self.changes.load(Ordering::SeqCst);
        if let Some(known) = &*last
            && known.changes == changes
            && now.since(known.at) < lifetime.min(self.lifetime)
        {
            return Ok(Arc::clone(&known.images));
        }
        let images: Arc<[CloudImage]> = list.await?.into();
        *last = Some(Listed {
            images: Arc::clone(&images),
            at: now,
            changes,
        });
        Ok(images)
    }

    /// An image has come or gone.
    pub(super) fn outdated(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME: Duration = Duration::from_secs(30);

    fn at(secs: f64) -> Timestamp {
        Timestamp::from_secs(secs).unwrap()
    }

    async fn nothing() -> Result<Vec<CloudImage>, Error> {
        Ok(Vec::new())
    }

    async fn not_asked() -> Result<Vec<CloudImage>, Error> {
        Err(Error::retry("asked"))
    }

    #[tokio::test]
    async fn a_list_is_believed_until_it_is_old_or_out_of_date() {
        let list = ImageList::new(LIFETIME);
        list.recent(at(0.0), nothing()).await.unwrap();
        assert!(list.recent(at(29.0), not_asked()).await.is_ok());
        assert!(list.recent(at(30.0), not_asked()).await.is_err());
        list.recent(at(30.0), nothing()).await.unwrap();
        let impatient = list.not_older_than(Duration::from_secs(1), at(31.0), not_asked());
        assert!(impatient.await.is_err());
        list.outdated();
        assert!(list.recent(at(31.0), not_asked()).await.is_err());
    }

    #[tokio::test]
    async fn what_changes_while_it_is_listed_is_listed_again() {
        let list = ImageList::new(LIFETIME);
        let slow = async {
            list.outdated();
            nothing().await
        };
        list.recent(at(0.0), slow).await.unwrap();
        assert!(list.recent(at(1.0), not_asked()).await.is_err());
    }
}
