//! Waits for changes of single objects. In contrast to an event stream, a waiter is woken by no other object.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use super::ObjectKind;

type WaitKey = (ObjectKind, Arc<str>);

/// The waiters for each object.
#[derive(Debug, Default)]
pub(crate) struct ChangeWaiters(Mutex<HashMap<WaitKey, Weak<Notify>>>);

/// A registered waiter, until it is dropped.
pub(crate) struct ChangeWaiter {
    waiters: Arc<ChangeWaiters>,
    key: WaitKey,
    notifier: Arc<Notify>,
}

impl ChangeWaiters {
    /// Registers a waiter for an object.
    pub(crate) fn join(self: &Arc<Self>, kind: ObjectKind, id: &str) -> ChangeWaiter {
        let key: WaitKey = (kind, id.into());
        let mut notifiers = self.notifiers();
        let notifier = notifiers.get(&key).and_then(Weak::upgrade);
        let notifier = notifier.unwrap_or_default();
        notifiers.insert(key.clone(), Arc::downgrade(&notifier));
        drop(notifiers);
        ChangeWaiter {
            waiters: Arc::clone(self),
            key,
            notifier,
        }
    }

    /// Wakes the waiters for an object.
    pub(super) fn notify(&self, kind: ObjectKind, id: &Arc<str>) {
        let notifiers = self.notifiers();
        if notifiers.is_empty() {
            return;
        }
        let notifier = notifiers
            .get(&(kind, Arc::clone(id)))
            .and_then(Weak::upgrade);
        if let Some(notifier) = notifier {
            notifier.notify_waiters();
        }
    }

    /// Wakes all waiters, when it is unknown what has changed.
    pub(super) fn notify_all(&self) {
        for notifier in self.notifiers().values().filter_map(Weak::upgrade) {
            notifier.notify_waiters();
        }
    }

    fn notifiers(&self) -> MutexGuard<'_, HashMap<WaitKey, Weak<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChangeWaiter {
    /// Returns a future that completes with the next change after this call, even if it is first polled later. So a
    /// change while the caller reads the object is not missed.
    pub(crate) fn next_change(&self) -> Pin<Box<OwnedNotified>> {
        let mut notified = Box::pin(Arc::clone(&self.notifier).notified_owned());
        notified.as_mut().enable();
        notified
    }
}

impl Drop for ChangeWaiter {
    fn drop(&mut self) {
        let mut notifiers = self.waiters.notifiers();
        // Removes the entry with its last waiter.
        if Arc::strong_count(&self.notifier) == 1 {
            notifiers.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn only_waiters_for_the_object_are_woken() {
        let waiters = Arc::new(ChangeWaiters::default());
        let waiter = waiters.join(ObjectKind::Lease, "a");
        let same = waiters.join(ObjectKind::Lease, "a");
        let (mut change, other) = (waiter.next_change(), same.next_change());
        waiters.notify(ObjectKind::Lease, &"b".into());
        waiters.notify(ObjectKind::Request, &"a".into());
        assert!(change.as_mut().now_or_never().is_none());
        waiters.notify(ObjectKind::Lease, &"a".into());
        change.await;
        other.await;
        drop(same);
        assert_eq!(waiters.notifiers().len(), 1);
        drop(waiter);
        assert!(waiters.notifiers().is_empty());
    }
}
