//! Those who wait for one thing to change. Unlike a stream they are woken for nothing else, however much happens.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

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
    /// Ends with the next change from now on, even if it is first polled later. So a look between the two misses
    /// nothing.
    pub(crate) fn next_change(&self) -> Pin<Box<OwnedNotified>> {
        let mut rung = Box::pin(Arc::clone(&self.bell).notified_owned());
        rung.as_mut().enable();
        rung
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
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn only_those_concerned_are_woken() {
        let waiting = Arc::new(Waiting::default());
        let waiter = waiting.join(Kind::Lease, "a");
        let same = waiting.join(Kind::Lease, "a");
        let (mut change, other) = (waiter.next_change(), same.next_change());
        waiting.ring(Kind::Lease, &"b".into());
        waiting.ring(Kind::Request, &"a".into());
        assert!(change.as_mut().now_or_never().is_none());
        waiting.ring(Kind::Lease, &"a".into());
        change.await;
        other.await;
        drop(same);
        assert_eq!(waiting.bells().len(), 1);
        drop(waiter);
        assert!(waiting.bells().is_empty());
    }
}
