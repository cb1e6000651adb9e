//! Leases and scopes in the API's responses, as far as commands use them.

use nodeyard_lease::NodeConnection;
use serde::{Deserialize, Serialize};

/// A lease.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LeaseResponse {
    pub(crate) id: String,
    pub(crate) phase: String,
    pub(crate) labels: Vec<String>,
    pub(crate) request: Option<String>,
    pub(crate) nodes: Vec<LeasedNode>,
    pub(crate) tenant: Option<String>,
    pub(crate) requestor: String,
    pub(crate) scope: Option<String>,
    pub(crate) created: Option<String>,
    pub(crate) expires: Option<String>,
    pub(crate) duration: u64,
    pub(crate) placement: String,
    pub(crate) end: Option<LeaseEndResponse>,
}

/// A node of a lease.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LeasedNode {
    pub(crate) id: String,
    pub(crate) label: String,
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) connection: Option<NodeConnection>,
}

/// How a lease ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LeaseEndResponse {
    pub(crate) cause: String,
    pub(crate) detail: String,
}

impl LeaseResponse {
    /// Returns whether the lease still waits for its nodes.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(&*self.phase, "waiting" | "taking" | "dropping")
    }

    pub(crate) fn is_active(&self) -> bool {
        self.phase == "active"
    }

    /// Returns why the lease has no nodes any more.
    pub(crate) fn end_reason(&self) -> &str {
        self.end
            .as_ref()
            .map_or("the lease has ended", |end| &end.detail)
    }
}

impl LeasedNode {
    pub(crate) fn is_leased(&self) -> bool {
        self.state == "leased"
    }
}

/// A scope.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ScopeResponse {
    pub(crate) name: String,
    pub(crate) tenant: Option<String>,
    pub(crate) owner: Option<String>,
    pub(crate) created: Option<String>,
    pub(crate) expires: Option<String>,
    pub(crate) provider: Option<String>,
    pub(crate) closing: bool,
    pub(crate) leases: Vec<String>,
    pub(crate) requests: Vec<String>,
    pub(crate) nodes: Vec<String>,
}

/// A page of a list.
#[derive(Debug, Deserialize)]
pub(crate) struct PageResponse<T> {
    pub(crate) items: Vec<T>,
    pub(crate) next: Option<String>,
}
