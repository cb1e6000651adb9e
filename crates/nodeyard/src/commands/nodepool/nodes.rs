//! `nodepool delete` and `hold`.

use std::fmt;

use anyhow::anyhow;
use nodeyard_model::{Node, NodeId, now};
use nodeyard_operations::nodes::HoldOptions;
use nodeyard_operations::{Error, nodes};
use nodeyard_store::registry::Registry;

use super::lists;
use crate::exit::OperationRefused;
use crate::output::OutputFormat;

/// Parses the id of a node. No node has one that is malformed.
pub(super) fn parse_id(text: &str) -> Result<NodeId, OperationRefused> {
    text.parse().map_err(|_| not_found(text))
}

pub(super) fn not_found(id: impl fmt::Display) -> OperationRefused {
    OperationRefused(format!("Node id {id} not found"))
}

pub(super) async fn delete(
    registry: &Registry,
    id: NodeId,
    format: OutputFormat,
) -> anyhow::Result<()> {
    let deleted = nodes::delete(registry, id, now()).await;
    shown(registry, id, deleted, format).await
}

pub(super) async fn hold(
    registry: &Registry,
    id: NodeId,
    format: OutputFormat,
) -> anyhow::Result<()> {
    let held = nodes::hold(registry, id, HoldOptions::default(), now()).await;
    shown(registry, id, held, format).await
}

async fn shown(
    registry: &Registry,
    id: NodeId,
    changed: Result<Node, Error>,
    format: OutputFormat,
) -> anyhow::Result<()> {
    changed.map_err(|error| match error {
        Error::Gone => not_found(id).into(),
        Error::Busy => anyhow!(
            "node {id} is locked by its user; try again when it is released, or see `nodepool list`"
        ),
        error => error.into(),
    })?;
    lists::nodes(registry, Some(id), false, format).await
}
