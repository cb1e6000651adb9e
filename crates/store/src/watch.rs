//! Watch events, delivered by a bounded queue per watcher.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{Notify, oneshot};

use crate::path::TreePath;

/// The capacity of a watcher's queue; on overflow its events are replaced by one [`WatchEvent::Gap`].
const MAX_QUEUED_EVENTS: usize = 65_536;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    Created(TreePath),
    Changed(TreePath),
    Deleted(TreePath),
    /// Events may have been missed: the connection was lost, the session is new, or the watcher was too slow. Caches
    /// must be reloaded.
    Gap,
}

/// The receiving end of a recursive watch. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watcher {
    queue: Arc<EventQueue>,
}

/// The sending end, kept by a backend.
#[derive(Debug, Clone)]
pub struct WatchSender {
    queue: Weak<EventQueue>,
}

#[derive(Debug, Default)]
struct EventQueue {
    state: Mutex<QueueState>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    events: VecDeque<WatchEvent>,
    closed: bool,
}

/// Creates a sender and its watcher.
pub fn channel() -> (WatchSender, Watcher) {
    let queue = Arc::new(EventQueue::default());
    let sender = WatchSender {
        queue: Arc::downgrade(&queue),
    };
    (sender, Watcher { queue })
}

impl EventQueue {
    /// Ignores poisoning, since the queue is consistent at every panic.
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watcher {
    /// Waits for the next event. Returns `None` once the store is closed.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        loop {
            let woken = self.queue.wake.notified();
            {
                let mut state = self.queue.lock();
                if let Some(event) = state.events.pop_front() {
                    return Some(event);
                }
                if state.closed {
                    return None;
                }
            }
            woken.await;
        }
    }

    /// Returns the number of queued events.
    pub fn waiting(&self) -> usize {
        self.queue.lock().events.len()
    }

    /// Returns the next queued event without waiting.
    pub fn try_next(&mut self) -> Option<WatchEvent> {
        self.queue.lock().events.pop_front()
    }
}

impl WatchSender {
    /// Queues an event. Returns false if the watcher was dropped.
    pub fn send(&self, event: WatchEvent) -> bool {
        let Some(queue) = self.queue.upgrade() else {
            return false;
        };
        let mut state = queue.lock();
        if event == WatchEvent::Gap || state.events.len() >= MAX_QUEUED_EVENTS {
            state.events.clear();
            state.events.push_back(WatchEvent::Gap);
        } else {
            state.events.push_back(event);
        }
        drop(state);
        queue.wake.notify_one();
        true
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.queue.strong_count() == 0
    }

    /// Ends the stream of events.
    pub fn close(&self) {
        if let Some(queue) = self.queue.upgrade() {
            queue.lock().closed = true;
            queue.wake.notify_one();
        }
    }
}

/// Fires once when a record, the session or the connection changes. See
/// [`Tree::watch_once`](crate::Tree::watch_once).
#[derive(Debug)]
pub struct Once {
    receiver: oneshot::Receiver<()>,
}

impl Once {
    pub fn channel() -> (oneshot::Sender<()>, Once) {
        let (sender, receiver) = oneshot::channel();
        (sender, Once { receiver })
    }

    /// Waits until the watch fires.
    pub async fn fired(self) {
        // A dropped sender means that the connection or the store was closed, which counts as a change.
        let _ = self.receiver.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> TreePath {
        TreePath::new(text).unwrap()
    }

    #[tokio::test]
    async fn events_arrive_in_order_and_the_end_after_them() {
        let (sender, mut watcher) = channel();
        sender.send(WatchEvent::Created(path("/a")));
        sender.send(WatchEvent::Deleted(path("/a")));
        sender.close();
        assert_eq!(watcher.next().await, Some(WatchEvent::Created(path("/a"))));
        assert_eq!(watcher.next().await, Some(WatchEvent::Deleted(path("/a"))));
        assert_eq!(watcher.next().await, None);
    }

    #[tokio::test]
    async fn a_slow_watcher_gets_a_gap_instead_of_eating_memory() {
        let (sender, mut watcher) = channel();
        for _ in 0..=MAX_QUEUED_EVENTS {
            assert!(sender.send(WatchEvent::Changed(path("/a"))));
        }
        assert_eq!(watcher.next().await, Some(WatchEvent::Gap));
        assert_eq!(watcher.try_next(), None);
    }

    #[test]
    fn a_dropped_watcher_is_noticed() {
        let (sender, watcher) = channel();
        drop(watcher);
        assert!(!sender.send(WatchEvent::Gap));
        assert!(sender.is_dropped());
    }
}
