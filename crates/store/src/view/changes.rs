//! Tells subscribers what changed, without keeping more than a bounded set for the slow ones.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use super::Key;

/// Keys a subscriber may fall behind before it is told to look at everything.
const BACKLOG: usize = 16_384;

/// What changed since the last time a subscriber asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// These appeared, changed, vanished, or were locked or unlocked.
    Keys(BTreeSet<Key>),
    /// Too many to name.
    Everything,
}

/// The changes of a view, since it was made or since the last [`Changes::next`].
#[derive(Debug)]
pub struct Changes {
    mailbox: Arc<Mailbox>,
}

#[derive(Debug, Default)]
struct Mailbox {
    state: Mutex<Pending>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    keys: BTreeSet<Key>,
    everything: bool,
    closed: bool,
}

/// The view's side of all its [`Changes`].
#[derive(Debug, Default)]
pub(super) struct Subscribers(Vec<Weak<Mailbox>>);

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Changes {
    /// Waits for the next change; none when the store has been closed.
    pub async fn next(&mut self) -> Option<Change> {
        loop {
            {
                let mut pending = self.mailbox.lock();
                if pending.everything {
                    pending.everything = false;
                    return Some(Change::Everything);
                }
                if !pending.keys.is_empty() {
                    return Some(Change::Keys(std::mem::take(&mut pending.keys)));
                }
                if pending.closed {
                    return None;
                }
            }
            // A notification between the look and the wait is kept for us.
            self.mailbox.wake.notified().await;
        }
    }
}

impl Subscribers {
    pub(super) fn subscribe(&mut self) -> Changes {
        let mailbox = Arc::new(Mailbox::default());
        self.0.push(Arc::downgrade(&mailbox));
        Changes { mailbox }
    }

    pub(super) fn changed(&mut self, key: &Key) {
        self.each(|pending| {
            if pending.everything {
                return;
            }
            pending.keys.insert(Arc::clone(key));
            if pending.keys.len() > BACKLOG {
                pending.keys.clear();
                pending.everything = true;
            }
        });
    }

    pub(super) fn close(&mut self) {
        self.each(|pending| pending.closed = true);
    }

    fn each(&mut self, mut tell: impl FnMut(&mut Pending)) {
        self.0.retain(|mailbox| {
            let Some(mailbox) = mailbox.upgrade() else {
                return false;
            };
            tell(&mut mailbox.lock());
            mailbox.wake.notify_one();
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn many_changes_of_one_key_are_told_once() {
        let mut subscribers = Subscribers::default();
        let mut changes = subscribers.subscribe();
        for key in ["b", "a", "b"] {
            subscribers.changed(&Key::from(key));
        }
        let keys = ["a", "b"].map(Key::from).into();
        assert_eq!(changes.next().await, Some(Change::Keys(keys)));
        subscribers.close();
        assert_eq!(changes.next().await, None);
    }

    #[tokio::test]
    async fn a_slow_subscriber_is_told_to_look_at_everything() {
        let mut subscribers = Subscribers::default();
        let mut changes = subscribers.subscribe();
        for number in 0..=BACKLOG + 10 {
            subscribers.changed(&Key::from(number.to_string()));
        }
        assert_eq!(changes.next().await, Some(Change::Everything));
        subscribers.changed(&Key::from("later"));
        let keys = [Key::from("later")].into();
        assert_eq!(changes.next().await, Some(Change::Keys(keys)));
    }
}
