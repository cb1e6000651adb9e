//! Deletes abandoned contenders in the background. See the [parent module](super).

use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot, watch};

use crate::error::{Error, Result};
use crate::ext;
use crate::path::TreePath;
use crate::tree::{SessionId, Tree, Version};

/// Sends contenders to the clean-up task.
#[derive(Debug, Clone)]
pub(super) struct CleanupHandle {
    tree: Arc<dyn Tree>,
    queue: mpsc::UnboundedSender<PendingRemoval>,
    pending: Arc<watch::Sender<usize>>,
}

/// A contender that may exist. Deleted in the background when this is dropped.
#[derive(Debug)]
pub(super) struct ContenderCleanup {
    cleanup: CleanupHandle,
    removal: Option<PendingRemoval>,
}

#[derive(Debug)]
struct PendingRemoval {
    contender: ContenderRecord,
    done: Option<oneshot::Sender<Result<()>>>,
}

#[derive(Debug, Clone)]
struct ContenderRecord {
    dir: TreePath,
    prefix: String,
    /// The full path, once the create was acknowledged.
    path: Option<TreePath>,
    /// `None` for a persistent contender, which any session may delete.
    session: Option<SessionId>,
}

impl CleanupHandle {
    pub(super) fn spawn(tree: Arc<dyn Tree>) -> Self {
        let (queue, removals) = mpsc::unbounded_channel();
        let pending = Arc::new(watch::Sender::new(0));
        tokio::spawn(run(Arc::clone(&tree), removals, Arc::clone(&pending)));
        Self {
            tree,
            queue,
            pending,
        }
    }

    pub(super) async fn settled(&self) {
        let mut pending = self.pending.subscribe();
        // The sender lives as long as `self`, so this cannot fail.
        let _ = pending.wait_for(|pending| *pending == 0).await;
    }

    pub(super) fn register(
        &self,
        dir: TreePath,
        prefix: String,
        session: Option<SessionId>,
    ) -> ContenderCleanup {
        ContenderCleanup {
            cleanup: self.clone(),
            removal: Some(PendingRemoval {
                contender: ContenderRecord {
                    dir,
                    prefix,
                    path: None,
                    session,
                },
                done: None,
            }),
        }
    }

    fn push(&self, removal: PendingRemoval) {
        self.pending.send_modify(|pending| *pending += 1);
        if self.queue.send(removal).is_err() {
            // The runtime is shutting down, and the session ends with it.
            self.pending.send_modify(|pending| *pending -= 1);
        }
    }
}

impl ContenderCleanup {
    /// Sets the path of the contender. If unknown, it is searched by its prefix.
    pub(super) fn set_path(&mut self, path: Option<TreePath>) {
        if let Some(removal) = &mut self.removal {
            removal.contender.path = path;
        }
    }

    /// Deletes the contender. If the future is dropped, the task continues.
    pub(super) async fn remove(mut self) -> Result<()> {
        let Some(child) = self
            .removal
            .as_ref()
            .map(|removal| removal.contender.clone())
        else {
            return Ok(());
        };
        match child.remove_now(&*self.cleanup.tree).await {
            Err(Error::ConnectionLoss) => {}
            result => {
                self.removal = None;
                return result;
            }
        }
        let Some(mut removal) = self.removal.take() else {
            return Ok(());
        };
        let (done, answer) = oneshot::channel();
        removal.done = Some(done);
        self.cleanup.push(removal);
        answer.await.unwrap_or(Err(Error::Closed))
    }

    /// Keeps the contender.
    pub(super) fn keep(mut self) {
        self.removal = None;
    }
}

impl Drop for ContenderCleanup {
    fn drop(&mut self) {
        if let Some(removal) = self.removal.take() {
            self.cleanup.push(removal);
        }
    }
}

impl ContenderRecord {
    async fn remove(&self, tree: &dyn Tree) -> Result<()> {
        loop {
            match self.remove_now(tree).await {
                Err(Error::ConnectionLoss) => {}
                result => return result,
            }
            if let Err(Error::Closed) = ext::reconnected(tree).await {
                return Ok(());
            }
        }
    }

    async fn remove_now(&self, tree: &dyn Tree) -> Result<()> {
        let result = match self.session {
            Some(session) => self.delete(&*tree.pinned(session)).await,
            None => self.delete(tree).await,
        };
        match result {
            // The session has ended, which deleted the contender.
            Err(Error::SessionExpired | Error::Closed) if self.session.is_some() => Ok(()),
            // A persistent contender is deleted in the next session.
            Err(Error::SessionExpired) => Err(Error::ConnectionLoss),
            result => result,
        }
    }

    async fn delete(&self, tree: &dyn Tree) -> Result<()> {
        if let Some(path) = &self.path {
            return self.delete_path(tree, path).await;
        }
        // The create may still be in flight. Later operations take effect after it; after a lost connection, `sync`
        // ensures that.
        for name in find(tree, &self.dir, &self.prefix).await? {
            self.delete_path(tree, &self.dir.join(&name)?).await?;
        }
        Ok(())
    }

    /// Deletes the contender, unless it is a persistent one that was adopted.
    async fn delete_path(&self, tree: &dyn Tree, path: &TreePath) -> Result<()> {
        let version = match self.session {
            Some(_) => Version::Any,
            None => Version::Exactly(0),
        };
        match tree.delete(path, version).await {
            Err(Error::BadVersion { .. }) if self.session.is_none() => Ok(()),
            Ok(()) | Err(Error::NoNode { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Returns the names in a lock directory that have this prefix.
pub(super) async fn find(tree: &dyn Tree, dir: &TreePath, prefix: &str) -> Result<Vec<String>> {
    tree.sync().await?;
    let mut names = ext::child_names(tree, dir).await?;
    names.retain(|name| name.starts_with(prefix));
    Ok(names)
}

async fn run(
    tree: Arc<dyn Tree>,
    mut removals: mpsc::UnboundedReceiver<PendingRemoval>,
    pending: Arc<watch::Sender<usize>>,
) {
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            removal = removals.recv() => match removal {
                Some(removal) => running.push(finish(&*tree, removal)),
                None => break,
            },
            Some(()) = running.next(), if !running.is_empty() => {
                pending.send_modify(|pending| *pending -= 1);
            }
        }
    }
    while running.next().await.is_some() {
        pending.send_modify(|pending| *pending -= 1);
    }
}

async fn finish(tree: &dyn Tree, removal: PendingRemoval) {
    let result = removal.contender.remove(tree).await;
    match removal.done {
        Some(done) => {
            // Fails if the release was cancelled.
            let _ = done.send(result);
        }
        None => {
            if let Err(error) = result {
                tracing::warn!(
                    dir = %removal.contender.dir,
                    error = &error as &dyn std::error::Error,
                    "failed to delete lock contender; it remains until the session ends"
                );
            }
        }
    }
}
