//! Locks that are shared with kazoo, the client library of Zuul and Python Nodepool.
//!
//! A lock is a directory. A contender creates `<uuid>__lock__<sequence>` in it; the lowest sequence holds the lock, the
//! others each wait for their predecessor. Contenders are ephemeral, so a lock ends with its session; a *persistent*
//! contender exists until it is deleted.
//!
//! # Fencing
//!
//! A [`LockGuard`] belongs to one session, and [`LockGuard::tree`] is a handle on that session: once the session has
//! ended, writes through it fail. Code that runs under a lock must write through the guard's tree.
//!
//! Every attempt has its own contender, so tasks of one process exclude each other like processes.
//!
//! # Cancellation
//!
//! An abandoned contender would block the lock while the session exists, and `drop` cannot wait for the store. So a
//! dropped `acquire` or guard passes its contender to the clean-up task of [`Locks`], which deletes it in the
//! background; [`Locks::settled`] waits for it. If the process ends first, its session deletes the contender; only
//! persistent ones must be released explicitly.
//!
//! A persistent contender may be found by a later attempt, of this process or another one, while the clean-up of the
//! attempt that created it is under way. [`adopt`] keeps the clean-up from deleting it.

mod cleanup;
mod contender;
mod name;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::error::{Error, Result};
use crate::ext;
use crate::path::TreePath;
use crate::tree::{Op, Session, SessionId, Tree, Version};
use cleanup::{CleanupHandle, ContenderCleanup};
use contender::{Contender, QueuePosition};

/// Creates locks on one store handle. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Locks {
    tree: Arc<dyn Tree>,
    cleanup: CleanupHandle,
}

/// A lock and its options. Has no effect until it is acquired.
#[derive(Debug, Clone)]
pub struct Lock {
    tree: Arc<dyn Tree>,
    cleanup: CleanupHandle,
    dir: TreePath,
    identifier: Bytes,
    persistent: bool,
    parents: Parents,
    /// Whether the directory probably does not exist.
    new: bool,
}

/// What to do when the lock's directory does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parents {
    /// Create it with all its parents.
    Create,
    /// Create only the directory. If its parent is missing, the record to lock was deleted.
    MustExist,
}

/// A held lock.
///
/// Released by [`LockGuard::release`], or asynchronously when dropped; a persistent lock is not released when dropped.
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    tree: Arc<dyn Tree>,
    session: SessionId,
    sessions: watch::Receiver<Session>,
    path: TreePath,
    persistent: bool,
    leftover: Option<ContenderCleanup>,
}

/// The holder of a lock or a contender waiting for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockContender {
    pub path: TreePath,
    /// The contender's identifier; usually empty.
    pub identifier: String,
    /// `None` for a persistent contender.
    pub session: Option<SessionId>,
}

/// Returns the operation that takes over a persistent contender with this identifier. It fails if the contender does not
/// exist; afterwards, neither the clean-up nor the guard of the attempt that created the contender deletes it.
pub fn adopt(contender: TreePath, identifier: &str) -> Op {
    Op::Set {
        path: contender,
        data: Bytes::copy_from_slice(identifier.as_bytes()),
        version: Version::Any,
    }
}

impl Locks {
    /// Creates the clean-up task. Must be called inside a tokio runtime.
    pub fn new(tree: Arc<dyn Tree>) -> Self {
        let cleanup = CleanupHandle::spawn(Arc::clone(&tree));
        Self { tree, cleanup }
    }

    pub fn tree(&self) -> &Arc<dyn Tree> {
        &self.tree
    }

    pub fn lock(&self, dir: TreePath) -> Lock {
        Lock {
            tree: Arc::clone(&self.tree),
            cleanup: self.cleanup.clone(),
            dir,
            identifier: Bytes::new(),
            persistent: false,
            parents: Parents::Create,
            new: false,
        }
    }

    /// Waits until all contenders of dropped guards and cancelled attempts are deleted. Call this before the process
    /// exits.
    pub async fn settled(&self) {
        self.cleanup.settled().await;
    }
}

impl Lock {
    /// Sets the identifier that [`Lock::contenders`] returns.
    pub fn identifier(mut self, identifier: &str) -> Self {
        self.identifier = Bytes::copy_from_slice(identifier.as_bytes());
        self
    }

    /// Makes the contender outlive the session and the guard, until [`LockGuard::release`] or
    /// the deletion of its record.
    pub fn persistent(mut self) -> Self {
        self.persistent = true;
        self
    }

    /// Makes acquiring fail with [`Error::NoNode`] if the parent record is missing, instead of
    /// recreating it without data.
    pub fn of_existing(mut self) -> Self {
        self.parents = Parents::MustExist;
        self
    }

    /// Creates the directory along with the contender, which saves a round trip if it is missing and costs a write if
    /// it exists.
    pub fn likely_new(mut self) -> Self {
        self.new = true;
        self
    }

    pub fn dir(&self) -> &TreePath {
        &self.dir
    }

    /// Acquires the lock if it is free. Otherwise returns `None` and leaves no contender.
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>> {
        let session = self.tree.session().borrow().id();
        let session = session.ok_or(Error::ConnectionLoss)?;
        let mut contender = Contender::new(self, session);
        match contender.queue_position().await? {
            QueuePosition::First(path) => Ok(Some(contender.into_guard(path))),
            QueuePosition::Behind(_) => {
                contender.leave().await?;
                Ok(None)
            }
        }
    }

    /// Acquires the lock, waiting across lost connections and sessions.
    pub async fn acquire(&self) -> Result<LockGuard> {
        let mut contender = Contender::new(self, ext::connected(&*self.tree).await?);
        let path = contender.wait().await?;
        Ok(contender.into_guard(path))
    }

    /// Acquires the lock, or fails with [`Error::LockTimeout`].
    pub async fn acquire_within(&self, limit: Duration) -> Result<LockGuard> {
        let deadline = Instant::now() + limit;
        let Ok(session) = timeout_at(deadline, ext::connected(&*self.tree)).await else {
            return Err(Error::LockTimeout(limit));
        };
        let mut contender = Contender::new(self, session?);
        match timeout_at(deadline, contender.wait()).await {
            Ok(path) => Ok(contender.into_guard(path?)),
            Err(_) => {
                // Without a connection this would exceed the time limit.
                if matches!(*self.tree.session().borrow(), Session::Connected(_)) {
                    contender.leave().await?;
                }
                Err(Error::LockTimeout(limit))
            }
        }
    }

    /// Waits until the contender that holds the lock now has left, or the connection changes. Returns at once if the lock
    /// is free. Does not enqueue a contender.
    pub async fn released(&self) -> Result<()> {
        let names = ext::child_names(&*self.tree, &self.dir).await?;
        let Some(holder) = name::first(&names) else {
            return Ok(());
        };
        let (stat, change) = self.tree.watch_once(&self.dir.join(holder)?).await?;
        if stat.is_some() {
            change.fired().await;
        }
        Ok(())
    }

    /// Returns the holder of the lock, then the waiting contenders in order.
    pub async fn contenders(&self) -> Result<Vec<LockContender>> {
        let children = match self.tree.list(&self.dir).await {
            Ok(children) => children,
            Err(Error::NoNode { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut found = Vec::new();
        for (name, record) in &children {
            if let Some(order) = name::order(name) {
                found.push((
                    order,
                    LockContender {
                        path: self.dir.join(name)?,
                        identifier: String::from_utf8_lossy(&record.data).into_owned(),
                        session: record
                            .stat
                            .is_ephemeral()
                            .then_some(SessionId(record.stat.ephemeral_owner)),
                    },
                ));
            }
        }
        found.sort_by_key(|(order, _)| *order);
        Ok(found.into_iter().map(|(_, contender)| contender).collect())
    }
}

impl LockGuard {
    /// Returns a store handle that is valid only in the session that holds the lock.
    pub fn tree(&self) -> &Arc<dyn Tree> {
        &self.tree
    }

    /// Returns the path of the contender.
    pub fn path(&self) -> &TreePath {
        &self.path
    }

    /// Returns the session that holds the lock.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Returns false once the session is known to have ended. May lag behind; to be certain, use
    /// [`LockGuard::tree`].
    pub fn is_valid(&self) -> bool {
        self.sessions.borrow().id() == Some(self.session)
    }

    /// Waits until the session has ended, and with it the lock unless it is persistent.
    pub async fn lost(&self) {
        ext::session_over(self.sessions.clone(), self.session).await;
    }

    /// Discards the guard after its contender was deleted by path, as part of a multi.
    pub fn forget(mut self) {
        if let Some(leftover) = self.leftover.take() {
            leftover.keep();
        }
    }

    /// Deletes the contender, or waits for the end of its session.
    pub async fn release(mut self) -> Result<()> {
        match self.leftover.take() {
            Some(leftover) => leftover.remove().await,
            None => Ok(()),
        }
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if self.persistent
            && let Some(leftover) = self.leftover.take()
        {
            leftover.keep();
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("path", &self.path)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}
