//! One attempt to acquire a lock: enqueues a contender and waits for its predecessor.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{join, join3};

use super::cleanup::{self, ContenderCleanup};
use super::{Lock, LockGuard, Parents, name};
use crate::error::{Error, Result};
use crate::ext;
use crate::path::TreePath;
use crate::tree::{CreateMode, Created, Listing, SessionId, Tree};

pub(super) struct Contender<'a> {
    lock: &'a Lock,
    session: SessionId,
    /// Pinned to the session.
    tree: Arc<dyn Tree>,
    prefix: String,
    child: Option<TreePath>,
    /// Set once a create was sent.
    leftover: Option<ContenderCleanup>,
}

pub(super) enum QueuePosition {
    /// The contender is the first and holds the lock.
    First(TreePath),
    /// The predecessor of the contender.
    Behind(TreePath),
}

impl<'a> Contender<'a> {
    pub(super) fn new(lock: &'a Lock, session: SessionId) -> Self {
        Self {
            lock,
            session,
            tree: lock.tree.pinned(session),
            prefix: name::new_prefix(),
            child: None,
            leftover: None,
        }
    }

    /// Waits until the lock is held and returns the path of the contender.
    pub(super) async fn wait(&mut self) -> Result<TreePath> {
        loop {
            match self.wait_in_session().await {
                Err(error) if error.is_connection() => {}
                result => return result,
            }
            let session = ext::reconnected(&*self.lock.tree).await?;
            if session != self.session {
                self.restart_in_session(session);
            }
        }
    }

    async fn wait_in_session(&mut self) -> Result<TreePath> {
        loop {
            match self.queue_position().await? {
                QueuePosition::First(own) => return Ok(own),
                QueuePosition::Behind(other) => {
                    let (stat, change) = self.tree.watch_once(&other).await?;
                    if stat.is_some() {
                        change.fired().await;
                    }
                }
            }
        }
    }

    /// Starts over in a new session, with a new prefix, because the old contender may still be visible for a moment.
    fn restart_in_session(&mut self, session: SessionId) {
        self.session = session;
        self.tree = self.lock.tree.pinned(session);
        if !self.lock.persistent {
            self.prefix = name::new_prefix();
            self.child = None;
            if let Some(leftover) = self.leftover.take() {
                leftover.keep();
            }
        }
    }

    /// Returns the position in the queue, enqueueing the contender if needed.
    pub(super) async fn queue_position(&mut self) -> Result<QueuePosition> {
        loop {
            let (own, names) = match self.child.clone() {
                Some(own) => (own, ext::child_names(&*self.tree, &self.lock.dir).await?),
                None => self.join().await?,
            };
            if names.iter().any(|name| name == own.name()) {
                return Ok(match name::predecessor(&names, own.name()) {
                    Some(other) => QueuePosition::Behind(self.lock.dir.join(other)?),
                    None => QueuePosition::First(own),
                });
            }
            // The contender was deleted by someone else.
            self.child = None;
            if let Some(leftover) = &mut self.leftover {
                leftover.set_path(None);
            }
        }
    }

    async fn join(&mut self) -> Result<(TreePath, Vec<String>)> {
        if self.leftover.is_some() {
            // An earlier create was not acknowledged but may have succeeded.
            let mut found = cleanup::find(&*self.tree, &self.lock.dir, &self.prefix).await?;
            if let Some(own) = found.pop() {
                let own = self.lock.dir.join(&own)?;
                self.set_entry(own.clone());
                let names = ext::child_names(&*self.tree, &self.lock.dir).await?;
                return Ok((own, names));
            }
        }
        let path = self.lock.dir.join(&self.prefix)?;
        let mode = if self.lock.persistent {
            CreateMode::PersistentSequential
        } else {
            CreateMode::EphemeralSequential
        };
        let owner = (!self.lock.persistent).then_some(self.session);
        if self.leftover.is_none() {
            self.leftover = Some(self.lock.cleanup.register(
                self.lock.dir.clone(),
                self.prefix.clone(),
                owner,
            ));
        }

        // The listing is pipelined: it takes effect after the create and saves a round trip.
        let create = || self.tree.create(&path, self.lock.identifier.clone(), mode);
        let list = || self.tree.children(&self.lock.dir);
        let make_dir = || {
            self.tree
                .create(&self.lock.dir, Bytes::new(), CreateMode::Persistent)
        };
        let (made, mut created, mut listing);
        if self.lock.new {
            (made, created, listing) = join3(make_dir(), create(), list()).await;
        } else {
            (created, listing) = join(create(), list()).await;
            if !is_no_node(&created) {
                return self.joined(created, listing);
            }
            (made, created, listing) = join3(make_dir(), create(), list()).await;
        }
        // If the parents were created concurrently, the contender is already enqueued.
        let no_parent = is_no_node(&made) && is_no_node(&created);
        if no_parent && self.lock.parents == Parents::Create {
            ext::ensure_path(&*self.tree, &self.lock.dir).await?;
            (created, listing) = join(create(), list()).await;
        }
        self.joined(created, listing)
    }

    fn joined(
        &mut self,
        created: Result<Created>,
        listing: Result<Listing>,
    ) -> Result<(TreePath, Vec<String>)> {
        match created {
            Ok(created) => {
                self.set_entry(created.path.clone());
                Ok((created.path, listing?.names))
            }
            Err(error) => {
                if !matches!(error, Error::ConnectionLoss)
                    && let Some(leftover) = self.leftover.take()
                {
                    leftover.keep();
                }
                Err(error)
            }
        }
    }

    fn set_entry(&mut self, path: TreePath) {
        self.child = Some(path.clone());
        if let Some(leftover) = &mut self.leftover {
            leftover.set_path(Some(path));
        }
    }

    /// Leaves the queue and waits until the contender is deleted.
    pub(super) async fn leave(mut self) -> Result<()> {
        match self.leftover.take() {
            Some(leftover) => leftover.remove().await,
            None => Ok(()),
        }
    }

    pub(super) fn into_guard(self, path: TreePath) -> LockGuard {
        LockGuard {
            path,
            tree: self.tree,
            session: self.session,
            sessions: self.lock.tree.session(),
            persistent: self.lock.persistent,
            leftover: self.leftover,
        }
    }
}

fn is_no_node<T>(result: &Result<T>) -> bool {
    matches!(result, Err(Error::NoNode { .. }))
}
