//! `nodepool delete` and `hold`: the node as it is afterwards, or why it cannot be.

use anyhow::anyhow;
use nodeyard_model::{Node, NodeId, now};
use nodeyard_operations::nodes::Hold;
use nodeyard_operations::{Error, nodes};
use nodeyard_store::registry::Registry;

use super::lists;
use crate::exit::Refusal;
use crate::output::Format;

pub(super) async fn delete(registry: &Registry, id: NodeId, format: Format) -> anyhow::Result<()> {
    let deleted = nodes::delete(registry, id, now()).await;
    shown(registry, id, deleted, format).await
}

pub(super) async fn hold(registry: &Registry, id: NodeId, format: Format) -> anyhow::Result<()> {
    let held = nodes::hold(registry, id, Hold::default(), now()).await;
    shown(registry, id, held, format).await
}

async fn shown(
    registry: &Registry,
    id: NodeId,
    changed: Result<Node, Error>,
    format: Format,
) -> anyhow::Result<()> {
    changed.map_err(|error| match error {
        Error::Gone => Refusal(format!("Node id {id} not found")).into(),
        Error::Busy => anyhow!(
            "node {id} is locked by whoever uses it; try again when it is returned, or see `nodepool list`"
        ),
        error => error.into(),
    })?;
    lists::nodes(registry, Some(id), false, format).await
}
