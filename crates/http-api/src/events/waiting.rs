//! Those who wait for one thing to change. Unlike a stream they are woken for nothing else, however much happens.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use super::Kind;

type Key = (Kind, Arc<str>);

#[derive(Debug, Default)]
pub(crate) struct Waiting(Mutex<HashMap<Key, Weak<Notify>>>);

/// A wish to be woken; it ends when dropped.
pub(crate) struct Waiter {
    waiting: Arc<Waiting>,
    key: Key,
    bell: Arc<Notify>,
}

impl Waiting {
    pub(crate) fn join(self: &Arc<Self>, kind: Kind, id: &str) -> Waiter {
        let key: Key = (kind, id.into());
        let mut bells = self.bells();
        let bell = bells.get(&key).and_then(Weak::upgrade);
        let bell = bell.unwrap_or_default();
        bells.insert(key.clone(), Arc::downgrade(&bell));
        drop(bells);
        Waiter {
            waiting: Arc::clone(self),
            key,
            bell,
        }
    }

    pub(super) fn ring(&self, kind: Kind, id: &Arc<str>) {
        let bells = self.bells();
        if bells.is_empty() {
            return;
        }
        let bell = bells.get(&(kind, Arc::clone(id))).and_then(Weak::upgrade);
        if let Some(bell) = bell {
            bell.notify_waiters();
        }
    }

    /// Nobody knows what has changed.
    pub(super) fn ring_all(&self) {
        for bell in self.bells().values().filter_map(Weak::upgrade) {
            bell.notify_waiters();
        }
    }

    fn bells(&self) -> MutexGuard<'_, HashMap<Key, Weak<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter {
    /// Looks until there is something to see. `look` is called after each change, and once before.
    pub(crate) async fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            // Listening begins before the look.
            let rung = self.bell.notified();
            let mut rung = std::pin::pin!(rung);
            rung.as_mut().enable();
            if let Some(seen) = look() {
                return seen;
            }
            rung.await;
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut bells = self.waiting.bells();
        // Ours is the last one, or somebody else still waits for the same.
        if Arc::strong_count(&self.bell) == 1 {
            bells.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn only_those_concerned_are_woken() {
        let waiting = Arc::new(Waiting::default());
        let looks = Arc::new(AtomicU32::new(0));
        let waiter = waiting.join(Kind::Lease, "a");
        let counted = Arc::clone(&looks);
        let task = tokio::spawn(async move {
            waiter
                .until(|| (counted.fetch_add(1, Ordering::SeqCst) >= 1).then_some(()))
                .await;
        });
        while looks.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        waiting.ring(Kind::Lease, &"b".into());
        waiting.ring(Kind::Request, &"a".into());
        tokio::task::yield_now().await;
        assert_eq!(looks.load(Ordering::SeqCst), 1);
        waiting.ring(Kind::Lease, &"a".into());
        task.await.unwrap();
        assert!(waiting.bells().is_empty());
    }
}
