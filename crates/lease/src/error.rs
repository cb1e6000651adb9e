//! Errors of calls, and of the keeper.

use nodeyard_model::{NodeId, TenantName};
use nodeyard_store::ext::StoreFailure;

use crate::ids::LeaseId;
use crate::lease::EndCause;
use crate::scope::ScopeName;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is invalid.
    #[error("invalid {what}: {why}")]
    Invalid { what: &'static str, why: String },
    /// Also for leases of other tenants.
    #[error("there is no lease {lease}")]
    NoSuchLease { lease: LeaseId },
    #[error("there is no scope {scope}")]
    NoSuchScope { scope: ScopeName },
    #[error("lease {lease} has no node {node}")]
    NoSuchNode { lease: LeaseId, node: NodeId },
    #[error("tenant {tenant} is not the tenant of the caller")]
    OtherTenant { tenant: TenantName },
    #[error("the idempotency key was used for another request (lease {lease}); choose a new key")]
    KeyReused { lease: LeaseId },
    #[error("lease {lease} is over: {cause}")]
    Over { lease: LeaseId, cause: EndCause },
    #[error("scope {scope} is closing; wait until it is deleted, or choose another name")]
    ScopeClosing { scope: ScopeName },
    #[error("scope {scope} exists already")]
    ScopeExists { scope: ScopeName },
    #[error("scope {scope} is a buildset of Zuul, which is read-only")]
    ScopeOfZuul { scope: ScopeName },
    #[error("node {node} is {state}, which does not allow that")]
    NodeIs { node: NodeId, state: String },
    /// Temporary.
    #[error("node {node} is locked by another process; try again")]
    NodeBusy { node: NodeId },
    #[error("store operation failed")]
    Store(#[from] nodeyard_store::Error),
}

impl StoreFailure for Error {
    fn store_error(&self) -> Option<&nodeyard_store::Error> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a keeper stopped. It waits for a lost connection to the store and retries everything else.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeeperError {
    #[error("the store was closed while the lease keeper was running")]
    StoreClosed,
    #[error("failed to watch the store")]
    Store(#[from] nodeyard_store::Error),
}
