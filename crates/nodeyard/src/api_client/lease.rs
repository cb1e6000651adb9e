//! What the API says about leases and scopes, as far as commands use it.

use nodeyard_lease::NodeConnection;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Lease {
    pub(crate) id: String,
    pub(crate) phase: String,
    pub(crate) labels: Vec<String>,
    pub(crate) request: Option<String>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) tenant: Option<String>,
    pub(crate) requestor: String,
    pub(crate) scope: Option<String>,
    pub(crate) created: Option<String>,
    pub(crate) expires: Option<String>,
    pub(crate) duration: u64,
    pub(crate) placement: String,
    pub(crate) end: Option<End>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) id: String,
    pub(crate) label: String,
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) connection: Option<NodeConnection>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct End {
    pub(crate) cause: String,
    pub(crate) detail: String,
}

impl Lease {
    /// It has neither nodes yet nor an end.
    pub(crate) fn waits(&self) -> bool {
        matches!(&*self.phase, "waiting" | "taking" | "dropping")
    }

    pub(crate) fn is_active(&self) -> bool {
        self.phase == "active"
    }

    /// Why it has no nodes any more, in words.
    pub(crate) fn why_over(&self) -> &str {
        self.end.as_ref().map_or("it is over", |end| &end.detail)
    }
}

impl Node {
    pub(crate) fn is_leased(&self) -> bool {
        self.state == "leased"
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Scope {
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

/// A part of a list.
#[derive(Debug, Deserialize)]
pub(crate) struct Page<T> {
    pub(crate) items: Vec<T>,
    pub(crate) next: Option<String>,
}
