//! A handle on the store with a session of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{oneshot, watch};

use crate::error::{Error, Result};
use crate::limits;
use crate::path::TreePath;
use crate::tree::{
    CreateMode, Created, Listing, Op, OpOutcome, Record, Session, SessionId, Stat, Tree, Version,
};
use crate::watch::{Once, Watcher};

use super::batch::Outcome;
use super::snapshot::Snapshot;
use super::writer::{Receipt, Request, Shared, Work, Write};

#[derive(Debug)]
pub(crate) struct SessionTree {
    core: Arc<Core>,
    /// The session whose end ends this handle, too.
    pin: Option<SessionId>,
}

/// The session itself, which ends when its last handle goes.
#[derive(Debug)]
struct Core {
    id: i64,
    shared: Arc<Shared>,
    queue: mpsc::Sender<Request>,
    state: Arc<watch::Sender<Session>>,
    /// Writes handed to the writer, and how many of them it has finished.
    begun: AtomicU64,
    finished: Arc<watch::Sender<u64>>,
}

impl Drop for Core {
    fn drop(&mut self) {
        let session = self.id;
        // If the writer is gone, so are all sessions.
        let _ = self.queue.send(Request::End {
            session,
            done: None,
        });
    }
}

impl SessionTree {
    pub(super) fn begin(id: i64, shared: Arc<Shared>, queue: mpsc::Sender<Request>) -> Self {
        let state = Arc::new(watch::Sender::new(Session::Connected(SessionId(id))));
        let begin = Request::Begin {
            session: id,
            state: state.clone(),
        };
        if queue.send(begin).is_err() {
            state.send_replace(Session::Closed);
        }
        let core = Core {
            id,
            shared,
            queue,
            state,
            begun: AtomicU64::new(0),
            finished: Arc::new(watch::Sender::new(0)),
        };
        Self {
            core: Arc::new(core),
            pin: None,
        }
    }

    fn expect_open(&self) -> Result<()> {
        if self.pin.is_some_and(|pin| pin.0 != self.core.id) {
            return Err(Error::SessionExpired);
        }
        match *self.core.state.borrow() {
            Session::Closed => Err(Error::Closed),
            _ => Ok(()),
        }
    }

    pub(crate) fn id(&self) -> i64 {
        self.core.id
    }

    /// Begins a write at once; the future is its answer.
    pub(crate) fn write(
        &self,
        work: Work,
    ) -> impl Future<Output = Result<Vec<Outcome>>> + Send + use<> {
        let begun = self.begin_write(work);
        async {
            match begun?.await {
                // The session ended by our own hand while this waited in the queue.
                Ok(Err(Error::SessionExpired)) => Err(Error::Closed),
                Ok(result) => result,
                Err(_) => Err(Error::ConnectionLoss),
            }
        }
    }

    fn begin_write(&self, work: Work) -> Result<oneshot::Receiver<Result<Vec<Outcome>>>> {
        self.expect_open()?;
        let (reply, answer) = oneshot::channel();
        self.core.begun.fetch_add(1, Ordering::AcqRel);
        let write = Write {
            session: self.core.id,
            work,
            reply,
            receipt: Receipt(self.core.finished.clone()),
        };
        self.core
            .queue
            .send(Request::Write(write))
            .map_err(|_| Error::Closed)?;
        Ok(answer)
    }

    async fn write_one(&self, op: Op) -> Result<Outcome> {
        let outcomes = self.write(Work::One(op)).await?;
        outcomes.into_iter().next().ok_or(Error::ConnectionLoss)
    }

    /// Waits for the writes of this handle that were begun before.
    async fn settle(&self) -> Result<()> {
        self.expect_open()?;
        let begun = self.core.begun.load(Ordering::Acquire);
        if *self.core.finished.borrow() < begun {
            let mut finished = self.core.finished.subscribe();
            // It cannot fail: the sender is ours.
            let _ = finished.wait_for(|finished| *finished >= begun).await;
        }
        Ok(())
    }

    async fn snapshot(&self) -> Arc<Snapshot> {
        self.core.shared.current.read().await.clone()
    }

    /// Reads, and if the file broke meanwhile, once more when it is open again.
    async fn read<T>(&self, read: impl Fn(&Snapshot) -> Result<T> + Send) -> Result<T> {
        self.settle().await?;
        let snapshot = self.snapshot().await;
        match read(&snapshot) {
            Err(Error::Backend { .. }) => {
                self.recover(&snapshot).await?;
                read(&*self.snapshot().await)
            }
            result => result,
        }
    }

    /// Like [`Self::read`], for what may take long.
    async fn read_much<T: Send + 'static>(
        &self,
        path: &TreePath,
        read: fn(&Snapshot, &TreePath) -> Result<T>,
    ) -> Result<T> {
        self.settle().await?;
        let snapshot = self.snapshot().await;
        match in_background(snapshot.clone(), path.clone(), read).await {
            Err(Error::Backend { .. }) => {
                self.recover(&snapshot).await?;
                in_background(self.snapshot().await, path.clone(), read).await
            }
            result => result,
        }
    }

    async fn recover(&self, snapshot: &Snapshot) -> Result<()> {
        let (done, recovered) = oneshot::channel();
        let request = Request::Recover {
            generation: snapshot.generation,
            done,
        };
        self.core.queue.send(request).map_err(|_| Error::Closed)?;
        recovered.await.map_err(|_| Error::Closed)
    }
}

async fn in_background<T: Send + 'static>(
    snapshot: Arc<Snapshot>,
    path: TreePath,
    read: fn(&Snapshot, &TreePath) -> Result<T>,
) -> Result<T> {
    tokio::task::spawn_blocking(move || read(&snapshot, &path))
        .await
        .unwrap_or(Err(Error::Closed))
}

#[async_trait]
impl Tree for SessionTree {
    async fn create(&self, path: &TreePath, data: Bytes, mode: CreateMode) -> Result<Created> {
        let path = path.clone();
        match self.write_one(Op::Create { path, data, mode }).await? {
            Outcome::Created(created) => Ok(created),
            _ => Err(Error::ConnectionLoss),
        }
    }

    async fn get(&self, path: &TreePath) -> Result<Record> {
        self.read(|snapshot| snapshot.get(path)).await
    }

    async fn stat(&self, path: &TreePath) -> Result<Option<Stat>> {
        self.read(|snapshot| snapshot.stat(path)).await
    }

    async fn set(&self, path: &TreePath, data: Bytes, version: Version) -> Result<Stat> {
        let path = path.clone();
        let op = Op::Set {
            path,
            data,
            version,
        };
        match self.write_one(op).await? {
            Outcome::Set(stat) => Ok(stat),
            _ => Err(Error::ConnectionLoss),
        }
    }

    async fn delete(&self, path: &TreePath, version: Version) -> Result<()> {
        let path = path.clone();
        self.write_one(Op::Delete { path, version }).await.map(drop)
    }

    async fn children(&self, path: &TreePath) -> Result<Listing> {
        self.read_much(path, Snapshot::children).await
    }

    async fn list(&self, path: &TreePath) -> Result<Vec<(String, Record)>> {
        self.read_much(path, Snapshot::list).await
    }

    async fn multi(&self, ops: Vec<Op>) -> Result<Vec<OpOutcome>> {
        limits::check_multi("", &ops)?;
        let outcomes = self.write(Work::All(ops)).await?;
        Ok(outcomes.into_iter().map(OpOutcome::from).collect())
    }

    async fn watch(&self, path: &TreePath) -> Result<Watcher> {
        self.settle().await?;
        let watcher = self.core.shared.hub.watch(self.core.id, path);
        // The session may have ended between the first look and the registration.
        self.expect_open()?;
        Ok(watcher)
    }

    async fn watch_once(&self, path: &TreePath) -> Result<(Option<Stat>, Once)> {
        // Registered before the look, so no change falls between them; one that falls before the
        // look costs the caller a second look.
        self.settle().await?;
        let once = self.core.shared.hub.watch_once(self.core.id, path);
        Ok((self.stat(path).await?, once))
    }

    async fn sync(&self) -> Result<()> {
        self.settle().await
    }

    fn session(&self) -> watch::Receiver<Session> {
        self.core.state.subscribe()
    }

    fn pinned(&self, session: SessionId) -> Arc<dyn Tree> {
        Arc::new(Self {
            core: self.core.clone(),
            pin: Some(session),
        })
    }

    async fn close(&self) {
        let (done, ended) = oneshot::channel();
        let request = Request::End {
            session: self.core.id,
            done: Some(done),
        };
        if self.core.queue.send(request).is_ok() {
            let _ = ended.await;
        }
        self.core.state.send_replace(Session::Closed);
    }
}
