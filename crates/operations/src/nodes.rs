//! Holding and deleting nodes.

use nodeyard_model::{Node, NodeId, NodeState, Timestamp};
use nodeyard_store::registry::{Attempt, Registry};

use crate::{Error, LOCK_TIMEOUT};

/// The comment and the expiry of a hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HoldOptions {
    pub comment: Option<String>,
    /// In seconds; unlimited if absent.
    pub expiration: Option<i64>,
}

/// Puts a node on hold: it is not deleted until the hold expires or an operator deletes it.
pub async fn hold(
    registry: &Registry,
    id: NodeId,
    hold: HoldOptions,
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

/// Marks a node as deleting; its launcher deletes it.
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
    let held = match nodes.lock(id, LOCK_TIMEOUT).await? {
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
