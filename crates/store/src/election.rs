//! Leader election by a lock.

use std::future::Future;
use std::sync::Arc;

use crate::error::Result;
use crate::lock::{Lock, LockContender, LockGuard, Locks};
use crate::path::TreePath;
use crate::tree::Tree;

/// One candidate of an election.
#[derive(Debug, Clone)]
pub struct Election {
    lock: Lock,
}

impl Election {
    /// Creates a candidate. The identifier is shown to other candidates; see [`identifier`].
    pub fn new(locks: &Locks, path: TreePath, identifier: &str) -> Self {
        Self {
            lock: locks.lock(path).identifier(identifier),
        }
    }

    /// Waits until this candidate is the leader. Leadership ends when the guard is released, or on
    /// [`LockGuard::lost`].
    pub async fn lead(&self) -> Result<LockGuard> {
        self.lock.acquire().await
    }

    /// Runs `work` while this candidate is the leader, then steps down. If leadership is lost, the work is cancelled
    /// and started again after the next election.
    ///
    /// The work receives a store handle that is valid only during the leadership.
    pub async fn run<W, F>(&self, mut work: W) -> Result<F::Output>
    where
        W: FnMut(Arc<dyn Tree>) -> F,
        F: Future,
    {
        loop {
            let leadership = self.lead().await?;
            tokio::select! {
                output = work(Arc::clone(leadership.tree())) => {
                    leadership.release().await?;
                    return Ok(output);
                }
                () = leadership.lost() => {
                    tracing::warn!(election = %self.lock.dir(), "lost leadership because the session expired");
                }
            }
        }
    }

    /// Returns the leader and the waiting candidates, in order.
    pub async fn candidates(&self) -> Result<Vec<LockContender>> {
        self.lock.contenders().await
    }
}

/// Returns the identifier of a process: `<hostname>-<process id>`.
pub fn identifier(hostname: &str) -> String {
    format!("{hostname}-{}", std::process::id())
}
