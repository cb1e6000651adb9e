//! The watches of a session.
//!
//! A recursive watch is set on the server once per path and shared by its watchers. A one-shot watch must not be set on
//! a path with a recursive one, because the server would remove the recursive watch when the one-shot fires
//! (ZOOKEEPER-4466). So an event notifies all watchers of its path, and no one-shot watch is set where a recursive
//! watch exists.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::call::{AckResult, SessionCallError};
use super::wire::{Event, EventKind};
use crate::path::TreePath;
use crate::watch::{WatchEvent, WatchSender};

#[derive(Debug, Default)]
pub(super) struct WatchTable {
    recursive: HashMap<String, Recursive>,
    onces: HashMap<String, Vec<oneshot::Sender<()>>>,
}

#[derive(Debug, Default)]
struct Recursive {
    /// Set on the server of the current connection.
    confirmed: bool,
    watchers: Vec<WatchMember>,
    waiting: Vec<oneshot::Sender<AckResult>>,
}

/// A watcher with its chroot.
#[derive(Debug)]
pub(super) struct WatchMember {
    pub(super) sender: WatchSender,
    pub(super) chroot: Arc<str>,
}

impl WatchMember {
    fn send(&self, event: &Event) -> bool {
        let path = match event.path.strip_prefix(&*self.chroot) {
            Some("") => "/",
            Some(path) => path,
            None => return !self.sender.is_dropped(),
        };
        let Ok(path) = TreePath::new(path) else {
            return !self.sender.is_dropped();
        };
        self.sender.send(match event.kind {
            EventKind::Created => WatchEvent::Created(path),
            EventKind::Deleted => WatchEvent::Deleted(path),
            EventKind::DataChanged => WatchEvent::Changed(path),
            EventKind::ChildrenChanged | EventKind::Session => {
                return !self.sender.is_dropped();
            }
        })
    }
}

impl WatchTable {
    /// Adds a watcher. Returns true if the watch must be set on the server; `reply` is sent once it is.
    pub(super) fn add(
        &mut self,
        path: &str,
        member: WatchMember,
        reply: oneshot::Sender<AckResult>,
    ) -> bool {
        let new = !self.recursive.contains_key(path);
        let entry = self.recursive.entry(path.to_owned()).or_default();
        entry.watchers.push(member);
        if entry.confirmed {
            let _ = reply.send(Ok(()));
        } else {
            entry.waiting.push(reply);
        }
        new
    }

    /// Marks a watch as set on the server.
    pub(super) fn confirm(&mut self, path: &str) {
        if let Some(entry) = self.recursive.get_mut(path) {
            entry.confirmed = true;
            for reply in entry.waiting.drain(..) {
                let _ = reply.send(Ok(()));
            }
        }
    }

    /// Marks a watch as restored on a new connection.
    pub(super) fn restored(&mut self, path: &str) {
        if let Some(entry) = self.recursive.get(path) {
            for member in &entry.watchers {
                member.sender.send(WatchEvent::Gap);
            }
        }
        self.confirm(path);
    }

    /// Removes a watch that the server rejected.
    pub(super) fn refuse(&mut self, path: &str, failure: SessionCallError) {
        if let Some(entry) = self.recursive.remove(path) {
            for reply in entry.waiting {
                let _ = reply.send(Err(failure));
            }
        }
    }

    /// Adds a one-shot watch. Returns true if it must be set on the server.
    pub(super) fn add_once(&mut self, path: &str, once: oneshot::Sender<()>) -> bool {
        self.onces.entry(path.to_owned()).or_default().push(once);
        !self.recursive.contains_key(path)
    }

    /// Returns the paths to restore on a new connection.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.recursive.keys().map(String::as_str)
    }

    /// Notifies the watchers of an event. [`Self::remove_dropped`] removes dropped ones.
    pub(super) fn dispatch(&mut self, event: &Event) {
        if matches!(
            event.kind,
            EventKind::Created | EventKind::Deleted | EventKind::DataChanged
        ) {
            // Dropping the senders fires the watches.
            self.onces.remove(&event.path);
        }
        let mut at = event.path.as_str();
        loop {
            if let Some(entry) = self.recursive.get_mut(at) {
                entry.watchers.retain(|member| member.send(event));
            }
            at = match at.rsplit_once('/') {
                Some(("", "")) | None => break,
                Some(("", _)) => "/",
                Some((parent, _)) => parent,
            };
        }
    }

    /// Removes dropped watchers and returns the paths whose watches are no longer needed on the server.
    pub(super) fn remove_dropped(&mut self) -> Vec<String> {
        self.onces.retain(|_, onces| {
            onces.retain(|once| !once.is_closed());
            !onces.is_empty()
        });
        let onces = &self.onces;
        self.recursive
            .extract_if(|path, entry| {
                entry.watchers.retain(|member| !member.sender.is_dropped());
                // A one-shot watch on the same path depends on this watch.
                entry.confirmed && entry.watchers.is_empty() && !onces.contains_key(path)
            })
            .map(|(path, _)| path)
            .collect()
    }

    pub(super) fn disconnected(&mut self) {
        self.onces.clear();
        for entry in self.recursive.values_mut() {
            entry.confirmed = false;
        }
    }

    /// Keeps the watchers but fails requests that were started in the old session.
    pub(super) fn expired(&mut self) {
        for entry in self.recursive.values_mut() {
            for reply in entry.waiting.drain(..) {
                let _ = reply.send(Err(SessionCallError::SessionExpired));
            }
        }
    }

    pub(super) fn close(&mut self) {
        self.onces.clear();
        for (_, entry) in self.recursive.drain() {
            for member in entry.watchers {
                member.sender.close();
            }
            for reply in entry.waiting {
                let _ = reply.send(Err(SessionCallError::Closed));
            }
        }
    }
}
