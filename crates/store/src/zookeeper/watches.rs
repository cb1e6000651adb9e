//! Who watches what, as far as the session's task knows.
//!
//! A recursive watch is set on the server once per path, however many watchers share it. A one-shot watch
//! cannot be set on a path that has a recursive one: the server keeps one mode per path and connection, and
//! would forget the recursive watch when the one-shot fires (ZOOKEEPER-4466). So an event on a path tells
//! all who wait for that path, no matter which of the server's watches sent it, and where a recursive
//! watch is on exactly that path no one-shot is set at all.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::call::{Failure, Settled};
use super::wire::{Event, EventKind};
use crate::path::TreePath;
use crate::watch::{WatchEvent, WatchSender};

#[derive(Debug, Default)]
pub(super) struct Watches {
    recursive: HashMap<String, Recursive>,
    onces: HashMap<String, Vec<oneshot::Sender<()>>>,
}

#[derive(Debug, Default)]
struct Recursive {
    /// The server of this connection has it.
    confirmed: bool,
    watchers: Vec<Member>,
    waiting: Vec<oneshot::Sender<Settled>>,
}

/// A watcher that sees paths below its own chroot.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) sender: WatchSender,
    pub(super) chroot: Arc<str>,
}

impl Member {
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

impl Watches {
    /// True if the watch must be set on the server; `reply` is answered when it is in place.
    pub(super) fn add(
        &mut self,
        path: &str,
        member: Member,
        reply: oneshot::Sender<Settled>,
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

    /// The server has set the watch.
    pub(super) fn confirm(&mut self, path: &str) {
        if let Some(entry) = self.recursive.get_mut(path) {
            entry.confirmed = true;
            for reply in entry.waiting.drain(..) {
                let _ = reply.send(Ok(()));
            }
        }
    }

    /// The server has set the watch again on a new connection.
    pub(super) fn restored(&mut self, path: &str) {
        if let Some(entry) = self.recursive.get(path) {
            for member in &entry.watchers {
                member.sender.send(WatchEvent::Gap);
            }
        }
        self.confirm(path);
    }

    /// The server will not set the watch.
    pub(super) fn refuse(&mut self, path: &str, failure: Failure) {
        if let Some(entry) = self.recursive.remove(path) {
            for reply in entry.waiting {
                let _ = reply.send(Err(failure));
            }
        }
    }

    /// True if a one-shot watch must be set on the server.
    pub(super) fn add_once(&mut self, path: &str, once: oneshot::Sender<()>) -> bool {
        self.onces.entry(path.to_owned()).or_default().push(once);
        !self.recursive.contains_key(path)
    }

    /// Paths to be set again on a new connection.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.recursive.keys().map(String::as_str)
    }

    /// Tells everybody concerned. Paths whose last watcher turns out to be gone are left to [`Self::sweep`].
    pub(super) fn dispatch(&mut self, event: &Event) {
        if matches!(
            event.kind,
            EventKind::Created | EventKind::Deleted | EventKind::DataChanged
        ) {
            // Dropping the senders is the signal.
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

    /// Forgets those who have gone, and returns the paths that the server need not watch any more.
    pub(super) fn sweep(&mut self) -> Vec<String> {
        self.onces.retain(|_, onces| {
            onces.retain(|once| !once.is_closed());
            !onces.is_empty()
        });
        let onces = &self.onces;
        self.recursive
            .extract_if(|path, entry| {
                entry.watchers.retain(|member| !member.sender.is_dropped());
                // A one-shot on the same path lives from this watch.
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

    /// The watchers stay, but nobody who asked in the old session gets an answer from the new one.
    pub(super) fn expired(&mut self) {
        for entry in self.recursive.values_mut() {
            for reply in entry.waiting.drain(..) {
                let _ = reply.send(Err(Failure::SessionExpired));
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
                let _ = reply.send(Err(Failure::Closed));
            }
        }
    }
}
