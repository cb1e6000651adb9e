//! A lock that is held during a job, possibly longer than a session.

use nodeyard_store::lock::{Lock, LockGuard};
use nodeyard_store::{Result, ext};

/// A lock that is reacquired after its session was lost. Others may have held it in between, so records must be read again before
/// they are written.
#[derive(Debug)]
pub(super) struct RenewableLock {
    lock: Lock,
    guard: LockGuard,
}

impl RenewableLock {
    /// Tries to acquire the lock. Returns `None` if it is held.
    pub(super) async fn try_acquire(lock: Lock) -> Result<Option<Self>> {
        let guard = lock.try_acquire().await?;
        // Reacquiring the lock must not recreate a deleted record.
        let lock = lock.of_existing();
        Ok(guard.map(|guard| Self { lock, guard }))
    }

    pub(super) fn guard(&self) -> &LockGuard {
        &self.guard
    }

    /// Waits for the connection after it was lost, and reacquires the lock if the session expired.
    pub(super) async fn renew(&mut self) -> Result<()> {
        ext::reconnected(&**self.guard.tree()).await?;
        if !self.guard.is_valid() {
            self.guard = self.lock.acquire().await?;
        }
        Ok(())
    }

    pub(super) async fn release(self) -> Result<()> {
        self.guard.release().await
    }
}
