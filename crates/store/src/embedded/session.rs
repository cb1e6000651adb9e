//! [`SessionTree`]: a handle on the embedded store with its own session.

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

use super::batch::WriteOutcome;
use super::snapshot::Snapshot;
use super::writer::{FinishedOnDrop, QueuedWrite, WriteOps, WriterCommand, WriterShared};

#[derive(Debug)]
pub(crate) struct SessionTree {
    core: Arc<SessionInner>,
    /// The session that this handle is pinned to.
    pin: Option<SessionId>,
}

/// A session, which ends when its last handle is dropped.
#[derive(Debug)]
struct SessionInner {
    id: i64,
    shared: Arc<WriterShared>,
    queue: mpsc::Sender<WriterCommand>,
    state: Arc<watch::Sender<Session>>,
    /// The number of writes sent to the writer, and the number it has finished.
    begun: AtomicU64,
    finished: Arc<watch::Sender<u64>>,
}

impl Drop for SessionInner {
    fn drop(&mut self) {
        let session = self.id;
        // An error means that the writer, and with it all sessions, has ended.
        let _ = self.queue.send(WriterCommand::End {
            session,
            done: None,
        });
    }
}

impl SessionTree {
    pub(super) fn begin(
        id: i64,
        shared: Arc<WriterShared>,
        queue: mpsc::Sender<WriterCommand>,
    ) -> Self {
        let state = Arc::new(watch::Sender::new(Session::Connected(SessionId(id))));
        let begin = WriterCommand::Begin {
            session: id,
            state: state.clone(),
        };
        if queue.send(begin).is_err() {
            state.send_replace(Session::Closed);
        }
        let core = SessionInner {
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

    fn check_open(&self) -> Result<()> {
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

    /// Starts a write immediately. The future returns its result.
    pub(crate) fn write(
        &self,
        work: WriteOps,
    ) -> impl Future<Output = Result<Vec<WriteOutcome>>> + Send + use<> {
        let begun = self.begin_write(work);
        async {
            match begun?.await {
                // The session was closed while this write was queued.
                Ok(Err(Error::SessionExpired)) => Err(Error::Closed),
                Ok(result) => result,
                Err(_) => Err(Error::ConnectionLoss),
            }
        }
    }

    fn begin_write(&self, work: WriteOps) -> Result<oneshot::Receiver<Result<Vec<WriteOutcome>>>> {
        self.check_open()?;
        let (reply, answer) = oneshot::channel();
        self.core.begun.fetch_add(1, Ordering::AcqRel);
        let write = QueuedWrite {
            session: self.core.id,
            work,
            reply,
            finished_on_drop: FinishedOnDrop(self.core.finished.clone()),
        };
        self.core
            .queue
            .send(WriterCommand::Write(write))
            .map_err(|_| Error::Closed)?;
        Ok(answer)
    }

    async fn write_one(&self, op: Op) -> Result<WriteOutcome> {
        let outcomes = self.write(WriteOps::One(op)).await?;
        outcomes.into_iter().next().ok_or(Error::ConnectionLoss)
    }

    /// Waits for earlier writes of this handle.
    async fn wait_for_own_writes(&self) -> Result<()> {
        self.check_open()?;
        let begun = self.core.begun.load(Ordering::Acquire);
        if *self.core.finished.borrow() < begun {
            let mut finished = self.core.finished.subscribe();
            // Cannot fail: `self` owns the sender.
            let _ = finished.wait_for(|finished| *finished >= begun).await;
        }
        Ok(())
    }

    async fn snapshot(&self) -> Arc<Snapshot> {
        self.core.shared.current.read().await.clone()
    }

    /// Reads from the snapshot, and once more after the file was reopened if that fails.
    async fn read<T>(&self, read: impl Fn(&Snapshot) -> Result<T> + Send) -> Result<T> {
        self.wait_for_own_writes().await?;
        let snapshot = self.snapshot().await;
        match read(&snapshot) {
            Err(Error::Backend { .. }) => {
                self.recover(&snapshot).await?;
                read(&*self.snapshot().await)
            }
            result => result,
        }
    }

    /// As [`Self::read`], on the blocking pool.
    async fn read_blocking<T: Send + 'static>(
        &self,
        path: &TreePath,
        read: fn(&Snapshot, &TreePath) -> Result<T>,
    ) -> Result<T> {
        self.wait_for_own_writes().await?;
        let snapshot = self.snapshot().await;
        match run_blocking(snapshot.clone(), path.clone(), read).await {
            Err(Error::Backend { .. }) => {
                self.recover(&snapshot).await?;
                run_blocking(self.snapshot().await, path.clone(), read).await
            }
            result => result,
        }
    }

    async fn recover(&self, snapshot: &Snapshot) -> Result<()> {
        let (done, recovered) = oneshot::channel();
        let request = WriterCommand::Recover {
            generation: snapshot.generation,
            done,
        };
        self.core.queue.send(request).map_err(|_| Error::Closed)?;
        recovered.await.map_err(|_| Error::Closed)
    }
}

async fn run_blocking<T: Send + 'static>(
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
            WriteOutcome::Created(created) => Ok(created),
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
            WriteOutcome::Set(stat) => Ok(stat),
            _ => Err(Error::ConnectionLoss),
        }
    }

    async fn delete(&self, path: &TreePath, version: Version) -> Result<()> {
        let path = path.clone();
        self.write_one(Op::Delete { path, version }).await.map(drop)
    }

    async fn children(&self, path: &TreePath) -> Result<Listing> {
        self.read_blocking(path, Snapshot::children).await
    }

    async fn list(&self, path: &TreePath) -> Result<Vec<(String, Record)>> {
        self.read_blocking(path, Snapshot::list).await
    }

    async fn multi(&self, ops: Vec<Op>) -> Result<Vec<OpOutcome>> {
        limits::check_multi("", &ops)?;
        let outcomes = self.write(WriteOps::All(ops)).await?;
        Ok(outcomes.into_iter().map(OpOutcome::from).collect())
    }

    async fn watch(&self, path: &TreePath) -> Result<Watcher> {
        self.wait_for_own_writes().await?;
        let watcher = self.core.shared.hub.watch(self.core.id, path);
        // The session may have ended before the registration.
        self.check_open()?;
        Ok(watcher)
    }

    async fn watch_once(&self, path: &TreePath) -> Result<(Option<Stat>, Once)> {
        // Registered before reading, so that no change is missed; a change in between causes a spurious event.
        self.wait_for_own_writes().await?;
        let once = self.core.shared.hub.watch_once(self.core.id, path);
        Ok((self.stat(path).await?, once))
    }

    async fn sync(&self) -> Result<()> {
        self.wait_for_own_writes().await
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
        let request = WriterCommand::End {
            session: self.core.id,
            done: Some(done),
        };
        if self.core.queue.send(request).is_ok() {
            let _ = ended.await;
        }
        self.core.state.send_replace(Session::Closed);
    }
}
