//! The list of nodes.

use nodeyard_model::{ConnectionPort, LauncherId, Node, NodeId, PoolName, ProviderName, Timestamp};
use nodeyard_store::Result;
use nodeyard_store::registry::Registry;

use crate::table::{Cell, RecordTable};

const PLAIN: usize = 9;

const COLUMNS: &[(&str, &str)] = &[
    ("id", "ID"),
    ("provider", "Provider"),
    ("label", "Label"),
    ("server_id", "Server ID"),
    ("public_ipv4", "Public IPv4"),
    ("ipv6", "IPv6"),
    ("state", "State"),
    ("age", "Age"),
    ("locked", "Locked"),
    ("pool", "Pool"),
    ("hostname", "Hostname"),
    ("private_ipv4", "Private IPv4"),
    ("AZ", "AZ"),
    ("username", "Username"),
    ("connection_port", "Port"),
    ("launcher", "Launcher"),
    ("allocated_to", "Allocated To"),
    ("hold_job", "Hold Job"),
    ("comment", "Comment"),
    ("user_data", "User Data"),
    ("driver_data", "Driver Data"),
];

/// A node record, and whether the node is locked.
#[derive(Debug)]
pub struct NodeRow<'a> {
    pub id: NodeId,
    pub node: &'a Node,
    pub locked: bool,
}

/// Lists nodes; `detail` adds the columns of `nodepool list --detail`.
pub fn nodes<'a>(
    rows: impl IntoIterator<Item = NodeRow<'a>>,
    detail: bool,
    now: Timestamp,
) -> RecordTable {
    let shown = if detail { COLUMNS.len() } else { PLAIN };
    let rows = rows.into_iter().map(|row| {
        let mut cells = cells(&row);
        cells.truncate(shown);
        cells
    });
    RecordTable::new(COLUMNS.get(..shown).unwrap_or(COLUMNS), rows.collect(), now)
}

fn cells(NodeRow { id, node, locked }: &NodeRow<'_>) -> Vec<Cell> {
    let labels = node.labels.iter().map(|label| label.as_str().to_owned());
    vec![
        Cell::text(id),
        Cell::from(node.provider.as_ref().map(ProviderName::as_str)),
        Cell::List(labels.collect()),
        Cell::Json(node.external_id.clone()),
        Cell::from(node.public_ipv4.as_deref()),
        Cell::from(node.public_ipv6.as_deref()),
        Cell::text(node.state.as_str()),
        Cell::Age(node.state_time),
        Cell::text(if *locked { "locked" } else { "unlocked" }),
        Cell::from(node.pool.as_ref().map(PoolName::as_str)),
        Cell::from(node.hostname.as_deref()),
        Cell::from(node.private_ipv4.as_deref()),
        Cell::from(node.az.as_deref()),
        Cell::from(node.username.as_deref()),
        port(&node.connection_port),
        Cell::from(node.launcher.as_ref().map(LauncherId::as_str)),
        Cell::from(node.allocated_to.as_ref().map(ToString::to_string)),
        Cell::from(node.hold_job.as_deref()),
        Cell::from(node.comment.as_deref()),
        Cell::Json(node.user_data.clone()),
        Cell::Json(node.driver_data.clone()),
    ]
}

/// Hides the connection of a pod, which contains its token.
fn port(port: &ConnectionPort) -> Cell {
    match port {
        ConnectionPort::Number(number) => Cell::Number(i64::from(*number)),
        ConnectionPort::Null | ConnectionPort::Cluster(_) => Cell::text("redacted"),
    }
}

/// Reads nodes and their locks from the store: all, or the one with id `only`.
pub async fn all_nodes(
    registry: &Registry,
    only: Option<NodeId>,
    detail: bool,
    now: Timestamp,
) -> Result<RecordTable> {
    let found = match only {
        Some(id) => registry
            .nodes()
            .get(id)
            .await?
            .map(|node| (id, node))
            .into_iter()
            .collect(),
        None => registry.nodes().list().await?,
    };
    let mut rows = Vec::with_capacity(found.len());
    for (id, stored) in &found {
        let lock = registry.nodes().lock_of(*id)?;
        rows.push(NodeRow {
            id: *id,
            node: &stored.value,
            locked: !lock.contenders().await?.is_empty(),
        });
    }
    Ok(nodes(rows, detail, now))
}
