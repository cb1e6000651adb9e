//! Tells subscribers what changed, without keeping more than a bounded set for the slow ones.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

/// Ids a subscriber may fall behind before it is told to look at everything.
const BACKLOG: usize = 16_384;

/// What changed since the last time a subscriber asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<I> {
    /// These appeared, changed, vanished, or were locked or unlocked.
    Ids(BTreeSet<I>),
    /// Too many to name.
    Everything,
}

/// The changes of a view, since it was made or since the last [`Changes::next`].
#[derive(Debug)]
pub struct Changes<I> {
    mailbox: Arc<Mailbox<I>>,
}

#[derive(Debug)]
struct Mailbox<I> {
    state: Mutex<Pending<I>>,
    wake: Notify,
}

#[derive(Debug)]
struct Pending<I> {
    ids: BTreeSet<I>,
    everything: bool,
    closed: bool,
}

/// The view's side of all its [`Changes`].
#[derive(Debug)]
pub(super) struct Subscribers<I>(Vec<Weak<Mailbox<I>>>);

impl<I> Mailbox<I> {
    fn lock(&self) -> MutexGuard<'_, Pending<I>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I: Clone + Ord> Changes<I> {
    /// Waits for the next change; none when the store has been closed.
    pub async fn next(&mut self) -> Option<Change<I>> {
        loop {
            {
                let mut pending = self.mailbox.lock();
                if pending.everything {
                    pending.everything = false;
                    return Some(Change::Everything);
                }
                if !pending.ids.is_empty() {
                    return Some(Change::Ids(std::mem::take(&mut pending.ids)));
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

impl<I> Default for Subscribers<I> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<I: Clone + Ord> Subscribers<I> {
    pub(super) fn subscribe(&mut self) -> Changes<I> {
        let mailbox = Arc::new(Mailbox {
            state: Mutex::new(Pending {
                ids: BTreeSet::new(),
                everything: false,
                closed: false,
            }),
            wake: Notify::new(),
        });
        self.0.push(Arc::downgrade(&mailbox));
        Changes { mailbox }
    }

    pub(super) fn changed(&mut self, id: &I) {
        self.each(|pending| {
            if pending.everything {
                return;
            }
            pending.ids.insert(id.clone());
            if pending.ids.len() > BACKLOG {
                pending.ids.clear();
                pending.everything = true;
            }
        });
    }

    pub(super) fn close(&mut self) {
        self.each(|pending| pending.closed = true);
    }

    fn each(&mut self, mut tell: impl FnMut(&mut Pending<I>)) {
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
    async fn many_changes_of_one_record_are_told_once() {
        let mut subscribers = Subscribers::default();
        let mut changes = subscribers.subscribe();
        for id in ["b", "a", "b"] {
            subscribers.changed(&id);
        }
        assert_eq!(changes.next().await, Some(Change::Ids(["a", "b"].into())));
        subscribers.close();
        assert_eq!(changes.next().await, None);
    }

    #[tokio::test]
    async fn a_slow_subscriber_is_told_to_look_at_everything() {
        let mut subscribers = Subscribers::default();
        let mut changes = subscribers.subscribe();
        for id in 0..=BACKLOG + 10 {
            subscribers.changed(&id);
        }
        assert_eq!(changes.next().await, Some(Change::Everything));
        subscribers.changed(&7);
        assert_eq!(changes.next().await, Some(Change::Ids([7].into())));
    }
}
