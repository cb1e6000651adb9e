//! The record of a lease, below [`LEASES`](nodeyard_model::layout::LEASES).
//!
//! ```text
//!   waiting ──► taking ──► active ──► ending ──► ended
//!      ▲           │
//!      └─ dropping ┘
//! ```
//!
//! The record is written before anything it speaks of: it is made together with its request, and names the nodes
//! before their locks are taken. So whatever is killed when, the record leads to everything that has to be undone.

use std::fmt;

use nodeyard_model::{Label, NodeId, ProviderName, RequestId, TenantName, Timestamp};
use serde::{Deserialize, Serialize};

use crate::ask::Ask;
use crate::ids::ScopeId;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Lease {
    pub phase: Phase,
    /// What was asked for, as it was asked: a request with the same idempotency key must be the same.
    pub ask: Ask,
    pub tenant: Option<TenantName>,
    /// Who asked.
    pub requestor: Box<str>,
    /// The scope that owns it.
    pub scope: Option<ScopeId>,
    pub created: Timestamp,
    /// When it ends unless it is renewed.
    pub expires: Timestamp,
    /// Its request, as soon as its number is known; the record of the request goes when the nodes are taken.
    pub request: Option<RequestId>,
    pub placement: Placement,
    /// The nodes, in the order of the labels.
    #[serde(default)]
    pub parts: Vec<Part>,
    /// Why it ends or has ended.
    #[serde(default)]
    pub end: Option<End>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Its request is in the store, and no node is its own.
    Waiting,
    /// The request is fulfilled; the locks of its nodes are being taken.
    Taking,
    /// The nodes are in use.
    Active,
    /// A node got lost while it was taken: the others are given up, and it asks anew.
    Dropping,
    /// What it has is being given back.
    Ending,
    /// It has nothing any more, except for nodes on hold. The record is kept for a while.
    Ended,
}

impl Phase {
    /// It has its nodes, or will not get any: there is nothing to wait for.
    pub fn is_settled(self) -> bool {
        !matches!(self, Self::Waiting | Self::Taking | Self::Dropping)
    }

    /// Nothing has been decided about its end.
    pub fn is_alive(self) -> bool {
        !matches!(self, Self::Ending | Self::Ended)
    }
}

impl fmt::Display for Phase {
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

/// One node of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub node: NodeId,
    /// What it was asked for as.
    pub label: Label,
    pub state: PartState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartState {
    /// Ours, or about to be.
    Leased,
    /// Kept for somebody to look at; it outlives the lease.
    Held,
    Returned,
    /// It went without us.
    Lost,
}

/// Where the nodes are to come from, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Any provider.
    Anywhere,
    /// The request named it.
    Asked { provider: ProviderName },
    /// The first nodes of the scope are there.
    Scope { provider: ProviderName },
    /// That provider could not serve it, but another one could.
    Fallback { instead_of: ProviderName },
}

impl Placement {
    /// The provider that the request in the store is confined to.
    pub fn provider(&self) -> Option<&ProviderName> {
        match self {
            Self::Asked { provider } | Self::Scope { provider } => Some(provider),
            Self::Anywhere | Self::Fallback { .. } => None,
        }
    }
}

impl fmt::Display for Placement {
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
pub struct End {
    pub at: Timestamp,
    pub cause: Cause,
    /// More about it, for people.
    #[serde(default)]
    pub text: Option<String>,
}

/// Why a lease ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Its owner gave the nodes back.
    Released,
    /// Its owner took the request back before it had nodes.
    Cancelled,
    /// It was not renewed in time.
    Expired,
    /// No provider could serve it.
    Failed,
    /// Its scope was closed, or ended.
    ScopeEnded,
    /// Somebody else deleted its request.
    Withdrawn,
    /// Its nodes went without its doing.
    Lost,
}

impl fmt::Display for Cause {
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
    /// The nodes that are its own.
    pub fn leased(&self) -> impl Iterator<Item = &Part> {
        self.in_state(PartState::Leased)
    }

    pub fn held(&self) -> impl Iterator<Item = &Part> {
        self.in_state(PartState::Held)
    }

    fn in_state(&self, state: PartState) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(move |part| part.state == state)
    }

    pub fn part(&self, node: NodeId) -> Option<&Part> {
        self.parts.iter().find(|part| part.node == node)
    }

    pub(crate) fn set_part(&mut self, node: NodeId, state: PartState) {
        for part in self.parts.iter_mut().filter(|part| part.node == node) {
            part.state = state;
        }
    }
}
