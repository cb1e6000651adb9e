//! Change notifications for subscribers, with a bounded backlog.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

/// The maximum number of pending ids of a subscriber; on overflow it receives [`Change::Everything`].
const BACKLOG: usize = 16_384;

/// The changes since the last call of [`Changes::next`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<I> {
    /// The ids of records that were created, changed, deleted, locked or unlocked.
    Ids(BTreeSet<I>),
    /// Too many ids; everything may have changed.
    Everything,
}

/// A subscription to the changes of a view.
#[derive(Debug)]
pub struct Changes<I> {
    mailbox: Arc<ChangeMailbox<I>>,
}

#[derive(Debug)]
struct ChangeMailbox<I> {
    state: Mutex<PendingIds<I>>,
    wake: Notify,
}

#[derive(Debug)]
struct PendingIds<I> {
    ids: BTreeSet<I>,
    everything: bool,
    closed: bool,
}

/// The view's side of all its [`Changes`].
#[derive(Debug)]
pub(super) struct Subscribers<I>(Vec<Weak<ChangeMailbox<I>>>);

impl<I> ChangeMailbox<I> {
    fn lock(&self) -> MutexGuard<'_, PendingIds<I>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I: Clone + Ord> Changes<I> {
    /// Waits for the next change. Returns `None` once the store is closed.
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
            // `Notify` stores a notification sent in the meantime.
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
        let mailbox = Arc::new(ChangeMailbox {
            state: Mutex::new(PendingIds {
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

    fn each(&mut self, mut tell: impl FnMut(&mut PendingIds<I>)) {
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
    async fn changes_of_one_record_are_coalesced() {
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
    async fn a_slow_subscriber_receives_everything() {
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
