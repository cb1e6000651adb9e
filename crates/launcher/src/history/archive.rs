//! Stores explanations of ended requests, one record per request. The oldest are deleted when there are too many.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use nodeyard_model::{Clock, RequestId, Timestamp, layout};
use nodeyard_plan::explain::EndedRequest;
use nodeyard_store::{CreateMode, Result, Tree, TreePath, ext};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// Written together, and no more than this between two pauses.
const BATCH: usize = 64;
const PAUSE: Duration = Duration::from_secs(1);
/// In the store, of all launchers together.
const STORED: usize = 1000;
const STORED_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// The interval between two removals of old entries.
const PRUNE_EVERY: Duration = Duration::from_secs(60);

/// Stores the explanations it receives.
#[derive(Debug)]
pub(crate) struct Archive {
    inbox: mpsc::Receiver<Arc<EndedRequest>>,
}

pub(super) fn channel() -> (mpsc::Sender<Arc<EndedRequest>>, Archive) {
    let (sender, inbox) = mpsc::channel(BATCH);
    (sender, Archive { inbox })
}

/// Returns the stored history of a request. None if it was served quickly, ended long ago, or has not ended.
pub async fn read(tree: &dyn Tree, request: RequestId) -> Result<Option<EndedRequest>> {
    let record = ext::get_opt(tree, &path(request)?).await?;
    // An invalid record is treated as absent.
    Ok(record.and_then(|record| serde_json::from_slice(&record.data).ok()))
}

fn path(request: RequestId) -> Result<TreePath> {
    Ok(TreePath::new(layout::explanation(request))?)
}

impl Archive {
    /// Works until `stop`, and then stores what is still at hand.
    pub(crate) async fn run(mut self, tree: Arc<dyn Tree>, clock: Clock, stop: CancellationToken) {
        let mut pruned: Option<Instant> = None;
        loop {
            let first = tokio::select! {
                first = self.inbox.recv() => first,
                () = stop.cancelled() => self.inbox.try_recv().ok(),
            };
            let Some(first) = first else { return };
            tokio::select! {
                () = sleep(PAUSE) => {}
                () = stop.cancelled() => {}
            }
            let mut batch = vec![first];
            while let Ok(next) = self.inbox.try_recv() {
                batch.push(next);
            }
            let mut result = tokio::select! {
                result = ext::persist(&*tree, || write(&*tree, &batch)) => result,
                () = stop.cancelled() => write(&*tree, &batch).await,
            };
            if result.is_ok() && pruned.is_none_or(|at| at.elapsed() >= PRUNE_EVERY) {
                pruned = Some(Instant::now());
                result = prune(&*tree, clock.now()).await;
            }
            if let Err(error) = result {
                debug!(%error, "failed to store explanations of requests");
            }
        }
    }

    #[cfg(test)]
    pub(super) fn try_next(&mut self) -> Option<Arc<EndedRequest>> {
        self.inbox.try_recv().ok()
    }
}

async fn write(tree: &dyn Tree, batch: &[Arc<EndedRequest>]) -> Result<()> {
    ext::ensure_path(tree, &TreePath::new(layout::EXPLANATIONS)?).await?;
    let writes = batch.iter().map(|ended| async {
        let Ok(data) = serde_json::to_vec(&**ended) else {
            return Ok(());
        };
        let (path, data) = (path(ended.request)?, Bytes::from(data));
        match tree.create(&path, data, CreateMode::Persistent).await {
            Err(error) if !error.is_node_exists() => Err(error),
            _ => Ok(()),
        }
    });
    join_all(writes).await.into_iter().collect()
}

/// Numbers of requests grow, so the smallest are the oldest.
async fn prune(tree: &dyn Tree, now: Timestamp) -> Result<()> {
    let root = TreePath::new(layout::EXPLANATIONS)?;
    let names = ext::child_names(tree, &root).await?.into_iter();
    let ids = names.filter_map(|name| name.parse::<RequestId>().ok());
    let ids: BTreeSet<(u64, RequestId)> = ids.map(|id| (id.sequence(), id)).collect();
    let mut left = ids.len();
    for (_, id) in ids {
        let path = path(id)?;
        if left <= STORED {
            let Some(stat) = tree.stat(&path).await? else {
                continue;
            };
            let made = Timestamp::from_millis(stat.ctime);
            if now.since(made) <= STORED_FOR {
                return Ok(());
            }
        }
        ext::delete_opt(tree, &path).await?;
        left -= 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use nodeyard_plan::explain::RequestOutcome;
    use nodeyard_store::embedded::Embedded;

    use super::*;

    fn ended(number: usize) -> Arc<EndedRequest> {
        Arc::new(EndedRequest {
            request: format!("{:03}-{number:010}", 100 + number % 3)
                .parse()
                .unwrap(),
            end: RequestOutcome::Failed,
            labels: vec!["small".into()],
            requestor: None,
            event_id: None,
            ended: 1.0,
            waited: 1.0,
            worked: None,
            waited_for: Vec::new(),
            declined: Vec::new(),
        })
    }

    #[tokio::test]
    async fn the_oldest_go() {
        let directory = tempfile::tempdir().unwrap();
        let engine = Embedded::open(directory.path()).unwrap();
        let tree = engine.session();
        let all: Vec<_> = (0..STORED + 20).map(ended).collect();
        write(&*tree, &all).await.unwrap();
        let now = nodeyard_model::now();
        prune(&*tree, now).await.unwrap();
        for (index, stored) in all.iter().enumerate() {
            let found = read(&*tree, stored.request).await.unwrap();
            assert_eq!(found.is_some(), index >= 20, "{index}");
        }
        // The same request once more is no error.
        write(&*tree, &all[20..21]).await.unwrap();

        let later = now + STORED_FOR + Duration::from_secs(60);
        prune(&*tree, later).await.unwrap();
        let root = TreePath::new(layout::EXPLANATIONS).unwrap();
        assert!(ext::child_names(&*tree, &root).await.unwrap().is_empty());
        tree.close().await;
        engine.close().await;
    }
}
