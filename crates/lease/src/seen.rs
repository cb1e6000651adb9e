//! What was last heard of leases and scopes, for those who follow their changes.

use nodeyard_store as store;

use crate::ids::{LeaseId, ScopeId};
use crate::leases::{Leases, Status};
use crate::scopes::ScopeStatus;

impl Leases {
    /// A lease as last heard of, whoever's it is.
    pub fn seen(&self, id: LeaseId) -> Option<Status> {
        let item = self.book.leases.get(&id)?;
        Some(self.status(id, item.value))
    }

    /// A scope of ours as last heard of, whoever's it is.
    pub fn seen_scope(&self, id: ScopeId) -> Option<ScopeStatus> {
        let item = self.book.scopes.get(&id)?;
        Some(ScopeStatus::Own {
            id,
            leases: self.members(id),
            scope: item.value,
        })
    }

    /// The ids of all leases and scopes of ours.
    pub fn seen_ids(&self) -> (Vec<LeaseId>, Vec<ScopeId>) {
        let (mut leases, mut scopes) = (Vec::new(), Vec::new());
        self.book.leases.for_each(|item| leases.push(item.id));
        self.book.scopes.for_each(|item| scopes.push(item.id));
        (leases, scopes)
    }

    /// Returns when everything that had been written before the call was heard of.
    pub async fn synced(&self) -> store::Result<()> {
        self.book.leases.synced().await?;
        self.book.scopes.synced().await
    }
}
