//! Leader election: whoever holds the lock leads.

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
    /// The identifier tells the candidates apart for whoever looks; see [`identifier`].
    pub fn new(locks: &Locks, path: TreePath, identifier: &str) -> Self {
        Self {
            lock: locks.lock(path).identifier(identifier),
        }
    }

    /// Waits until we lead. The leadership ends with the guard: by its release, or by
    /// [`LockGuard::lost`].
    pub async fn lead(&self) -> Result<LockGuard> {
        self.lock.acquire().await
    }

    /// Waits until we lead, and works until the work is done; then steps down. If the leadership is
    /// lost first, the work is dropped where it waits and begun anew when we lead again.
    ///
    /// The work is given a handle on the store that ends with the leadership.
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
                    tracing::warn!(election = %self.lock.dir(), "leadership lost with the session");
                }
            }
        }
    }

    /// The leader and those who wait, in their order.
    pub async fn candidates(&self) -> Result<Vec<LockContender>> {
        self.lock.contenders().await
    }
}

/// How a process names itself in an election: `<hostname>-<process id>`.
pub fn identifier(hostname: &str) -> String {
    format!("{hostname}-{}", std::process::id())
}
