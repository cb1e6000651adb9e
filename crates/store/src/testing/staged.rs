//! A store whose calls a test can intercept, delay or lose.
//!
//! For tests of what becomes of a service when one certain answer does not arrive, or when several processes do
//! something at the very same time. The session outlives a lost call, as it does when a server is restarted.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use crate::{
    CreateMode, Created, Error, Listing, Once, Op, OpOutcome, Record, Result, Session, SessionId,
    Stat, Tree, TreePath, Version, Watcher,
};

/// What is about to happen.
#[derive(Debug, Clone, Copy)]
pub enum Call<'a> {
    /// A record or its children are read.
    Read(&'a TreePath),
    /// All of these or none. A write that is not a multi is the only one.
    Write(&'a [Op]),
    Sync,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Done,
    /// It never reaches the store.
    Lost,
    /// It takes effect, but its response is lost.
    AnswerLost,
}

type Director = dyn Fn(Call<'_>) -> BoxFuture<'static, Fate> + Send + Sync;

pub struct Staged {
    tree: Arc<dyn Tree>,
    director: Arc<Director>,
}

impl Staged {
    /// Creates a store that calls `director` before each read, write and sync. Watches are passed through.
    pub fn new(
        tree: Arc<dyn Tree>,
        director: impl Fn(Call<'_>) -> BoxFuture<'static, Fate> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            tree,
            director: Arc::new(director),
        })
    }

    async fn read<T>(
        &self,
        path: &TreePath,
        work: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        direct((self.director)(Call::Read(path)), work).await
    }

    async fn write<T>(
        &self,
        ops: &[Op],
        work: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        direct((self.director)(Call::Write(ops)), work).await
    }
}

async fn direct<T>(
    fate: BoxFuture<'static, Fate>,
    work: impl Future<Output = Result<T>> + Send,
) -> Result<T> {
    match fate.await {
        Fate::Done => work.await,
        Fate::Lost => Err(Error::ConnectionLoss),
        Fate::AnswerLost => work.await.and(Err(Error::ConnectionLoss)),
    }
}

#[async_trait]
impl Tree for Staged {
    async fn create(&self, path: &TreePath, data: Bytes, mode: CreateMode) -> Result<Created> {
        let op = Op::Create {
            path: path.clone(),
            data: data.clone(),
            mode,
        };
        self.write(&[op], self.tree.create(path, data, mode)).await
    }

    async fn get(&self, path: &TreePath) -> Result<Record> {
        self.read(path, self.tree.get(path)).await
    }

    async fn stat(&self, path: &TreePath) -> Result<Option<Stat>> {
        self.read(path, self.tree.stat(path)).await
    }

    async fn set(&self, path: &TreePath, data: Bytes, version: Version) -> Result<Stat> {
        let op = Op::Set {
            path: path.clone(),
            data: data.clone(),
            version,
        };
        self.write(&[op], self.tree.set(path, data, version)).await
    }

    async fn delete(&self, path: &TreePath, version: Version) -> Result<()> {
        let op = Op::Delete {
            path: path.clone(),
            version,
        };
        self.write(&[op], self.tree.delete(path, version)).await
    }

    async fn children(&self, path: &TreePath) -> Result<Listing> {
        self.read(path, self.tree.children(path)).await
    }

    async fn list(&self, path: &TreePath) -> Result<Vec<(String, Record)>> {
        self.read(path, self.tree.list(path)).await
    }

    async fn multi(&self, ops: Vec<Op>) -> Result<Vec<OpOutcome>> {
        self.write(&ops, self.tree.multi(ops.clone())).await
    }

    async fn watch(&self, path: &TreePath) -> Result<Watcher> {
        self.tree.watch(path).await
    }

    async fn watch_once(&self, path: &TreePath) -> Result<(Option<Stat>, Once)> {
        self.tree.watch_once(path).await
    }

    async fn sync(&self) -> Result<()> {
        direct((self.director)(Call::Sync), self.tree.sync()).await
    }

    fn session(&self) -> watch::Receiver<Session> {
        self.tree.session()
    }

    fn pinned(&self, session: SessionId) -> Arc<dyn Tree> {
        Arc::new(Self {
            tree: self.tree.pinned(session),
            director: Arc::clone(&self.director),
        })
    }

    async fn close(&self) {
        self.tree.close().await;
    }
}

impl fmt::Debug for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staged")
            .field("tree", &self.tree)
            .finish_non_exhaustive()
    }
}
