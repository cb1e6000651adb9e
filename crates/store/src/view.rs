//! A cached view of a subtree that is kept up to date by watches.
//!
//! A [`View`] loads and parses all records of its [`Shape`] below a root. After that, a watch event costs one read of
//! the changed record; several events for one record are coalesced into one read.
//!
//! # Consistency
//!
//! The watch is set before the first listing, so no change is missed. After a
//! [`WatchEvent::Gap`](crate::WatchEvent::Gap) everything is listed again; subscribers are notified only of records
//! that have changed. Until then the view has the last known state. [`View::synced`] waits until the view contains all
//! earlier writes.
//!
//! A record is replaced only by a newer one (by transaction id). So the result of a write can be put into the view
//! immediately ([`View::wrote`], [`View::deleted`]) and is not reverted by reads in flight.
//!
//! # Invalid and empty records
//!
//! Records that fail to parse are kept as [`InvalidRecord`]s and logged once. A record without data is being created,
//! or was left by a concurrent locker of a deleted record; [`View::empty`] lists them.

mod changes;
mod feed;
mod state;
mod walk;

use std::fmt;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

pub use changes::{Change, Changes};

use crate::error::{Error, Result};
use crate::ext;
use crate::path::TreePath;
use crate::tree::{Stat, Tree};
use state::ViewState;

type ParseError = Box<dyn std::error::Error + Send + Sync>;

/// Defines the records of a view and their types.
pub trait Shape: Send + Sync + 'static {
    type Id: Clone + Ord + Hash + fmt::Debug + Send + Sync + 'static;
    type Value: Send + Sync + 'static;

    /// Classifies a path below the root.
    fn kind(&self, path: &TreePath) -> Kind<Self::Id>;

    fn parse(&self, id: &Self::Id, data: &[u8]) -> Result<Self::Value, ParseError>;
}

/// The kind of a path below a view's root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind<I> {
    Record {
        id: I,
        /// There may be records below it.
        branch: bool,
        /// It has a lock directory `lock`, whose contenders are tracked.
        lock: bool,
    },
    /// A contender for the lock of this record.
    Contender(I),
    /// Not a record, but there may be records below it.
    Directory,
    /// Not part of the view, nor is anything below it.
    Nothing,
}

/// A record of a view. Its stat dates from the last change of its data, so the counts of children may be outdated.
pub struct Item<S: Shape> {
    pub id: S::Id,
    pub value: Arc<S::Value>,
    pub stat: Stat,
    /// Whether the record's lock is held or contended. May be outdated; acquire the lock to be certain.
    pub locked: bool,
}

/// A record that could not be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidRecord<I> {
    pub id: I,
    pub path: TreePath,
    pub reason: String,
    pub stat: Stat,
    /// The data; empty if it was very large.
    pub data: Bytes,
}

/// A cache of the records below a path. Clones share it; it is kept up to date while a clone exists.
pub struct View<S: Shape> {
    inner: Arc<ViewInner<S>>,
    feed: Arc<FeedHandle>,
}

/// The task that updates the view. Aborted with the last clone of the view.
struct FeedHandle {
    barriers: mpsc::UnboundedSender<oneshot::Sender<()>>,
    task: AbortHandle,
}

struct ViewInner<S: Shape> {
    tree: Arc<dyn Tree>,
    root: TreePath,
    shape: S,
    state: RwLock<ViewState<S>>,
    backlog: SharedBacklog,
}

#[derive(Default)]
struct SharedBacklog {
    events: AtomicUsize,
    reads: AtomicUsize,
}

/// Changes that a view has not applied yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// Events that were not processed.
    pub events: usize,
    /// Records that are being read or queued for reading.
    pub reads: usize,
}

impl<S: Shape> View<S> {
    /// Starts loading the view in the background. Must be called inside a tokio runtime.
    pub fn open(tree: Arc<dyn Tree>, root: TreePath, shape: S) -> Self {
        let (barriers, requests) = mpsc::unbounded_channel();
        let inner = Arc::new(ViewInner {
            tree,
            root,
            shape,
            state: RwLock::new(ViewState::default()),
            backlog: SharedBacklog::default(),
        });
        let task = tokio::spawn(feed::run(Arc::clone(&inner), requests)).abort_handle();
        Self {
            inner,
            feed: Arc::new(FeedHandle { barriers, task }),
        }
    }

    pub fn root(&self) -> &TreePath {
        &self.inner.root
    }

    pub fn get(&self, id: &S::Id) -> Option<Item<S>> {
        self.inner.read().item(id)
    }

    /// Returns all values, in ascending order of ids.
    pub fn items(&self) -> Vec<Item<S>> {
        self.inner.read().items().collect()
    }

    /// Calls `look` with every value in ascending order of ids, without copying the list. Blocks updates of the view, so
    /// `look` should be fast.
    pub fn for_each(&self, look: impl FnMut(Item<S>)) {
        self.inner.read().items().for_each(look);
    }

    pub fn len(&self) -> usize {
        self.inner.read().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the records that could not be parsed.
    pub fn flaws(&self) -> Vec<InvalidRecord<S::Id>> {
        self.inner.read().flaws()
    }

    /// Returns a record that could not be parsed. `None` if it is valid or does not exist.
    pub fn flaw(&self, id: &S::Id) -> Option<InvalidRecord<S::Id>> {
        self.inner.read().flaw(id)
    }

    /// Returns the records without data.
    pub fn empty(&self) -> Vec<(S::Id, Stat)> {
        self.inner.read().empty()
    }

    /// Returns whether a record exists without data.
    pub fn is_blank(&self, id: &S::Id) -> bool {
        self.inner.read().is_blank(id)
    }

    /// Subscribes to changes from now on.
    pub fn changes(&self) -> Changes<S::Id> {
        self.inner.write().subscribe()
    }

    /// Returns whether the view is loaded and no events are known to be missing.
    pub fn is_current(&self) -> bool {
        self.inner.read().is_current()
    }

    pub fn backlog(&self) -> Backlog {
        let ViewInner { backlog, .. } = &*self.inner;
        Backlog {
            events: backlog.events.load(Ordering::Relaxed),
            reads: backlog.reads.load(Ordering::Relaxed),
        }
    }

    /// Waits until the view contains all writes that were finished before the call. Retries on connection loss; fails
    /// only when the store is closed.
    pub async fn synced(&self) -> Result<()> {
        ext::persist(&*self.inner.tree, || self.inner.tree.sync()).await?;
        let (done, barrier) = oneshot::channel();
        self.feed.barriers.send(done).map_err(|_| Error::Closed)?;
        barrier.await.map_err(|_| Error::Closed)
    }

    /// Puts the result of an own create or set into the view, unless it already contains a newer one or the record was
    /// deleted. `stat` is the one that the store returned.
    pub fn wrote(&self, id: S::Id, value: Arc<S::Value>, stat: Stat) {
        self.inner.write().put_own(id, value, stat);
    }

    /// Removes a record that this process has deleted.
    pub fn deleted(&self, id: &S::Id) {
        self.inner.write().remove_deleted(id);
    }
}

impl<S: Shape> ViewInner<S> {
    /// Ignores poisoning, since no code panics while holding the lock.
    fn read(&self) -> RwLockReadGuard<'_, ViewState<S>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, ViewState<S>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FeedHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<S: Shape> Clone for View<S> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            feed: Arc::clone(&self.feed),
        }
    }
}

impl<S: Shape> Clone for Item<S> {
    fn clone(&self) -> Self {
        Self {
            id: self.id.clone(),
            value: Arc::clone(&self.value),
            stat: self.stat,
            locked: self.locked,
        }
    }
}

impl<S: Shape> fmt::Debug for Item<S>
where
    S::Value: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Item")
            .field("id", &self.id)
            .field("value", &self.value)
            .field("version", &self.stat.version)
            .field("locked", &self.locked)
            .finish_non_exhaustive()
    }
}

impl<S: Shape> fmt::Debug for View<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("root", &self.inner.root)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
