use anyhow::bail;
use nodeyard_model::{NodeId, NodeState};
use nodeyard_store::registry::{Attempt, Registry};

use super::{PATIENCE, lists, now};
use crate::exit::Refusal;
use crate::output::Format;

pub(super) async fn delete(registry: &Registry, id: NodeId, format: Format) -> anyhow::Result<()> {
    set_state(registry, id, NodeState::Deleting, format).await
}

pub(super) async fn hold(registry: &Registry, id: NodeId, format: Format) -> anyhow::Result<()> {
    set_state(registry, id, NodeState::Hold, format).await
}

async fn set_state(
    registry: &Registry,
    id: NodeId,
    state: NodeState,
    format: Format,
) -> anyhow::Result<()> {
    let nodes = registry.nodes();
    match nodes.lock(id, PATIENCE).await? {
        Attempt::Gone => bail!(Refusal(format!("Node id {id} not found"))),
        Attempt::Busy => bail!(
            "node {id} is locked by whoever uses it; try again when it is returned, or see `nodepool list`"
        ),
        Attempt::Held(held) => {
            let mut node = held.value;
            node.set_state(state, now());
            nodes.store(&held.guard, id, &node).await?;
            held.guard.release().await?;
        }
    }
    lists::nodes(registry, Some(id), false, format).await
}
