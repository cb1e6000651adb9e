//! Records of nodes.
//!
//! A new node is created, then locked, then written as `building`, because an unlocked `building` node counts as left
//! by a crash. Before its record is deleted, a node is written as `deleted`, so that a concurrent locker notices.

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

    /// Returns the lock of a node, which does not recreate a deleted node.
    pub fn lock_of(&self, id: NodeId) -> Result<Lock> {
        let dir = path(layout::node_lock(id))?;
        Ok(self.registry.locks.lock(dir).of_existing())
    }

    pub async fn lock(&self, id: NodeId, patience: Patience) -> Result<Attempt<Node>> {
        self.lock_by(&self.lock_of(id)?, id, patience).await
    }

    /// Locks a node with a persistent contender that has an identifier.
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
        match self
            .registry
            .lock_and_read::<Node>(lock, &node, patience)
            .await?
        {
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

    /// Deletes the record of a node whose instance is deleted, and its lock.
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

    /// Deletes the record if it has no data. Nodes are created with data, so it is not being created.
    async fn delete_ghost(&self, id: NodeId) -> Result<()> {
        self.delete_empty(&path(layout::node(id))?).await
    }

    /// Deletes records without data whose names are not ids, which are not in any view.
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

/// Returns whether this is the remains of an interrupted deletion.
fn is_remnant(node: &Node) -> bool {
    node.state == NodeState::Deleted || node.provider.is_none()
}
