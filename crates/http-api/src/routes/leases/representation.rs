//! The representation of leases.

use nodeyard_lease::{LeaseStatus, LeasedNodeState, NodeConnection};
use serde::Serialize;
use utoipa::ToSchema;

use super::may_use;
use crate::access::ApiCaller;
use crate::{schema, time};

/// Nodes that are leased or requested.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Lease)]
pub(crate) struct ApiLease {
    #[schema(value_type = schema::LeaseIdSchema)]
    id: String,
    #[schema(value_type = schema::LeasePhaseSchema)]
    phase: String,
    /// The requested labels, in order.
    #[schema(examples(json!(["debian"])))]
    labels: Vec<String>,
    /// Its request, while the lease is waiting and for some time after.
    #[schema(value_type = Option<schema::RequestIdSchema>)]
    request: Option<String>,
    /// Its nodes, in the order of the labels.
    nodes: Vec<LeaseNode>,
    tenant: Option<String>,
    /// The requestor: the name of a token.
    requestor: String,
    pub(super) scope: Option<String>,
    #[schema(format = DateTime)]
    created: Option<String>,
    /// When it ends unless it is renewed.
    #[schema(format = DateTime)]
    expires: Option<String>,
    /// The time that a renewal lasts, in seconds.
    duration: u64,
    /// Where the nodes are requested from, and why.
    #[schema(examples("any provider"))]
    placement: String,
    end: Option<LeaseEnd>,
}

/// A node of a lease.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LeaseNode {
    #[schema(value_type = schema::NodeIdSchema)]
    id: String,
    label: String,
    #[schema(value_type = schema::PartStateSchema)]
    state: &'static str,
    /// How to connect to it; only for callers who may use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<ConnectionInfo>,
}

/// How to connect to a node.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ConnectionInfo {
    /// Such as `ssh`, `winrm` or `kubectl`.
    #[schema(examples("ssh"))]
    kind: String,
    /// The address, or the name of the pod or container.
    #[schema(examples("192.0.2.17"))]
    host: Option<String>,
    #[schema(examples(22))]
    port: Option<u16>,
    #[schema(examples("zuul"))]
    user: Option<String>,
    /// The interpreter for Ansible: a path, or `auto`.
    python: Option<String>,
    shell: Option<String>,
    /// `<type> <base64>` each.
    host_keys: Vec<String>,
    /// The cluster to connect to: server, namespace, token.
    #[schema(value_type = Value)]
    cluster: Option<serde_json::Value>,
}

impl From<NodeConnection> for ConnectionInfo {
    fn from(connection: NodeConnection) -> Self {
        Self {
            kind: connection.kind,
            host: connection.host,
            port: connection.port,
            user: connection.user,
            python: connection.python,
            shell: connection.shell,
            host_keys: connection.host_keys,
            cluster: connection.cluster,
        }
    }
}

/// Why a lease has ended.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LeaseEnd {
    #[schema(format = DateTime)]
    time: Option<String>,
    #[schema(value_type = schema::EndCauseSchema)]
    cause: serde_json::Value,
    /// Details for people.
    detail: String,
}

fn part_state(state: LeasedNodeState) -> &'static str {
    match state {
        LeasedNodeState::Leased => "leased",
        LeasedNodeState::Held => "held",
        LeasedNodeState::Returned => "returned",
        LeasedNodeState::Lost => "lost",
    }
}

impl ApiLease {
    /// Returns the lease; `connections` adds how to connect to the nodes.
    pub(super) fn of(status: &LeaseStatus, connections: bool) -> Self {
        let lease = &status.lease;
        let nodes = status.nodes.iter().map(|seen| LeaseNode {
            id: seen.leased.node.to_string(),
            label: seen.leased.label.to_string(),
            state: part_state(seen.leased.state),
            connection: seen
                .node
                .as_ref()
                .filter(|_| connections && seen.leased.state == LeasedNodeState::Leased)
                .map(|node| NodeConnection::from_node(node).into()),
        });
        Self {
            id: status.id.to_string(),
            phase: lease.phase.to_string(),
            labels: lease.spec.labels.iter().map(ToString::to_string).collect(),
            request: lease.request.map(|request| request.to_string()),
            nodes: nodes.collect(),
            tenant: lease.tenant.as_ref().map(ToString::to_string),
            requestor: lease.requestor.to_string(),
            scope: lease.spec.scope.as_ref().map(ToString::to_string),
            created: time::shown(lease.created),
            expires: time::shown(lease.expires),
            duration: lease.spec.duration,
            placement: lease.placement.to_string(),
            end: lease.end.as_ref().map(|end| LeaseEnd {
                time: time::shown(end.at),
                cause: serde_json::to_value(end.cause).unwrap_or_default(),
                detail: match &end.text {
                    Some(text) => format!("{}: {text}", end.cause),
                    None => end.cause.to_string(),
                },
            }),
        }
    }

    pub(in crate::routes) fn for_caller(caller: &ApiCaller, status: &LeaseStatus) -> Self {
        Self::of(status, may_use(caller, &status.lease))
    }
}
