//! A store handle with fault injection, such as lost responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use nodeyard_store::{
    CreateMode, Created, Error, Listing, Once, Op, OpOutcome, Record, Session, SessionId, Stat,
    Tree, TreePath, Version, Watcher, ext,
};
use tokio::sync::{Semaphore, watch};

type Result<T> = std::result::Result<T, Error>;

/// What happens to the next create or delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Fault {
    None,
    /// It never reaches the store.
    LoseCreate,
    /// It takes effect, but its response is lost.
    LoseAnswerOfCreate,
    LoseDelete,
    /// The parent of a persistent record is missing, and somebody makes both right afterwards. What was sent along
    /// comes after that.
    ParentsAppear,
}

#[derive(Debug)]
pub(crate) struct Faulty {
    tree: Arc<dyn Tree>,
    fault: Arc<AtomicU8>,
    reads: Arc<Reads>,
    /// Held back until parents have appeared.
    parents: watch::Sender<bool>,
    /// What may not be read, and how often somebody tried.
    forbidden: watch::Sender<(Option<TreePath>, usize)>,
}

/// Keeps the answers of reads back.
#[derive(Debug)]
struct Reads {
    /// Answers that the store has given since they are kept back, if they are.
    answered: watch::Sender<Option<usize>>,
    permits: Semaphore,
}

impl Faulty {
    pub(crate) fn new(tree: Arc<dyn Tree>) -> Arc<Self> {
        Arc::new(Self {
            tree,
            fault: Arc::new(AtomicU8::new(Fault::None as u8)),
            reads: Arc::new(Reads {
                answered: watch::Sender::new(None),
                permits: Semaphore::new(0),
            }),
            parents: watch::Sender::new(false),
            forbidden: watch::Sender::new((None, 0)),
        })
    }

    /// From now on this record can neither be read nor listed; none can be again.
    pub(crate) fn forbid(&self, path: Option<TreePath>) {
        self.forbidden.send_replace((path, 0));
    }

    /// Waits until so many reads of it were refused.
    pub(crate) async fn refused(&self, count: usize) {
        let mut forbidden = self.forbidden.subscribe();
        let reached = forbidden.wait_for(|(_, refused)| *refused >= count);
        reached.await.unwrap();
    }

    fn permitted(&self, path: &TreePath) -> Result<()> {
        let refuse = |(forbidden, refused): &mut (Option<TreePath>, usize)| {
            let hit = forbidden.as_ref() == Some(path);
            *refused += usize::from(hit);
            hit
        };
        if self.forbidden.send_if_modified(refuse) {
            return Err(Error::NoAuth { path: path.clone() });
        }
        Ok(())
    }

    /// From now on, no answer of a read arrives unless it is let through.
    pub(crate) fn keep_reads(&self) {
        self.reads.answered.send_replace(Some(0));
    }

    /// Waits until the store has answered so many reads since then.
    pub(crate) async fn reads_answered(&self, count: usize) {
        let mut answered = self.reads.answered.subscribe();
        let reached = answered.wait_for(|answered| answered.is_some_and(|now| now >= count));
        reached.await.unwrap();
    }

    pub(crate) fn let_reads_through(&self, count: usize) {
        self.reads.permits.add_permits(count);
    }

    pub(crate) fn next(&self, fault: Fault) {
        self.fault.store(fault as u8, Ordering::SeqCst);
    }

    async fn parents_appeared(&self) {
        if self.fault.load(Ordering::SeqCst) == Fault::ParentsAppear as u8 {
            let mut parents = self.parents.subscribe();
            parents.wait_for(|appeared| *appeared).await.unwrap();
        }
    }

    /// True once for each fault that was asked for.
    fn hits(&self, fault: Fault) -> bool {
        self.fault
            .compare_exchange(
                fault as u8,
                Fault::None as u8,
                Ordering::SeqCst,
                Ordering::SeqCst,
            )
            .is_ok()
    }
}

#[async_trait]
impl Tree for Faulty {
    async fn create(&self, path: &TreePath, data: Bytes, mode: CreateMode) -> Result<Created> {
        if self.hits(Fault::LoseCreate) {
            return Err(Error::ConnectionLoss);
        }
        if mode != CreateMode::Persistent {
            self.parents_appeared().await;
        }
        let created = self.tree.create(path, data, mode).await;
        if matches!(created, Err(Error::NoNode { .. })) && self.hits(Fault::ParentsAppear) {
            ext::ensure_path(&*self.tree, path).await?;
            self.parents.send_replace(true);
        }
        if created.is_ok() && self.hits(Fault::LoseAnswerOfCreate) {
            return Err(Error::ConnectionLoss);
        }
        created
    }

    async fn get(&self, path: &TreePath) -> Result<Record> {
        self.permitted(path)?;
        let record = self.tree.get(path).await;
        let kept = self
            .reads
            .answered
            .send_if_modified(|answered| answered.as_mut().map(|count| *count += 1).is_some());
        if kept {
            self.reads.permits.acquire().await.unwrap().forget();
        }
        record
    }

    async fn stat(&self, path: &TreePath) -> Result<Option<Stat>> {
        self.tree.stat(path).await
    }

    async fn set(&self, path: &TreePath, data: Bytes, version: Version) -> Result<Stat> {
        self.tree.set(path, data, version).await
    }

    async fn delete(&self, path: &TreePath, version: Version) -> Result<()> {
        if self.hits(Fault::LoseDelete) {
            return Err(Error::ConnectionLoss);
        }
        self.tree.delete(path, version).await
    }

    async fn children(&self, path: &TreePath) -> Result<Listing> {
        self.permitted(path)?;
        self.parents_appeared().await;
        self.tree.children(path).await
    }

    async fn list(&self, path: &TreePath) -> Result<Vec<(String, Record)>> {
        self.tree.list(path).await
    }

    async fn multi(&self, ops: Vec<Op>) -> Result<Vec<OpOutcome>> {
        self.tree.multi(ops).await
    }

    async fn watch(&self, path: &TreePath) -> Result<Watcher> {
        self.tree.watch(path).await
    }

    async fn watch_once(&self, path: &TreePath) -> Result<(Option<Stat>, Once)> {
        self.tree.watch_once(path).await
    }

    async fn sync(&self) -> Result<()> {
        self.tree.sync().await
    }

    fn session(&self) -> watch::Receiver<Session> {
        self.tree.session()
    }

    fn pinned(&self, session: SessionId) -> Arc<dyn Tree> {
        Arc::new(Self {
            tree: self.tree.pinned(session),
            fault: Arc::clone(&self.fault),
            reads: Arc::clone(&self.reads),
            parents: self.parents.clone(),
            forbidden: self.forbidden.clone(),
        })
    }

    async fn close(&self) {
        self.tree.close().await;
    }
}
