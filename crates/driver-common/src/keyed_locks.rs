//! [`KeyedLocks`]: one lock for each key.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// Locks for work that may run once per key at a time, such as the pull of an image. A lock exists while it is held or
/// waited for.
#[derive(Debug, Default)]
pub struct KeyedLocks(Mutex<HashMap<Box<str>, Weak<AsyncMutex<()>>>>);

impl KeyedLocks {
    /// Acquires the lock of this key.
    pub async fn lock(&self, key: &str) -> OwnedMutexGuard<()> {
        self.of(key).lock_owned().await
    }

    fn of(&self, key: &str) -> Arc<AsyncMutex<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(AsyncMutex::new(()));
        locks.insert(key.into(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn keys_do_not_wait_for_each_other() {
        let locks = KeyedLocks::default();
        let a = locks.lock("a").await;
        let _b = locks.lock("b").await;
        tokio::select! {
            biased;
            _ = locks.lock("a") => panic!("the lock is held twice"),
            () = std::future::ready(()) => {}
        }
        drop(a);
        let _a = locks.lock("a").await;
        drop(locks.lock("c").await);
        let _d = locks.lock("d").await;
        assert_eq!(locks.0.lock().unwrap().len(), 3, "unused locks are removed");
    }
}
