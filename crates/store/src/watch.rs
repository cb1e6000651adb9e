//! How changes reach those who watch: an ordered queue per watcher that cannot grow without limit.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{Notify, oneshot};

use crate::path::TreePath;

/// Events a slow watcher may fall behind before they are replaced by one [`WatchEvent::Gap`].
const BACKLOG: usize = 65_536;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    Created(TreePath),
    Changed(TreePath),
    Deleted(TreePath),
    /// Events may be missing here: the connection was away, the session is a new one, or the watcher
    /// was too slow. Whoever keeps a copy lists everything again.
    Gap,
}

/// The receiving end of a recursive watch. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watcher {
    queue: Arc<Queue>,
}

/// The sending end, kept by a backend. A watcher that was dropped is noticed at the next event.
#[derive(Debug, Clone)]
pub struct WatchSender {
    queue: Weak<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<WatchEvent>,
    closed: bool,
}

/// A sender and its watcher.
pub fn channel() -> (WatchSender, Watcher) {
    let queue = Arc::new(Queue::default());
    let sender = WatchSender {
        queue: Arc::downgrade(&queue),
    };
    (sender, Watcher { queue })
}

impl Queue {
    /// A panic while the lock is held cannot leave the queue half changed, so poison is ignored.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watcher {
    /// The next event, or none once the store is closed.
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

    /// How many events are here already.
    pub fn waiting(&self) -> usize {
        self.queue.lock().events.len()
    }

    /// An event that is here already.
    pub fn try_next(&mut self) -> Option<WatchEvent> {
        self.queue.lock().events.pop_front()
    }
}

impl WatchSender {
    /// False when the watcher is gone, so that the backend forgets it.
    pub fn send(&self, event: WatchEvent) -> bool {
        let Some(queue) = self.queue.upgrade() else {
            return false;
        };
        let mut state = queue.lock();
        if event == WatchEvent::Gap || state.events.len() >= BACKLOG {
            state.events.clear();
            state.events.push_back(WatchEvent::Gap);
        } else {
            state.events.push_back(event);
        }
        drop(state);
        queue.wake.notify_one();
        true
    }

    pub fn is_dropped(&self) -> bool {
        self.queue.strong_count() == 0
    }

    /// No more events will come.
    pub fn close(&self) {
        if let Some(queue) = self.queue.upgrade() {
            queue.lock().closed = true;
            queue.wake.notify_one();
        }
    }
}

/// Tells once that a record changed, or that the session or connection did. See
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

    /// Returns when there is reason to look again.
    pub async fn fired(self) {
        // A dropped sender means that the connection or the store went away: a reason to look, too.
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
        for _ in 0..=BACKLOG {
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
