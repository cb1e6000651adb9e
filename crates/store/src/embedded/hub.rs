//! Watches and listeners of the embedded store.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::oneshot;

use crate::path::TreePath;
use crate::watch::{Once, WatchEvent, WatchSender, Watcher};

/// Called with every change of the tree, in order and before readers see the change. Must be fast and must not read the
/// tree.
pub(crate) trait ChangeListener: Send + Sync {
    fn changed(&self, events: &[WatchEvent]);
}

#[derive(Default)]
pub(super) struct WatchHub {
    state: Mutex<HubState>,
}

impl std::fmt::Debug for WatchHub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct HubState {
    watchers: Watches<WatchSender>,
    onces: Watches<oneshot::Sender<()>>,
    listeners: Vec<Weak<dyn ChangeListener>>,
}

impl WatchHub {
    pub(super) fn watch(&self, session: i64, path: &TreePath) -> Watcher {
        let (sender, watcher) = crate::watch::channel();
        self.lock()
            .watchers
            .add(path, session, sender, WatchSender::is_dropped);
        watcher
    }

    pub(super) fn watch_once(&self, session: i64, path: &TreePath) -> Once {
        let (sender, once) = Once::channel();
        self.lock()
            .onces
            .add(path, session, sender, oneshot::Sender::is_closed);
        once
    }

    pub(super) fn add_listener(&self, listener: Weak<dyn ChangeListener>) {
        let mut state = self.lock();
        state.listeners.retain(|known| known.strong_count() > 0);
        state.listeners.push(listener);
    }

    pub(super) fn publish(&self, events: &[WatchEvent]) {
        let mut state = self.lock();
        for event in events {
            let (WatchEvent::Created(path) | WatchEvent::Changed(path) | WatchEvent::Deleted(path)) =
                event
            else {
                continue;
            };
            for (_, sender) in state.onces.take(path) {
                // Fails if the receiver was dropped.
                let _ = sender.send(());
            }
            let mut place = Some(path.clone());
            while let Some(at) = place {
                state
                    .watchers
                    .retain(&at, |_, sender| sender.send(event.clone()));
                place = at.parent();
            }
        }
        for listener in &state.listeners {
            if let Some(listener) = listener.upgrade() {
                listener.changed(events);
            }
        }
    }

    /// Removes the watches of a session.
    pub(super) fn remove_session(&self, session: i64) {
        let mut state = self.lock();
        state.watchers.retain_all(|owner, sender| {
            if owner == session {
                sender.close();
            }
            owner != session
        });
        state.onces.retain_all(|owner, _| owner != session);
    }

    /// Ignores poisoning: a panic leaves at most a stale watch.
    fn lock(&self) -> MutexGuard<'_, HubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Watches by path, with the session each belongs to.
struct Watches<S> {
    by_path: HashMap<TreePath, Vec<(i64, S)>>,
    len: usize,
    /// The size at which dropped watches are removed.
    sweep_at: usize,
}

impl<S> Default for Watches<S> {
    fn default() -> Self {
        Self {
            by_path: HashMap::new(),
            len: 0,
            sweep_at: 1024,
        }
    }
}

impl<S> Watches<S> {
    fn add(&mut self, path: &TreePath, session: i64, sender: S, is_dropped: impl Fn(&S) -> bool) {
        if self.len >= self.sweep_at {
            self.retain_all(|_, sender| !is_dropped(sender));
            self.sweep_at = (self.len * 2).max(1024);
        }
        self.by_path
            .entry(path.clone())
            .or_default()
            .push((session, sender));
        self.len += 1;
    }

    fn take(&mut self, path: &TreePath) -> Vec<(i64, S)> {
        let taken = self.by_path.remove(path).unwrap_or_default();
        self.len -= taken.len();
        taken
    }

    fn retain(&mut self, path: &TreePath, mut keep: impl FnMut(i64, &S) -> bool) {
        if let Some(mut watches) = self.by_path.remove(path) {
            let before = watches.len();
            watches.retain(|(session, sender)| keep(*session, sender));
            self.len -= before - watches.len();
            if !watches.is_empty() {
                self.by_path.insert(path.clone(), watches);
            }
        }
    }

    fn retain_all(&mut self, mut keep: impl FnMut(i64, &S) -> bool) {
        self.by_path.retain(|_, watches| {
            watches.retain(|(session, sender)| keep(*session, sender));
            !watches.is_empty()
        });
        self.len = self.by_path.values().map(Vec::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_nobody_waits_for_do_not_pile_up() {
        let hub = WatchHub::default();
        let path = TreePath::new("/never/changed").unwrap();
        for _ in 0..10_000 {
            drop(hub.watch_once(1, &path));
            drop(hub.watch(1, &path));
        }
        let state = hub.lock();
        assert!(state.onces.len <= 1024);
        assert!(state.watchers.len <= 1024);
    }
}
