//! Garbage collection: what deleted leases left, and scopes without leases.

use std::sync::Arc;

use nodeyard_model::Timestamp;
use nodeyard_store::{self as store, Version, ext};
use tracing::{info, warn};

use super::{LeaseWriter, NodeRelease};
use crate::context::{self, json, request_path, scope_path};
use crate::decide::{self, ScopeStep};
use crate::ids::{LeaseId, ScopeId};
use crate::lease::LeasePhase;
use crate::scope::LeaseScope;

impl LeaseWriter<'_> {
    /// Deletes the request and releases the nodes of a lease whose record is gone.
    pub(super) async fn delete_strays(&self, lease: LeaseId) -> store::Result<()> {
        if let Some(item) = self.request_in_view(lease) {
            let request = item.id;
            warn!(%lease, %request, "deleting request of deleted lease");
            ext::delete_opt(&**self.tree, &request_path(request)?).await?;
        }
        let mut nodes = self.context.nodes.items();
        nodes.retain(|item| context::lease_of_node(&item.value) == Some(lease));
        for id in nodes.into_iter().map(|item| item.id) {
            let seen = self.read_node(lease, id).await?;
            if decide::is_used(&seen.observed()) {
                warn!(%lease, node = %id, "releasing node of deleted lease");
                let ops = seen.release_ops(&NodeRelease::Used, self.now())?;
                self.apply(ops).await?;
            }
        }
        Ok(())
    }

    /// Executes all steps of a scope that are possible now. Returns when the next one is due.
    pub(crate) async fn advance_scope(&self, id: ScopeId) -> store::Result<Option<Timestamp>> {
        let path = scope_path(id)?;
        loop {
            let Some(stored) = context::read::<LeaseScope>(&**self.tree, &path).await? else {
                return Ok(None);
            };
            // Creating a lease in the scope changes its version, so none that is missed here gets lost.
            self.context.leases.synced().await?;
            let mut leases = 0;
            self.context.leases.for_each(|item| {
                let ended = item.value.phase == LeasePhase::Ended;
                leases += usize::from(item.value.scope == Some(id) && !ended);
            });
            let mut scope = stored.value;
            let version = Version::Exactly(stored.stat.version);
            let written = match decide::next_scope_step(&scope, leases, self.renewal, self.now()) {
                ScopeStep::Wait { until } => return Ok(until),
                ScopeStep::Close => {
                    scope.closing = true;
                    let written = self.tree.set(&path, json(&path, &scope)?, version).await;
                    written.map(|stat| self.context.scopes.wrote(id, Arc::new(scope), stat))
                }
                ScopeStep::Delete => {
                    let deleted = self.tree.delete(&path, version).await;
                    deleted.map(|()| {
                        self.context.scopes.deleted(&id);
                        info!(scope = %scope.name, "scope deleted");
                    })
                }
            };
            match written {
                Ok(()) | Err(store::Error::BadVersion { .. } | store::Error::NoNode { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
