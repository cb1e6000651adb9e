//! Records of node requests.
//!
//! Zuul deletes requests without their children, so a request's lock is in a separate directory that outlives it.
//! [`Requests::lock_dirs`] lists them for garbage collection.

use nodeyard_model::{NodeRequest, Record as _, RequestId, layout};

use super::{Attempt, Patience, Registry, RequestShape, Stored, create, new_id, path, store};
use crate::error::Result;
use crate::ext;
use crate::lock::{Lock, LockGuard};
use crate::tree::{CreateMode, Listing, Stat};
use crate::view::View;

#[derive(Debug, Clone, Copy)]
pub struct Requests<'a> {
    pub(super) registry: &'a Registry,
}

/// Whether a request outlives the session that created it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    Session,
    UntilDeleted,
}

impl Requests<'_> {
    pub fn view(&self) -> Result<View<RequestShape>> {
        self.registry.view(layout::REQUESTS, RequestShape)
    }

    pub async fn create(
        &self,
        precedence: u16,
        request: &NodeRequest,
        lifetime: Lifetime,
    ) -> Result<(RequestId, Stat)> {
        let mode = match lifetime {
            Lifetime::Session => CreateMode::EphemeralSequential,
            Lifetime::UntilDeleted => CreateMode::PersistentSequential,
        };
        let dir = path(layout::REQUESTS)?;
        let prefix = path(layout::request_prefix(precedence))?;
        let created = self
            .registry
            .create(&dir, &prefix, request.to_json(), mode)
            .await?;
        Ok((new_id(&created)?, created.stat))
    }

    /// Creates a request with [`Lifetime::Session`] under a lock. Fails if the lock was lost.
    pub async fn create_under(
        &self,
        guard: &LockGuard,
        precedence: u16,
        request: &NodeRequest,
    ) -> Result<(RequestId, Stat)> {
        let dir = path(layout::REQUESTS)?;
        let prefix = path(layout::request_prefix(precedence))?;
        let tree = &**guard.tree();
        let mode = CreateMode::EphemeralSequential;
        let created = create(tree, &dir, &prefix, request.to_json(), mode).await?;
        Ok((new_id(&created)?, created.stat))
    }

    pub async fn get(&self, id: RequestId) -> Result<Option<Stored<NodeRequest>>> {
        self.registry.get(&path(layout::request(id))?).await
    }

    pub async fn list(&self) -> Result<Vec<(RequestId, Stored<NodeRequest>)>> {
        self.registry.list(&path(layout::REQUESTS)?).await
    }

    /// Returns the lock of a request.
    pub fn lock_of(&self, id: RequestId) -> Result<Lock> {
        let lock = self.registry.locks.lock(path(layout::request_lock(id))?);
        // Most requests are locked exactly once.
        Ok(lock.likely_new())
    }

    pub async fn lock(&self, id: RequestId, patience: Patience) -> Result<Attempt<NodeRequest>> {
        let lock = self.lock_of(id)?;
        let request = path(layout::request(id))?;
        self.registry.lock_and_read(&lock, &request, patience).await
    }

    /// Writes a request. Fails with [`Error::NoNode`](crate::Error::NoNode) if the requestor has deleted it.
    pub async fn store(
        &self,
        guard: &LockGuard,
        id: RequestId,
        request: &NodeRequest,
    ) -> Result<Stat> {
        store(guard, &path(layout::request(id))?, request).await
    }

    /// Deletes a request. Returns false if it did not exist.
    pub async fn delete(&self, id: RequestId) -> Result<bool> {
        ext::delete_opt(&*self.registry.tree, &path(layout::request(id))?).await
    }

    /// Returns a number that changes whenever a lock directory is created or deleted; `None` if there never was one.
    pub async fn lock_dirs_edition(&self) -> Result<Option<i64>> {
        let all = self
            .registry
            .tree
            .stat(&path(layout::REQUEST_LOCKS)?)
            .await?;
        Ok(all.map(|stat| stat.pzxid))
    }

    /// Returns the requests that have a lock directory, including deleted ones, and the edition of this list.
    pub async fn lock_dirs(&self) -> Result<(Vec<RequestId>, Option<i64>)> {
        let all = path(layout::REQUEST_LOCKS)?;
        let Listing { names, stat } = match self.registry.tree.children(&all).await {
            Err(error) if error.is_no_node() => return Ok((Vec::new(), None)),
            result => result?,
        };
        let ids = names.iter().filter_map(|name| name.parse().ok());
        Ok((ids.collect(), Some(stat.pzxid)))
    }

    /// Returns the stat of a lock directory, if it exists. Its times are those of its creation.
    pub async fn lock_dir(&self, id: RequestId) -> Result<Option<Stat>> {
        self.registry
            .tree
            .stat(&path(layout::request_lock(id))?)
            .await
    }

    pub async fn delete_lock_dir(&self, id: RequestId) -> Result<()> {
        let dir = path(layout::request_lock(id))?;
        ext::delete_recursive(&*self.registry.tree, &dir).await
    }
}
