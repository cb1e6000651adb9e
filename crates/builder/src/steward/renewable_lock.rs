//! A lock that is held for as long as a job takes, which may be longer than a session lasts.

use nodeyard_store::lock::{Lock, LockGuard};
use nodeyard_store::{Result, ext};

/// A lock that is taken again when its session was lost. Meanwhile others may have had it: whatever is written
/// under a claim depends on what is read first.
#[derive(Debug)]
pub(super) struct RenewableLock {
    lock: Lock,
    guard: LockGuard,
}

impl RenewableLock {
    /// None if somebody else has it.
    pub(super) async fn try_acquire(lock: Lock) -> Result<Option<Self>> {
        let guard = lock.try_acquire().await?;
        // What was locked may be gone when the lock is taken again, and is not to be brought back.
        let lock = lock.of_existing();
        Ok(guard.map(|guard| Self { lock, guard }))
    }

    pub(super) fn guard(&self) -> &LockGuard {
        &self.guard
    }

    /// After the connection or the session was lost: waits until it is back, and takes the lock again if need be.
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
