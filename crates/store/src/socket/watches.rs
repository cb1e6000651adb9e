//! The watches of one client, with ZooKeeper's rules.
//!
//! One-shot watches on data tell of creation, change and deletion of a record; those on children of its
//! deletion and of children that come or go. Persistent watches tell of all of that and stay; recursive
//! ones tell of everything below, too, but not of lists of children. However many watches an event
//! matches, the client is told once.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::embedded::{Listener, Snapshot};
use crate::error::Result;
use crate::path::TreePath;
use crate::watch::WatchEvent;
use crate::zookeeper::wire::{Event, EventKind, WatcherKind};

use super::outbox::Outbox;

#[derive(Debug)]
pub(super) struct Watches {
    tables: Mutex<Tables>,
    outbox: Arc<Outbox>,
}

#[derive(Debug, Default)]
struct Tables {
    data: HashSet<TreePath>,
    children: HashSet<TreePath>,
    persistent: HashSet<TreePath>,
    recursive: HashSet<TreePath>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Data,
    Children,
    Persistent,
    Recursive,
}

/// What a client knew when it lost its connection.
#[derive(Debug, Default)]
pub(super) struct Restored {
    pub(super) since: i64,
    pub(super) data: Vec<TreePath>,
    pub(super) exist: Vec<TreePath>,
    pub(super) children: Vec<TreePath>,
    pub(super) persistent: Vec<TreePath>,
    pub(super) recursive: Vec<TreePath>,
}

impl Watches {
    pub(super) fn new(outbox: Arc<Outbox>) -> Self {
        Self {
            tables: Mutex::default(),
            outbox,
        }
    }

    pub(super) fn add(&self, path: TreePath, kind: Kind) {
        let mut tables = self.lock();
        let table = match kind {
            Kind::Data => &mut tables.data,
            Kind::Children => &mut tables.children,
            Kind::Persistent => &mut tables.persistent,
            Kind::Recursive => &mut tables.recursive,
        };
        table.insert(path);
    }

    /// False if there was none.
    pub(super) fn remove(&self, path: &TreePath, kind: WatcherKind) -> bool {
        let mut tables = self.lock();
        match kind {
            WatcherKind::Data => tables.data.remove(path),
            WatcherKind::Children => tables.children.remove(path),
            WatcherKind::Any => {
                let Tables {
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

    /// Sets the watches of a client that has come back. Those that would have fired meanwhile fire now.
    pub(super) fn restore(&self, restored: Restored, snapshot: &Snapshot) -> Result<()> {
        let since = restored.since;
        for path in restored.data {
            match snapshot.stat(&path)? {
                None => self.tell(EventKind::Deleted, &path),
                Some(stat) if stat.mzxid > since => self.tell(EventKind::DataChanged, &path),
                Some(_) => self.add(path, Kind::Data),
            }
        }
        for path in restored.exist {
            match snapshot.stat(&path)? {
                Some(_) => self.tell(EventKind::Created, &path),
                None => self.add(path, Kind::Data),
            }
        }
        for path in restored.children {
            match snapshot.stat(&path)? {
                None => self.tell(EventKind::Deleted, &path),
                Some(stat) if stat.pzxid > since => self.tell(EventKind::ChildrenChanged, &path),
                Some(_) => self.add(path, Kind::Children),
            }
        }
        for path in restored.persistent {
            self.add(path, Kind::Persistent);
        }
        for path in restored.recursive {
            self.add(path, Kind::Recursive);
        }
        Ok(())
    }

    fn tell(&self, kind: EventKind, path: &TreePath) {
        let event = Event {
            kind,
            path: path.to_string(),
        };
        self.outbox.push(|out| event.encode(out));
    }

    /// A panic while the lock is held cannot leave a set half changed, so poison is ignored.
    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    /// Whether someone watches the record itself. One-shot watches are used up.
    fn record(&mut self, path: &TreePath, deleted: bool) -> bool {
        let data = self.data.remove(path);
        let children = deleted && self.children.remove(path);
        data || children || self.persistent.contains(path) || self.is_inside_recursive(path)
    }

    /// Whether someone watches the list of children.
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

impl Listener for Watches {
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
                self.tell(kind, path);
            }
            if kind != EventKind::DataChanged
                && let Some(parent) = path.parent()
                && tables.list(&parent)
            {
                self.tell(EventKind::ChildrenChanged, &parent);
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

    async fn told(outbox: &Outbox) -> Vec<(EventKind, String)> {
        outbox.finish();
        let mut events = Vec::new();
        while let Some(frame) = outbox.next().await.unwrap() {
            let mut frame = frame.as_ref().into();
            let frame = take_frame(&mut frame, 4096).unwrap().unwrap();
            let (_, body) = ReplyHeader::decode(&frame).unwrap();
            let event = Event::decode(body).unwrap();
            events.push((event.kind, event.path));
        }
        events
    }

    async fn after(
        watches: &[(&str, Kind)],
        events: &[WatchEvent],
    ) -> Vec<(EventKind, &'static str)> {
        let outbox = Arc::new(Outbox::default());
        let table = Watches::new(outbox.clone());
        for (at, kind) in watches {
            table.add(path(at), *kind);
        }
        table.changed(events);
        let told = told(&outbox).await.into_iter();
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
        let both = [("/a", Kind::Data), ("/a", Kind::Children)];
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
            ("/a", Kind::Data),
            ("/a", Kind::Children),
            ("/a", Kind::Persistent),
            ("/", Kind::Recursive),
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
            after(&[("/a", Kind::Persistent)], &changes).await,
            [
                (EventKind::ChildrenChanged, "/a"),
                (EventKind::ChildrenChanged, "/a")
            ]
        );
        assert_eq!(
            after(&[("/a", Kind::Recursive)], &changes).await,
            [
                (EventKind::Created, "/a/b"),
                (EventKind::DataChanged, "/a/b"),
                (EventKind::Deleted, "/a/b")
            ]
        );
    }
}
