//! Leases and scopes from the cached views, for those who follow their changes. No check of permissions.

use std::sync::Arc;

use nodeyard_reconcile::CountKeys;
use nodeyard_store as store;

use crate::ids::{LeaseId, ScopeId};
use crate::leases::{LeaseStatus, Leases};
use crate::scopes::ScopeStatus;

impl Leases {
    /// Returns a lease of any tenant.
    pub fn cached(&self, id: LeaseId) -> Option<LeaseStatus> {
        let item = self.context.leases.get(&id)?;
        Some(self.status(id, item.value))
    }

    /// Returns a scope of any tenant.
    pub fn cached_scope(&self, id: ScopeId) -> Option<ScopeStatus> {
        let item = self.context.scopes.get(&id)?;
        Some(ScopeStatus::Own {
            id,
            leases: self.members(id),
            scope: item.value,
        })
    }

    /// Returns the ids of all leases and scopes, except for buildsets of Zuul.
    pub fn cached_ids(&self) -> (Vec<LeaseId>, Vec<ScopeId>) {
        let (mut leases, mut scopes) = (Vec::new(), Vec::new());
        self.context.leases.for_each(|item| leases.push(item.id));
        self.context.scopes.for_each(|item| scopes.push(item.id));
        (leases, scopes)
    }

    /// Returns the work queue of the keeper in this process; it is empty unless that is the leader.
    pub fn queue(&self) -> Arc<dyn CountKeys> {
        Arc::new(self.context.queue.clone())
    }

    /// Waits until the views contain everything that was written before the call.
    pub async fn synced(&self) -> store::Result<()> {
        self.context.leases.synced().await?;
        self.context.scopes.synced().await
    }
}
