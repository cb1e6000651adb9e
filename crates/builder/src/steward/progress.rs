//! The progress of the jobs of an image.
//!
//! An ephemeral record below `/nodeyard` for each job, written at most once a second. It is deleted with the job, or with the
//! session of its steward.

use std::time::Duration;

use bytes::Bytes;
use nodeyard_model::{BuildId, ImageName, ProviderName, layout};
pub use nodeyard_plan::images::ImageJobProgress;
use nodeyard_store::{CreateMode, Error, Result, Tree, TreePath, Version, ext};
use tokio::time::Instant;

use super::context::now;

const INTERVAL: Duration = Duration::from_secs(1);

/// The time limit for a write, which delays the job.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the running jobs of an image.
pub async fn list(tree: &dyn Tree, image: &ImageName) -> Result<Vec<ImageJobProgress>> {
    let dir = TreePath::new(layout::image_jobs(image))?;
    let records = match tree.list(&dir).await {
        Ok(records) => records,
        Err(Error::NoNode { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let records = records.iter();
    Ok(records
        .filter_map(|(_, record)| serde_json::from_slice(&record.data).ok())
        .collect())
}

/// Writes the progress of one job. Failed writes are ignored.
pub(super) struct ProgressReporter<'t> {
    tree: &'t dyn Tree,
    path: Option<TreePath>,
    progress: ImageJobProgress,
    written: Option<Instant>,
    /// When to write progress that was held back.
    due: Option<Instant>,
}

impl<'t> ProgressReporter<'t> {
    pub(super) async fn start(
        tree: &'t dyn Tree,
        image: &ImageName,
        build: BuildId,
        provider: Option<&ProviderName>,
    ) -> Self {
        let name = match provider {
            Some(provider) => format!("{}/{build}.{provider}", layout::image_jobs(image)),
            None => format!("{}/{build}", layout::image_jobs(image)),
        };
        let mut reporter = Self {
            tree,
            path: TreePath::new(name).ok(),
            progress: ImageJobProgress {
                build,
                provider: provider.cloned(),
                since: now(),
                done: None,
            },
            written: None,
            due: None,
        };
        reporter.write().await;
        reporter
    }

    pub(super) async fn report(&mut self, numerator: u64, denominator: u64) {
        self.progress.done = Some((numerator, denominator));
        match self.written {
            Some(written) if written.elapsed() < INTERVAL => self.due = Some(written + INTERVAL),
            _ => self.write().await,
        }
    }

    /// Writes progress that was held back, when it is due; never returns if there is none.
    pub(super) async fn write_due(&mut self) {
        match self.due {
            Some(due) => {
                tokio::time::sleep_until(due).await;
                self.write().await;
            }
            None => std::future::pending().await,
        }
    }

    pub(super) async fn end(self) {
        if let Some(path) = &self.path {
            let _ = tokio::time::timeout(WRITE_TIMEOUT, ext::delete_opt(self.tree, path)).await;
        }
    }

    async fn write(&mut self) {
        self.written = Some(Instant::now());
        let Some(path) = &self.path else {
            self.due = None;
            return;
        };
        let data = Bytes::from(crate::jobs::to_payload(&self.progress));
        let written =
            tokio::time::timeout(WRITE_TIMEOUT, put_ephemeral(self.tree, path, data)).await;
        if let Ok(Err(error)) = written {
            let error = &error as &dyn std::error::Error;
            tracing::debug!(%path, error, "failed to record job progress");
        }
        self.due = None;
    }
}

/// Writes an ephemeral record.
pub(super) async fn put_ephemeral(tree: &dyn Tree, path: &TreePath, data: Bytes) -> Result<()> {
    match tree.set(path, data.clone(), Version::Any).await {
        Err(Error::NoNode { .. }) => {}
        result => return result.map(drop),
    }
    if let Some(dir) = path.parent() {
        ext::ensure_path(tree, &dir).await?;
    }
    tree.create(path, data, CreateMode::Ephemeral)
        .await
        .map(drop)
}
