//! The combined progress of several downloads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nodeyard_image::ProgressFn;

/// The received and total bytes of each download; a total of 0 is unknown.
#[derive(Debug, Clone)]
pub(super) struct DownloadProgress(Arc<[(AtomicU64, AtomicU64)]>);

impl DownloadProgress {
    pub(super) fn new(downloads: usize) -> Self {
        Self((0..downloads).map(|_| Default::default()).collect())
    }

    /// Returns the progress callback of a download.
    pub(super) fn reporter(&self, download: usize) -> ProgressFn {
        let download_progress = Arc::clone(&self.0);
        Arc::new(move |done, all| {
            if let Some((known_done, known_all)) = download_progress.get(download) {
                known_done.store(done, Ordering::Relaxed);
                known_all.store(all.unwrap_or(0), Ordering::Relaxed);
            }
        })
    }

    /// Returns the sums of received and total bytes; the total is 0 unless all are known.
    pub(super) fn total(&self) -> (u64, u64) {
        let mut sum = (0_u64, Some(0_u64));
        for (done, all) in &*self.0 {
            let all = Some(all.load(Ordering::Relaxed)).filter(|all| *all > 0);
            sum.0 = sum.0.saturating_add(done.load(Ordering::Relaxed));
            sum.1 = sum.1.zip(all).map(|(sum, all)| sum.saturating_add(all));
        }
        (sum.0, sum.1.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_of_downloads_is_summed() {
        let download_progress = DownloadProgress::new(2);
        let (first, second) = (download_progress.reporter(0), download_progress.reporter(1));
        first(10, Some(100));
        assert_eq!(download_progress.total(), (10, 0));
        second(5, Some(50));
        assert_eq!(download_progress.total(), (15, 150));
        first(100, Some(100));
        assert_eq!(download_progress.total(), (105, 150));
        second(6, None);
        assert_eq!(download_progress.total(), (106, 0));
    }
}
