//! The backends under test, behind one small interface.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_store::embedded::Embedded;
use nodeyard_store::{SessionId, Tree, TreePath};

/// So long that only a hang exceeds it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A tree that nobody else uses.
#[async_trait]
pub(crate) trait Backend: Send + Sync {
    async fn session(&self) -> Arc<dyn Tree>;

    /// Ends a session as the death of its process would, without a goodbye. The ephemeral records go
    /// when the backend notices.
    async fn kill(&self, tree: Arc<dyn Tree>);
}

pub(crate) struct EmbeddedBackend {
    store: Arc<Embedded>,
    _directory: tempfile::TempDir,
}

pub(crate) async fn embedded() -> EmbeddedBackend {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(directory.path()).unwrap();
    EmbeddedBackend {
        store,
        _directory: directory,
    }
}

#[async_trait]
impl Backend for EmbeddedBackend {
    async fn session(&self) -> Arc<dyn Tree> {
        self.store.session()
    }

    async fn kill(&self, tree: Arc<dyn Tree>) {
        drop(tree);
    }
}

pub(crate) fn p(path: &str) -> TreePath {
    TreePath::new(path).unwrap()
}

pub(crate) fn id_of(tree: &Arc<dyn Tree>) -> SessionId {
    tree.session().borrow().id().unwrap()
}

/// Fails the test instead of hanging it.
pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("the test hangs")
}

/// Waits until the condition holds.
pub(crate) async fn eventually<F>(mut condition: impl FnMut() -> F)
where
    F: Future<Output = bool>,
{
    within(async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

pub(crate) async fn gone(tree: &Arc<dyn Tree>, path: &TreePath) {
    eventually(|| async { tree.stat(path).await.unwrap().is_none() }).await;
}
