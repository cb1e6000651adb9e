//! The watches of one client, with ZooKeeper's rules.
//!
//! One-shot data watches report creation, change and deletion of a record; child watches report its deletion and the
//! creation and deletion of children. Persistent watches report all of these and stay; recursive ones report all
//! descendants too, but no child events. An event is sent once, however many watches it matches.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::embedded::{ChangeListener, Snapshot};
use crate::error::Result;
use crate::path::TreePath;
use crate::watch::WatchEvent;
use crate::zookeeper::wire::{Event, EventKind, WatcherKind};

use super::reply_queue::ReplyQueue;

#[derive(Debug)]
pub(super) struct ClientWatches {
    tables: Mutex<WatchTables>,
    reply_queue: Arc<ReplyQueue>,
}

#[derive(Debug, Default)]
struct WatchTables {
    data: HashSet<TreePath>,
    children: HashSet<TreePath>,
    persistent: HashSet<TreePath>,
    recursive: HashSet<TreePath>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum WatchKind {
    Data,
    Children,
    Persistent,
    Recursive,
}

/// The watches of a client that has reconnected, and the last transaction it has seen.
#[derive(Debug, Default)]
pub(super) struct RestoredWatches {
    pub(super) since: i64,
    pub(super) data: Vec<TreePath>,
    pub(super) exist: Vec<TreePath>,
    pub(super) children: Vec<TreePath>,
    pub(super) persistent: Vec<TreePath>,
    pub(super) recursive: Vec<TreePath>,
}

impl ClientWatches {
    pub(super) fn new(reply_queue: Arc<ReplyQueue>) -> Self {
        Self {
            tables: Mutex::default(),
            reply_queue,
        }
    }

    pub(super) fn add(&self, path: TreePath, kind: WatchKind) {
        let mut tables = self.lock();
        let table = match kind {
            WatchKind::Data => &mut tables.data,
            WatchKind::Children => &mut tables.children,
            WatchKind::Persistent => &mut tables.persistent,
            WatchKind::Recursive => &mut tables.recursive,
        };
        table.insert(path);
    }

    /// Removes a watch. Returns false if there was none.
    pub(super) fn remove(&self, path: &TreePath, kind: WatcherKind) -> bool {
        let mut tables = self.lock();
        match kind {
            WatcherKind::Data => tables.data.remove(path),
            WatcherKind::Children => tables.children.remove(path),
            WatcherKind::Any => {
                let WatchTables {
                    data,
                    children,
                    persistent,
                    recursive,
                } = &mut *tables;
                [data, children, persistent, recursive]
                    .map(|table| table.remove(path))
                    .contains(&true)
            }
        }
    }

    /// Restores the watches of a reconnected client. Those that would have fired meanwhile fire immediately.
    pub(super) fn restore(&self, restored: RestoredWatches, snapshot: &Snapshot) -> Result<()> {
        let since = restored.since;
        for path in restored.data {
            match snapshot.stat(&path)? {
                None => self.send_event(EventKind::Deleted, &path),
                Some(stat) if stat.mzxid > since => self.send_event(EventKind::DataChanged, &path),
                Some(_) => self.add(path, WatchKind::Data),
            }
        }
        for path in restored.exist {
            match snapshot.stat(&path)? {
                Some(_) => self.send_event(EventKind::Created, &path),
                None => self.add(path, WatchKind::Data),
            }
        }
        for path in restored.children {
            match snapshot.stat(&path)? {
                None => self.send_event(EventKind::Deleted, &path),
                Some(stat) if stat.pzxid > since => {
                    self.send_event(EventKind::ChildrenChanged, &path);
                }
                Some(_) => self.add(path, WatchKind::Children),
            }
        }
        for path in restored.persistent {
            self.add(path, WatchKind::Persistent);
        }
        for path in restored.recursive {
            self.add(path, WatchKind::Recursive);
        }
        Ok(())
    }

    fn send_event(&self, kind: EventKind, path: &TreePath) {
        let event = Event {
            kind,
            path: path.to_string(),
        };
        self.reply_queue.push(|out| event.encode(out));
    }

    /// Ignores poisoning, since the sets are consistent at every panic.
    fn lock(&self) -> MutexGuard<'_, WatchTables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchTables {
    /// Returns whether the record is watched, and removes one-shot watches.
    fn record(&mut self, path: &TreePath, deleted: bool) -> bool {
        let data = self.data.remove(path);
        let children = deleted && self.children.remove(path);
        data || children || self.persistent.contains(path) || self.is_inside_recursive(path)
    }

    /// Returns whether the children are watched, and removes one-shot watches.
    fn list(&mut self, path: &TreePath) -> bool {
        self.children.remove(path) || self.persistent.contains(path)
    }

    fn is_inside_recursive(&self, path: &TreePath) -> bool {
        if self.recursive.is_empty() {
            return false;
        }
        let mut place = Some(path.clone());
        while let Some(at) = place {
            if self.recursive.contains(&at) {
                return true;
            }
            place = at.parent();
        }
        false
    }
}

impl ChangeListener for ClientWatches {
    fn changed(&self, events: &[WatchEvent]) {
        let mut tables = self.lock();
        for event in events {
            let (kind, path) = match event {
                WatchEvent::Created(path) => (EventKind::Created, path),
                WatchEvent::Changed(path) => (EventKind::DataChanged, path),
                WatchEvent::Deleted(path) => (EventKind::Deleted, path),
                WatchEvent::Gap => continue,
            };
            if tables.record(path, kind == EventKind::Deleted) {
                self.send_event(kind, path);
            }
            if kind != EventKind::DataChanged
                && let Some(parent) = path.parent()
                && tables.list(&parent)
            {
                self.send_event(EventKind::ChildrenChanged, &parent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zookeeper::wire::{ReplyHeader, take_frame};

    fn path(text: &str) -> TreePath {
        TreePath::new(text).unwrap()
    }

    async fn told(reply_queue: &ReplyQueue) -> Vec<(EventKind, String)> {
        reply_queue.finish();
        let mut events = Vec::new();
        while let Some(frame) = reply_queue.next().await.unwrap() {
            let mut frame = frame.as_ref().into();
            let frame = take_frame(&mut frame, 4096).unwrap().unwrap();
            let (_, body) = ReplyHeader::decode(&frame).unwrap();
            let event = Event::decode(body).unwrap();
            events.push((event.kind, event.path));
        }
        events
    }

    async fn after(
        watches: &[(&str, WatchKind)],
        events: &[WatchEvent],
    ) -> Vec<(EventKind, &'static str)> {
        let reply_queue = Arc::new(ReplyQueue::default());
        let table = ClientWatches::new(reply_queue.clone());
        for (at, kind) in watches {
            table.add(path(at), *kind);
        }
        table.changed(events);
        let told = told(&reply_queue).await.into_iter();
        told.map(|(kind, at)| (kind, &*at.leak())).collect()
    }

    #[tokio::test]
    async fn one_shot_watches_fire_once() {
        let changes = [
            WatchEvent::Changed(path("/a")),
            WatchEvent::Changed(path("/a")),
            WatchEvent::Created(path("/a/b")),
            WatchEvent::Created(path("/a/c")),
        ];
        let both = [("/a", WatchKind::Data), ("/a", WatchKind::Children)];
        assert_eq!(
            after(&both, &changes).await,
            [
                (EventKind::DataChanged, "/a"),
                (EventKind::ChildrenChanged, "/a")
            ]
        );
    }

    #[tokio::test]
    async fn a_deletion_is_told_once_however_many_watch() {
        let all = [
            ("/a", WatchKind::Data),
            ("/a", WatchKind::Children),
            ("/a", WatchKind::Persistent),
            ("/", WatchKind::Recursive),
        ];
        let changes = [WatchEvent::Deleted(path("/a"))];
        assert_eq!(after(&all, &changes).await, [(EventKind::Deleted, "/a")]);
    }

    #[tokio::test]
    async fn persistent_watches_stay_and_recursive_ones_reach_down() {
        let changes = [
            WatchEvent::Created(path("/a/b")),
            WatchEvent::Changed(path("/a/b")),
            WatchEvent::Created(path("/ab")),
            WatchEvent::Deleted(path("/a/b")),
        ];
        assert_eq!(
            after(&[("/a", WatchKind::Persistent)], &changes).await,
            [
                (EventKind::ChildrenChanged, "/a"),
                (EventKind::ChildrenChanged, "/a")
            ]
        );
        assert_eq!(
            after(&[("/a", WatchKind::Recursive)], &changes).await,
            [
                (EventKind::Created, "/a/b"),
                (EventKind::DataChanged, "/a/b"),
                (EventKind::Deleted, "/a/b")
            ]
        );
    }
}
