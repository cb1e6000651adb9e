//! One attempt to get a lock: joins the queue, and finds out who is before us.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{join, join3};

use super::cleanup::{self, Leftover};
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
    /// From the moment a create is sent, there may be something to remove.
    leftover: Option<Leftover>,
}

pub(super) enum Place {
    /// Ours is the first of the contenders: we hold the lock.
    First(TreePath),
    /// This one is right before us.
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

    /// Returns when we hold the lock, by this child.
    pub(super) async fn wait(&mut self) -> Result<TreePath> {
        loop {
            match self.wait_in_session().await {
                Err(error) if error.is_connection() => {}
                result => return result,
            }
            let session = ext::reconnected(&*self.lock.tree).await?;
            if session != self.session {
                self.move_to(session);
            }
        }
    }

    async fn wait_in_session(&mut self) -> Result<TreePath> {
        loop {
            match self.place().await? {
                Place::First(own) => return Ok(own),
                Place::Behind(other) => {
                    let (stat, change) = self.tree.watch_once(&other).await?;
                    if stat.is_some() {
                        change.fired().await;
                    }
                }
            }
        }
    }

    /// An ephemeral contender has died with its session. The server may show it for a moment longer, so
    /// it must not be found again: the new attempt has a new prefix.
    fn move_to(&mut self, session: SessionId) {
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

    /// Where we are in the queue, which we join if we are not yet in it.
    pub(super) async fn place(&mut self) -> Result<Place> {
        loop {
            let (own, names) = match self.child.clone() {
                Some(own) => (own, ext::child_names(&*self.tree, &self.lock.dir).await?),
                None => self.join().await?,
            };
            if names.iter().any(|name| name == own.name()) {
                return Ok(match name::predecessor(&names, own.name()) {
                    Some(other) => Place::Behind(self.lock.dir.join(other)?),
                    None => Place::First(own),
                });
            }
            // Somebody has removed us from the queue.
            self.child = None;
            if let Some(leftover) = &mut self.leftover {
                leftover.located(None);
            }
        }
    }

    async fn join(&mut self) -> Result<(TreePath, Vec<String>)> {
        if self.leftover.is_some() {
            // An earlier create was not answered. It may have happened all the same.
            let mut found = cleanup::find(&*self.tree, &self.lock.dir, &self.prefix).await?;
            if let Some(own) = found.pop() {
                let own = self.lock.dir.join(&own)?;
                self.entered(own.clone());
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
            self.leftover = Some(self.lock.cleanup.leftover(
                self.lock.dir.clone(),
                self.prefix.clone(),
                owner,
            ));
        }

        // The listing is sent along: it takes effect after the create, and saves a round trip.
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
        // Somebody may have made the parents in between, and then we have entered the queue already.
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
                self.entered(created.path.clone());
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

    fn entered(&mut self, path: TreePath) {
        self.child = Some(path.clone());
        if let Some(leftover) = &mut self.leftover {
            leftover.located(Some(path));
        }
    }

    /// Leaves the queue; returns when our child is gone.
    pub(super) async fn withdraw(mut self) -> Result<()> {
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
