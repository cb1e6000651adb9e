//! Simulates a process that is killed before or after its n-th external operation.
//!
//! For tests of services that must recover from `kill -9` at any step. Once the fuse has blown, all operations of the
//! process block forever. Its session ends when the test closes it.

mod staged;

use std::future::{Future, pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

use crate::{
    CreateMode, Created, Listing, Once, Op, OpOutcome, Record, Result, Session, SessionId, Stat,
    Tree, TreePath, Version, Watcher,
};

pub use staged::{Call, Fate, Staged};

/// When the process is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    Before,
    After,
}

#[derive(Debug)]
pub struct Fuse {
    done: AtomicUsize,
    at: usize,
    moment: Moment,
    blown: watch::Sender<bool>,
}

impl Fuse {
    /// Creates a fuse that blows at the `at`-th operation, counted from 1.
    pub fn new(at: usize, moment: Moment) -> Arc<Self> {
        Arc::new(Self {
            done: AtomicUsize::new(0),
            at,
            moment,
            blown: watch::Sender::new(false),
        })
    }

    /// Runs an operation that counts. Blocks forever once the process is dead.
    pub async fn around<T>(&self, work: impl Future<Output = T>) -> T {
        self.alive().await;
        let number = self.done.fetch_add(1, Ordering::SeqCst) + 1;
        if number == self.at && self.moment == Moment::Before {
            self.blown.send_replace(true);
            return pending().await;
        }
        let result = work.await;
        if number == self.at {
            self.blown.send_replace(true);
        }
        self.alive().await;
        result
    }

    /// Runs an operation that does not count.
    async fn beside<T>(&self, work: impl Future<Output = T>) -> T {
        let result = work.await;
        self.alive().await;
        result
    }

    /// Blocks forever if the process is dead.
    async fn alive(&self) {
        if *self.blown.borrow() {
            pending::<()>().await;
        }
    }

    pub async fn blown(&self) {
        // Cannot fail: `self` owns the sender.
        let _ = self.blown.subscribe().wait_for(|blown| *blown).await;
    }
}

/// A store handle of a process that can be killed.
#[derive(Debug)]
pub struct Mortal {
    tree: Arc<dyn Tree>,
    fuse: Arc<Fuse>,
    /// Whether reads count as well as writes.
    reads: bool,
}

impl Mortal {
    /// Creates a handle on which every operation counts.
    pub fn new(tree: Arc<dyn Tree>, fuse: &Arc<Fuse>) -> Arc<Self> {
        let fuse = Arc::clone(fuse);
        Arc::new(Self {
            tree,
            fuse,
            reads: true,
        })
    }

    /// Creates a handle on which only writes count.
    pub fn by_writes(tree: Arc<dyn Tree>, fuse: &Arc<Fuse>) -> Arc<Self> {
        let fuse = Arc::clone(fuse);
        Arc::new(Self {
            tree,
            fuse,
            reads: false,
        })
    }

    async fn write<T>(&self, work: impl Future<Output = T> + Send) -> T {
        self.fuse.around(work).await
    }

    async fn read<T>(&self, work: impl Future<Output = T> + Send) -> T {
        if self.reads {
            self.fuse.around(work).await
        } else {
            self.fuse.beside(work).await
        }
    }
}

#[async_trait]
impl Tree for Mortal {
    async fn create(&self, path: &TreePath, data: Bytes, mode: CreateMode) -> Result<Created> {
        self.write(self.tree.create(path, data, mode)).await
    }

    async fn get(&self, path: &TreePath) -> Result<Record> {
        self.read(self.tree.get(path)).await
    }

    async fn stat(&self, path: &TreePath) -> Result<Option<Stat>> {
        self.read(self.tree.stat(path)).await
    }

    async fn set(&self, path: &TreePath, data: Bytes, version: Version) -> Result<Stat> {
        self.write(self.tree.set(path, data, version)).await
    }

    async fn delete(&self, path: &TreePath, version: Version) -> Result<()> {
        self.write(self.tree.delete(path, version)).await
    }

    async fn children(&self, path: &TreePath) -> Result<Listing> {
        self.read(self.tree.children(path)).await
    }

    async fn list(&self, path: &TreePath) -> Result<Vec<(String, Record)>> {
        self.read(self.tree.list(path)).await
    }

    async fn multi(&self, ops: Vec<Op>) -> Result<Vec<OpOutcome>> {
        self.write(self.tree.multi(ops)).await
    }

    async fn watch(&self, path: &TreePath) -> Result<Watcher> {
        self.read(self.tree.watch(path)).await
    }

    async fn watch_once(&self, path: &TreePath) -> Result<(Option<Stat>, Once)> {
        self.read(self.tree.watch_once(path)).await
    }

    async fn sync(&self) -> Result<()> {
        self.read(self.tree.sync()).await
    }

    fn session(&self) -> watch::Receiver<Session> {
        self.tree.session()
    }

    fn pinned(&self, session: SessionId) -> Arc<dyn Tree> {
        Arc::new(Self {
            tree: self.tree.pinned(session),
            fuse: Arc::clone(&self.fuse),
            reads: self.reads,
        })
    }

    async fn close(&self) {
        self.tree.close().await;
    }
}
