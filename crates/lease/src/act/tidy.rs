//! What is removed because nothing needs it any more.

use std::collections::BTreeSet;

use nodeyard_model::{NodeId, RequestId, Timestamp};
use nodeyard_store::{self as store, Version, ext};
use tracing::{info, warn};

use super::{Given, Hand};
use crate::book::{self, lease_path, request_path, scope_path};
use crate::decide::{self, ScopeStep};
use crate::ids::{LeaseId, ScopeId};
use crate::lease::Phase;
use crate::scope::Scope;

impl Hand<'_> {
    /// Requests and nodes that carry the mark of a lease are undone if there is no such lease.
    pub(crate) async fn undo_strays(
        &self,
        lease: LeaseId,
        requests: BTreeSet<RequestId>,
        nodes: BTreeSet<NodeId>,
    ) -> store::Result<()> {
        if self.tree.stat(&lease_path(lease)?).await?.is_some() {
            return Ok(());
        }
        for request in requests {
            warn!(%lease, %request, "a request of a lease that is gone is deleted");
            ext::delete_opt(&**self.tree, &request_path(request)?).await?;
        }
        for id in nodes {
            let seen = self.look_at(lease, id).await?;
            if decide::is_used(&seen.sight()) {
                warn!(%lease, node = %id, "a node of a lease that is gone is given back");
                let ops = seen.give(&Given::Back, self.book.clock.now())?;
                self.apply(ops).await?;
            }
        }
        Ok(())
    }

    /// Removes a scope that is over and has no leases any more; says when to come back.
    pub(crate) async fn advance_scope(&self, id: ScopeId) -> store::Result<Option<Timestamp>> {
        let path = scope_path(id)?;
        loop {
            let Some(stored) = book::read::<Scope>(&**self.tree, &path).await? else {
                return Ok(None);
            };
            // Whoever asks for something in the scope writes it, too: leases that are not seen here change its version.
            self.book.leases.synced().await?;
            let mut leases = 0;
            self.book.leases.for_each(|item| {
                let ended = item.value.phase == Phase::Ended;
                leases += usize::from(item.value.scope == Some(id) && !ended);
            });
            match decide::next_for_scope(&stored.value, leases, self.book.clock.now()) {
                ScopeStep::Wait { until } => return Ok(until),
                ScopeStep::Forget => {
                    let version = Version::Exactly(stored.stat.version);
                    match self.tree.delete(&path, version).await {
                        Ok(()) => {
                            self.book.scopes.deleted(&id);
                            info!(scope = %stored.value.name, "scope has ended");
                        }
                        Err(store::Error::BadVersion { .. } | store::Error::NoNode { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
    }
}
