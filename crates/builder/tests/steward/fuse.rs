//! A process that dies at a chosen moment: before or after its n-th write to the store.
//!
//! Once the fuse has blown nothing that the process begins or waits for ever happens, as if it were gone. What
//! was written before stays; its session ends when the test closes it.

use std::future::{Future, pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use nodeyard_store::{
    CreateMode, Created, Listing, Once, Op, OpOutcome, Record, Result, Session, SessionId, Stat,
    Tree, TreePath, Version, Watcher,
};
use tokio::sync::watch;

/// When the process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    Before,
    After,
}

#[derive(Debug)]
pub(crate) struct Fuse {
    done: AtomicUsize,
    at: usize,
    moment: Moment,
    blown: watch::Sender<bool>,
}

impl Fuse {
    pub(crate) fn new(at: usize, moment: Moment) -> Arc<Self> {
        Arc::new(Self {
            done: AtomicUsize::new(0),
            at,
            moment,
            blown: watch::Sender::new(false),
        })
    }

    async fn write<T>(&self, work: impl Future<Output = T>) -> T {
        self.read(async {}).await;
        let number = self.done.fetch_add(1, Ordering::SeqCst) + 1;
        if number == self.at && self.moment == Moment::Before {
            self.blown.send_replace(true);
            return pending().await;
        }
        let result = work.await;
        if number == self.at {
            self.blown.send_replace(true);
        }
        self.read(async {}).await;
        result
    }

    async fn read<T>(&self, work: impl Future<Output = T>) -> T {
        let result = work.await;
        if *self.blown.borrow() {
            return pending().await;
        }
        result
    }

    pub(crate) async fn blown(&self) {
        let _ = self.blown.subscribe().wait_for(|blown| *blown).await;
    }
}

/// A store for a process that can die.
#[derive(Debug)]
pub(crate) struct Mortal {
    pub(crate) tree: Arc<dyn Tree>,
    pub(crate) fuse: Arc<Fuse>,
}

#[async_trait]
impl Tree for Mortal {
    async fn create(&self, path: &TreePath, data: Bytes, mode: CreateMode) -> Result<Created> {
        self.fuse.write(self.tree.create(path, data, mode)).await
    }

    async fn get(&self, path: &TreePath) -> Result<Record> {
        self.fuse.read(self.tree.get(path)).await
    }

    async fn stat(&self, path: &TreePath) -> Result<Option<Stat>> {
        self.fuse.read(self.tree.stat(path)).await
    }

    async fn set(&self, path: &TreePath, data: Bytes, version: Version) -> Result<Stat> {
        self.fuse.write(self.tree.set(path, data, version)).await
    }

    async fn delete(&self, path: &TreePath, version: Version) -> Result<()> {
        self.fuse.write(self.tree.delete(path, version)).await
    }

    async fn children(&self, path: &TreePath) -> Result<Listing> {
        self.fuse.read(self.tree.children(path)).await
    }

    async fn list(&self, path: &TreePath) -> Result<Vec<(String, Record)>> {
        self.fuse.read(self.tree.list(path)).await
    }

    async fn multi(&self, ops: Vec<Op>) -> Result<Vec<OpOutcome>> {
        self.fuse.write(self.tree.multi(ops)).await
    }

    async fn watch(&self, path: &TreePath) -> Result<Watcher> {
        self.fuse.read(self.tree.watch(path)).await
    }

    async fn watch_once(&self, path: &TreePath) -> Result<(Option<Stat>, Once)> {
        self.fuse.read(self.tree.watch_once(path)).await
    }

    async fn sync(&self) -> Result<()> {
        self.fuse.read(self.tree.sync()).await
    }

    fn session(&self) -> watch::Receiver<Session> {
        self.tree.session()
    }

    fn pinned(&self, session: SessionId) -> Arc<dyn Tree> {
        Arc::new(Self {
            tree: self.tree.pinned(session),
            fuse: Arc::clone(&self.fuse),
        })
    }

    async fn close(&self) {
        self.tree.close().await;
    }
}
