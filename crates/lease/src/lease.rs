//! The record of a lease, below [`LEASES`](nodeyard_model::layout::LEASES).
//!
//! ```text
//!   waiting ──► taking ──► active ──► ending ──► ended
//!      ▲           │
//!      └─ dropping ┘
//! ```
//!
//! The record is written first: together with its request, and with its nodes before they are locked. So after a crash it
//! leads to everything that has to be cleaned up.

use std::fmt;

use nodeyard_model::{Label, NodeId, ProviderName, RequestId, TenantName, Timestamp};
use serde::{Deserialize, Serialize};

use crate::ids::ScopeId;
use crate::spec::LeaseSpec;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Lease {
    pub phase: LeasePhase,
    /// What was asked for. The same idempotency key cannot be used for another one.
    #[serde(rename = "ask")]
    pub spec: LeaseSpec,
    pub tenant: Option<TenantName>,
    /// The name of the lessee.
    pub requestor: Box<str>,
    /// The scope that owns it.
    pub scope: Option<ScopeId>,
    pub created: Timestamp,
    /// When it ends unless it is renewed.
    pub expires: Timestamp,
    /// The node request, once its id is recorded; it is deleted when the nodes are in use.
    pub request: Option<RequestId>,
    pub placement: LeasePlacement,
    /// In the order of the labels.
    #[serde(default, rename = "parts")]
    pub nodes: Vec<LeasedNode>,
    /// Set when it is decided that the lease ends.
    #[serde(default)]
    pub end: Option<LeaseEnding>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeasePhase {
    /// The request is not fulfilled yet.
    Waiting,
    /// The request is fulfilled; its nodes are being locked.
    Taking,
    /// The nodes are in use.
    Active,
    /// A node was lost while it was being locked; the others are unlocked, and a new request follows.
    Dropping,
    /// Its nodes are being released.
    Ending,
    /// Its nodes are released, except for nodes on hold. The record is kept for a while.
    Ended,
}

impl LeasePhase {
    /// Returns true if it has its nodes, or will not get any.
    pub fn is_settled(self) -> bool {
        !matches!(self, Self::Waiting | Self::Taking | Self::Dropping)
    }

    /// Returns false once it is decided that the lease ends.
    pub fn is_alive(self) -> bool {
        !matches!(self, Self::Ending | Self::Ended)
    }
}

impl fmt::Display for LeasePhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Waiting => "waiting",
            Self::Taking => "taking",
            Self::Active => "active",
            Self::Dropping => "dropping",
            Self::Ending => "ending",
            Self::Ended => "ended",
        })
    }
}

/// A node of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeasedNode {
    pub node: NodeId,
    /// The label that it was requested for.
    pub label: Label,
    pub state: LeasedNodeState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeasedNodeState {
    /// In use by the lease, or being locked for it.
    Leased,
    /// On hold; it outlives the lease.
    Held,
    Returned,
    /// Its record was deleted or its lock was broken by another process.
    Lost,
}

/// The provider that the nodes come from, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeasePlacement {
    /// Any provider.
    Anywhere,
    /// The lessee asked for it.
    Asked { provider: ProviderName },
    /// The first nodes of the scope are from it.
    Scope { provider: ProviderName },
    /// The provider of the scope declined the request, and another one served it.
    Fallback { instead_of: ProviderName },
}

impl LeasePlacement {
    /// Returns the provider that the node request names.
    pub fn provider(&self) -> Option<&ProviderName> {
        match self {
            Self::Asked { provider } | Self::Scope { provider } => Some(provider),
            Self::Anywhere | Self::Fallback { .. } => None,
        }
    }
}

impl fmt::Display for LeasePlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anywhere => f.write_str("any provider"),
            Self::Asked { provider } => write!(f, "provider {provider}, as asked for"),
            Self::Scope { provider } => {
                write!(
                    f,
                    "provider {provider}, where the first nodes of the scope are"
                )
            }
            Self::Fallback { instead_of } => write!(
                f,
                "another provider than {instead_of}, where the first nodes of the scope are, which could not serve it"
            ),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeaseEnding {
    pub at: Timestamp,
    pub cause: EndCause,
    /// Details for people.
    #[serde(default)]
    pub text: Option<String>,
}

/// Why a lease ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndCause {
    /// The lessee released it.
    Released,
    /// The lessee released it before it had nodes.
    Cancelled,
    /// It was not renewed in time.
    Expired,
    /// No provider could serve it.
    Failed,
    /// Its scope was closed or expired.
    ScopeEnded,
    /// Another process deleted its request.
    Withdrawn,
    /// Its nodes were deleted or unlocked by another process.
    Lost,
}

impl fmt::Display for EndCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Released => "its nodes were given back",
            Self::Cancelled => "its request was taken back",
            Self::Expired => "it was not renewed in time",
            Self::Failed => "no provider could serve its request",
            Self::ScopeEnded => "its scope has ended",
            Self::Withdrawn => "its request was deleted by somebody else",
            Self::Lost => "its nodes went without its doing",
        })
    }
}

impl Lease {
    /// Returns the nodes that are in use by the lease.
    pub fn leased(&self) -> impl Iterator<Item = &LeasedNode> {
        self.in_state(LeasedNodeState::Leased)
    }

    pub fn held(&self) -> impl Iterator<Item = &LeasedNode> {
        self.in_state(LeasedNodeState::Held)
    }

    fn in_state(&self, state: LeasedNodeState) -> impl Iterator<Item = &LeasedNode> {
        self.nodes
            .iter()
            .filter(move |leased| leased.state == state)
    }

    pub fn node(&self, node: NodeId) -> Option<&LeasedNode> {
        self.nodes.iter().find(|leased| leased.node == node)
    }

    pub(crate) fn set_node_state(&mut self, node: NodeId, state: LeasedNodeState) {
        for leased in self.nodes.iter_mut().filter(|leased| leased.node == node) {
            leased.state = state;
        }
    }
}
