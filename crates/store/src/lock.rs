//! Locks that are shared with kazoo, the client library of Zuul and Python Nodepool.
//!
//! A lock is a directory. Whoever wants it creates `<uuid>__lock__<sequence>` in it; the lowest sequence
//! holds the lock, everybody else waits for the one right before them. The contender is ephemeral, so a lock
//! ends with its session; a *persistent* contender holds on until somebody deletes it.
//!
//! # What a guard promises
//!
//! A [`LockGuard`] belongs to one session, and [`LockGuard::tree`] is a handle on that session alone: when
//! the session has ended, and somebody else may hold the lock, nothing written through it takes effect
//! any more. Code that works under a lock writes through the guard's tree.
//!
//! Every attempt has a contender of its own. Two tasks of one process exclude each other just as two
//! processes do; no table of held locks is needed beside the tree.
//!
//! # Cancellation
//!
//! A contender that is left behind blocks everybody else for as long as the session lives, and a `drop`
//! cannot wait for the store. So whatever ends early (a dropped `acquire`, a guard that was not released)
//! hands its contender to the [`Locks`]' clean-up task, which deletes it as soon as the connection
//! allows. [`Locks::settled`] waits for it. If the process ends first, so does the session, and the
//! contender with it; only a persistent contender needs to be released deliberately.

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
use crate::tree::{Session, SessionId, Tree};
use cleanup::{Cleanup, Leftover};
use contender::{Contender, Place};

/// The locks that one handle on the store takes. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Locks {
    tree: Arc<dyn Tree>,
    cleanup: Cleanup,
}

/// One lock and how to contend for it; nothing happens before it is acquired.
#[derive(Debug, Clone)]
pub struct Lock {
    tree: Arc<dyn Tree>,
    cleanup: Cleanup,
    dir: TreePath,
    identifier: Bytes,
    persistent: bool,
    parents: Parents,
    /// Nobody has contended for it yet, most likely.
    new: bool,
}

/// What to do when the lock's directory does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parents {
    /// Create it with all its parents.
    Create,
    /// Create it alone. If its parent is missing, what was to be locked is gone.
    MustExist,
}

/// A lock that is held.
///
/// Release it with [`LockGuard::release`]. Dropping it releases it as well, but later (see the module's
/// text); a persistent one stays when its guard is dropped.
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    tree: Arc<dyn Tree>,
    session: SessionId,
    sessions: watch::Receiver<Session>,
    path: TreePath,
    persistent: bool,
    leftover: Option<Leftover>,
}

/// Somebody who holds a lock or waits for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockContender {
    pub path: TreePath,
    /// What the contender says about itself; mostly nothing.
    pub identifier: String,
    /// None for a persistent contender.
    pub session: Option<SessionId>,
}

impl Locks {
    /// Must be called inside a runtime, which the clean-up task runs on.
    pub fn new(tree: Arc<dyn Tree>) -> Self {
        let cleanup = Cleanup::spawn(Arc::clone(&tree));
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

    /// Waits until no contender of a dropped guard or a cancelled attempt is left. To be called before
    /// the process ends.
    pub async fn settled(&self) {
        self.cleanup.settled().await;
    }
}

impl Lock {
    /// What [`Lock::contenders`] shows for us.
    pub fn identifier(mut self, identifier: &str) -> Self {
        self.identifier = Bytes::copy_from_slice(identifier.as_bytes());
        self
    }

    /// The contender outlives the session and the guard. It goes by [`LockGuard::release`], or
    /// when somebody deletes its record.
    pub fn persistent(mut self) -> Self {
        self.persistent = true;
        self
    }

    /// Fails with [`Error::NoNode`] if the record that holds the lock directory is missing, instead of
    /// creating it again as an empty ghost.
    pub fn of_existing(mut self) -> Self {
        self.parents = Parents::MustExist;
        self
    }

    /// Most likely we are the first to contend for it: its directory is made along with our contender, which
    /// saves a round trip if it is missing and costs a write if it is not.
    pub fn likely_new(mut self) -> Self {
        self.new = true;
        self
    }

    pub fn dir(&self) -> &TreePath {
        &self.dir
    }

    /// Takes the lock if it is free. Otherwise none, and no contender is left behind.
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>> {
        let session = self.tree.session().borrow().id();
        let session = session.ok_or(Error::ConnectionLoss)?;
        let mut contender = Contender::new(self, session);
        match contender.place().await? {
            Place::First(path) => Ok(Some(contender.into_guard(path))),
            Place::Behind(_) => {
                contender.withdraw().await?;
                Ok(None)
            }
        }
    }

    /// Waits for the lock, across lost connections and sessions.
    pub async fn acquire(&self) -> Result<LockGuard> {
        let mut contender = Contender::new(self, ext::connected(&*self.tree).await?);
        let path = contender.wait().await?;
        Ok(contender.into_guard(path))
    }

    /// Like [`Lock::acquire`], but gives up with [`Error::LockTimeout`].
    pub async fn acquire_within(&self, limit: Duration) -> Result<LockGuard> {
        let deadline = Instant::now() + limit;
        let Ok(session) = timeout_at(deadline, ext::connected(&*self.tree)).await else {
            return Err(Error::LockTimeout(limit));
        };
        let mut contender = Contender::new(self, session?);
        match timeout_at(deadline, contender.wait()).await {
            Ok(path) => Ok(contender.into_guard(path?)),
            Err(_) => {
                // Without a connection this would wait for longer than we were told to.
                if matches!(*self.tree.session().borrow(), Session::Connected(_)) {
                    contender.withdraw().await?;
                }
                Err(Error::LockTimeout(limit))
            }
        }
    }

    /// Who holds the lock (the first) and who waits for it, in their order.
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
    /// The store, for as long as the session that holds the lock lives.
    pub fn tree(&self) -> &Arc<dyn Tree> {
        &self.tree
    }

    /// The record of our contender.
    pub fn path(&self) -> &TreePath {
        &self.path
    }

    /// The session that holds the lock.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// False once the session is known to have ended. True says little: ask the store through
    /// [`LockGuard::tree`].
    pub fn is_valid(&self) -> bool {
        self.sessions.borrow().id() == Some(self.session)
    }

    /// Returns when the session has ended, and with it the lock unless it is persistent.
    pub async fn lost(&self) {
        ext::session_over(self.sessions.clone(), self.session).await;
    }

    /// Our contender is gone already: it was deleted by path, as part of a multi.
    pub fn forget(mut self) {
        if let Some(leftover) = self.leftover.take() {
            leftover.keep();
        }
    }

    /// Returns when our contender is gone, or its session.
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
