//! Holding and deleting nodes.

use nodeyard_model::{Node, NodeId, NodeState, Timestamp};
use nodeyard_store::registry::{Attempt, Registry};

use crate::{Error, PATIENCE};

/// Why and for how long a node is held.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hold {
    pub comment: Option<String>,
    /// In seconds; without end when absent.
    pub expiration: Option<i64>,
}

/// Keeps a node for a person to look at.
pub async fn hold(
    registry: &Registry,
    id: NodeId,
    hold: Hold,
    now: Timestamp,
) -> Result<Node, Error> {
    change(registry, id, |node| {
        node.set_state(NodeState::Hold, now);
        if let Some(comment) = hold.comment {
            node.comment = Some(comment.into());
        }
        if hold.expiration.is_some() {
            node.hold_expiration = hold.expiration;
        }
    })
    .await
}

/// Marks a node; its launcher deletes it.
pub async fn delete(registry: &Registry, id: NodeId, now: Timestamp) -> Result<Node, Error> {
    change(registry, id, |node| {
        node.set_state(NodeState::Deleting, now);
    })
    .await
}

async fn change(
    registry: &Registry,
    id: NodeId,
    change: impl FnOnce(&mut Node),
) -> Result<Node, Error> {
    let nodes = registry.nodes();
    let held = match nodes.lock(id, PATIENCE).await? {
        Attempt::Gone => return Err(Error::Gone),
        Attempt::Busy => return Err(Error::Busy),
        Attempt::Held(held) => held,
    };
    let mut node = held.value;
    change(&mut node);
    nodes.store(&held.guard, id, &node).await?;
    held.guard.release().await?;
    Ok(node)
}
