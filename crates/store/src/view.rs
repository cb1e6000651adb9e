//! A copy of a subtree that follows the store by itself.
//!
//! A [`View`] loads every record of its [`Shape`] below a root, parses each once, and then follows the
//! watch: an event costs one read of the record it names, however large the rest is. Many events for one
//! record are answered by one read.
//!
//! # Exactness
//!
//! The watch is set before the first listing, so no change falls between the two. When events may have
//! been missed (a [`WatchEvent::Gap`](crate::WatchEvent::Gap): the connection was away, the session is a new one, we were too
//! slow) everything is listed again and compared; records that have not changed meanwhile are kept as
//! they are, so that nobody is told about them. Until then the view shows what was last known.
//! [`View::synced`] waits until all that had been written before is in the view.
//!
//! A record is replaced only by a newer one (by the transaction that wrote it). Therefore the result of a
//! write can be put into the view at once ([`View::wrote`], [`View::deleted`]), and reads that were under
//! way then do not turn it back.
//!
//! # What is not a value
//!
//! Records that do not parse are kept as [`Flaw`]s, are reported once in the log, and stand in nobody's
//! way. A record without data is not there yet (its creator is still at it) or is a ghost that a locker
//! left behind; [`View::empty`] lists them.

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
use state::State;

type ParseError = Box<dyn std::error::Error + Send + Sync>;

/// Which records a view holds, and what they are.
pub trait Shape: Send + Sync + 'static {
    type Id: Clone + Ord + Hash + fmt::Debug + Send + Sync + 'static;
    type Value: Send + Sync + 'static;

    /// What stands at a path below the root.
    fn kind(&self, path: &TreePath) -> Kind<Self::Id>;

    fn parse(&self, id: &Self::Id, data: &[u8]) -> Result<Self::Value, ParseError>;
}

/// What a path below a view's root stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind<I> {
    Record {
        id: I,
        /// There may be more records below it.
        branch: bool,
        /// It has a lock in its child `lock`, whose contenders are followed.
        lock: bool,
    },
    /// In the lock of this record, which has `lock` set.
    Contender(I),
    /// Not a record itself, but there may be some below it.
    Directory,
    /// Neither it nor anything below it belongs to the view.
    Nothing,
}

/// A value of a view. Its stat is that of the moment when the data was last changed; the numbers about
/// children may be older than the children.
pub struct Item<S: Shape> {
    pub id: S::Id,
    pub value: Arc<S::Value>,
    pub stat: Stat,
    /// Somebody holds the record's lock or waits for it. A hint that may be old; to decide anything, take
    /// the lock.
    pub locked: bool,
}

/// A record that could not be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flaw<I> {
    pub id: I,
    pub path: TreePath,
    pub reason: String,
    pub stat: Stat,
    /// What was read; nothing if it was huge.
    pub data: Bytes,
}

/// A copy of the records below a path. Cloning is cheap; all clones show the same. The copy is kept
/// up to date as long as one of them lives.
pub struct View<S: Shape> {
    shared: Arc<Shared<S>>,
    feed: Arc<Feed>,
}

/// The task that follows the store. It ends with the last clone of its view.
struct Feed {
    barriers: mpsc::UnboundedSender<oneshot::Sender<()>>,
    task: AbortHandle,
}

struct Shared<S: Shape> {
    tree: Arc<dyn Tree>,
    root: TreePath,
    shape: S,
    state: RwLock<State<S>>,
    backlog: SharedBacklog,
}

#[derive(Default)]
struct SharedBacklog {
    events: AtomicUsize,
    reads: AtomicUsize,
}

/// What a view knows of and does not show yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// Events that were not looked at.
    pub events: usize,
    /// Records that are being read again, or have to be.
    pub reads: usize,
}

impl<S: Shape> View<S> {
    /// Begins to follow the store; does not wait for it. Must be called inside a runtime.
    pub fn open(tree: Arc<dyn Tree>, root: TreePath, shape: S) -> Self {
        let (barriers, requests) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            tree,
            root,
            shape,
            state: RwLock::new(State::default()),
            backlog: SharedBacklog::default(),
        });
        let task = tokio::spawn(feed::run(Arc::clone(&shared), requests)).abort_handle();
        Self {
            shared,
            feed: Arc::new(Feed { barriers, task }),
        }
    }

    pub fn root(&self) -> &TreePath {
        &self.shared.root
    }

    pub fn get(&self, id: &S::Id) -> Option<Item<S>> {
        self.shared.read().item(id)
    }

    /// All values, in ascending order of their ids.
    pub fn items(&self) -> Vec<Item<S>> {
        self.shared.read().items().collect()
    }

    /// Looks at every value in ascending order of ids, without a copy of the list. Changes wait
    /// meanwhile, so `look` should be brief.
    pub fn for_each(&self, look: impl FnMut(Item<S>)) {
        self.shared.read().items().for_each(look);
    }

    pub fn len(&self) -> usize {
        self.shared.read().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Records that could not be parsed.
    pub fn flaws(&self) -> Vec<Flaw<S::Id>> {
        self.shared.read().flaws()
    }

    /// What is wrong with a record; none if there is no such record, or nothing wrong with it.
    pub fn flaw(&self, id: &S::Id) -> Option<Flaw<S::Id>> {
        self.shared.read().flaw(id)
    }

    /// Records without data.
    pub fn empty(&self) -> Vec<(S::Id, Stat)> {
        self.shared.read().empty()
    }

    /// True for a record without data.
    pub fn is_blank(&self, id: &S::Id) -> bool {
        self.shared.read().is_blank(id)
    }

    /// Tells which records change from now on.
    pub fn changes(&self) -> Changes<S::Id> {
        self.shared.write().subscribe()
    }

    /// True while the view follows events: it has been loaded, and no event is known to be missing.
    pub fn is_current(&self) -> bool {
        self.shared.read().is_current()
    }

    pub fn backlog(&self) -> Backlog {
        let Shared { backlog, .. } = &*self.shared;
        Backlog {
            events: backlog.events.load(Ordering::Relaxed),
            reads: backlog.reads.load(Ordering::Relaxed),
        }
    }

    /// Returns when everything that had been written before the call, by anyone, is in the view.
    /// Outlasts lost connections; fails only when the store has been closed.
    pub async fn synced(&self) -> Result<()> {
        ext::persist(&*self.shared.tree, || self.shared.tree.sync()).await?;
        let (done, barrier) = oneshot::channel();
        self.feed.barriers.send(done).map_err(|_| Error::Closed)?;
        barrier.await.map_err(|_| Error::Closed)
    }

    /// Puts our own create or set into the view, unless it already shows a newer one, or what was set is gone. The
    /// stat is that which the store has answered.
    pub fn wrote(&self, id: S::Id, value: Arc<S::Value>, stat: Stat) {
        self.shared.write().put_own(id, value, stat);
    }

    /// Takes a record that we have deleted out of the view.
    pub fn deleted(&self, id: &S::Id) {
        self.shared.write().forget(id);
    }
}

impl<S: Shape> Shared<S> {
    /// Nothing panics while it holds the lock, so poison is ignored.
    fn read(&self) -> RwLockReadGuard<'_, State<S>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<S>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<S: Shape> Clone for View<S> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
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
            .field("root", &self.shared.root)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
