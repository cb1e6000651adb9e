//! Why a call is refused, and why a keeper cannot go on.

use nodeyard_model::{NodeId, TenantName};
use nodeyard_store::ext::StoreFailure;

use crate::ids::LeaseId;
use crate::lease::Cause;
use crate::scope::ScopeName;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What is wrong with what the caller said.
    #[error("this {what} cannot be used: {why}")]
    Invalid { what: &'static str, why: String },
    /// Leases of other tenants are not there for the caller, either.
    #[error("there is no lease {lease}")]
    NoSuchLease { lease: LeaseId },
    #[error("there is no scope {scope}")]
    NoSuchScope { scope: ScopeName },
    #[error("lease {lease} has no node {node}")]
    NoSuchNode { lease: LeaseId, node: NodeId },
    #[error("nothing can be done for tenant {tenant} here: the caller belongs to another one")]
    OtherTenant { tenant: TenantName },
    #[error("the idempotency key was used for another request (lease {lease}); choose a new key")]
    KeyReused { lease: LeaseId },
    #[error("lease {lease} is over: {cause}")]
    Over { lease: LeaseId, cause: Cause },
    #[error("scope {scope} is being closed; wait until it is gone or choose another name")]
    ScopeCloses { scope: ScopeName },
    #[error("scope {scope} is open already")]
    ScopeExists { scope: ScopeName },
    #[error("scope {scope} shows a buildset of Zuul and cannot be changed here")]
    ScopeOfZuul { scope: ScopeName },
    #[error("node {node} is {state}, which does not allow that")]
    NodeIs { node: NodeId, state: String },
    /// Passes by itself.
    #[error("node {node} is locked by somebody else for the moment")]
    NodeBusy { node: NodeId },
    #[error("the store did not do its part")]
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

/// Everything else is handled where it happens: a keeper outlasts its store's absences.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeeperError {
    #[error("the store has been closed while the keeper of leases was running")]
    StoreClosed,
    #[error("the keeper of leases cannot follow the store")]
    Store(#[from] nodeyard_store::Error),
}
