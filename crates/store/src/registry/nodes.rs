//! Nodes.
//!
//! A new node is created, then locked, and only then written as `building`: an unlocked `building` node is
//! taken for the leftover of a crash. A node is deleted by writing `deleted` before its record goes, so that
//! a locker that gets in between sees what it has locked.

use nodeyard_model::{Node, NodeId, NodeState, Record as _, Timestamp, layout};

use super::{Attempt, Held, NodeShape, Patience, Registry, Stored, new_id, path, store};
use crate::error::{Error, Result};
use crate::ext;
use crate::lock::{Lock, LockGuard};
use crate::path::TreePath;
use crate::tree::{CreateMode, Stat};
use crate::view::View;

#[derive(Debug, Clone, Copy)]
pub struct Nodes<'a> {
    pub(super) registry: &'a Registry,
}

impl Nodes<'_> {
    pub fn view(&self) -> Result<View<NodeShape>> {
        self.registry.view(layout::NODES, NodeShape)
    }

    pub async fn create(&self, node: &Node) -> Result<(NodeId, Stat)> {
        let dir = path(layout::NODES)?;
        let mode = CreateMode::PersistentSequential;
        let created = self
            .registry
            .create(&dir, &dir.unnamed_child(), node.to_json(), mode)
            .await?;
        Ok((new_id(&created)?, created.stat))
    }

    pub async fn get(&self, id: NodeId) -> Result<Option<Stored<Node>>> {
        self.registry.get(&path(layout::node(id))?).await
    }

    pub async fn list(&self) -> Result<Vec<(NodeId, Stored<Node>)>> {
        self.registry.list(&path(layout::NODES)?).await
    }

    /// The lock of a node, which does not bring back a node that is gone.
    pub fn lock_of(&self, id: NodeId) -> Result<Lock> {
        let dir = path(layout::node_lock(id))?;
        Ok(self.registry.locks.lock(dir).of_existing())
    }

    pub async fn lock(&self, id: NodeId, patience: Patience) -> Result<Attempt<Node>> {
        self.lock_by(&self.lock_of(id)?, id, patience).await
    }

    /// Like [`Nodes::lock`], with a contender that names its owner and outlives us.
    pub async fn lock_for_good(
        &self,
        id: NodeId,
        owner: &str,
        patience: Patience,
    ) -> Result<Attempt<Node>> {
        let lock = self.lock_of(id)?.persistent().identifier(owner);
        self.lock_by(&lock, id, patience).await
    }

    async fn lock_by(&self, lock: &Lock, id: NodeId, patience: Patience) -> Result<Attempt<Node>> {
        let node = path(layout::node(id))?;
        match self.registry.hold::<Node>(lock, &node, patience).await? {
            Attempt::Held(held) if is_remnant(&held.value) => {
                ext::delete_recursive(&**held.guard.tree(), &node).await?;
                held.guard.release().await?;
                Ok(Attempt::Gone)
            }
            Attempt::Gone => {
                self.delete_ghost(id).await?;
                Ok(Attempt::Gone)
            }
            attempt => Ok(attempt),
        }
    }

    pub async fn store(&self, guard: &LockGuard, id: NodeId, node: &Node) -> Result<Stat> {
        store(guard, &path(layout::node(id))?, node).await
    }

    /// Removes the record of a node whose instance is gone, and its lock with it.
    pub async fn delete(&self, id: NodeId, held: Held<Node>, now: Timestamp) -> Result<()> {
        let Held {
            mut value, guard, ..
        } = held;
        value.set_state(NodeState::Deleted, now);
        match self.store(&guard, id, &value).await {
            Ok(_) => {}
            Err(Error::NoNode { .. }) => return guard.release().await,
            Err(error) => return Err(error),
        }
        ext::delete_recursive(&**guard.tree(), &path(layout::node(id))?).await?;
        guard.release().await
    }

    /// Removes the record if it has no data: nodes are created with theirs, so nobody is about to fill it.
    async fn delete_ghost(&self, id: NodeId) -> Result<()> {
        self.delete_empty(&path(layout::node(id))?).await
    }

    /// The same for records whose names are no ids, which no view shows.
    pub async fn delete_nameless_ghosts(&self) -> Result<()> {
        let dir = path(layout::NODES)?;
        let names = ext::child_names(&*self.registry.tree, &dir).await?;
        for name in names.iter().filter(|name| name.parse::<NodeId>().is_err()) {
            self.delete_empty(&dir.join(name)?).await?;
        }
        Ok(())
    }

    async fn delete_empty(&self, node: &TreePath) -> Result<()> {
        match ext::get_opt(&*self.registry.tree, node).await? {
            Some(record) if record.data.is_empty() => {
                ext::delete_recursive(&*self.registry.tree, node).await
            }
            _ => Ok(()),
        }
    }
}

/// True for what is left of a node whose delete was interrupted.
fn is_remnant(node: &Node) -> bool {
    node.state == NodeState::Deleted || node.provider.is_none()
}
