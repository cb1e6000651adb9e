//! What is removed because nothing needs it any more.

use std::sync::Arc;

use nodeyard_model::Timestamp;
use nodeyard_store::{self as store, Version, ext};
use tracing::{info, warn};

use super::{Given, Hand};
use crate::book::{self, json, request_path, scope_path};
use crate::decide::{self, ScopeStep};
use crate::ids::{LeaseId, ScopeId};
use crate::lease::Phase;
use crate::scope::Scope;

impl Hand<'_> {
    /// Deletes the request and releases the nodes of a lease whose record is gone.
    pub(super) async fn delete_strays(&self, lease: LeaseId) -> store::Result<()> {
        if let Some(item) = self.request_in_view(lease) {
            let request = item.id;
            warn!(%lease, %request, "a request of a lease that is gone is deleted");
            ext::delete_opt(&**self.tree, &request_path(request)?).await?;
        }
        let mut nodes = self.book.nodes.items();
        nodes.retain(|item| book::user_of(&item.value) == Some(lease));
        for id in nodes.into_iter().map(|item| item.id) {
            let seen = self.look_at(lease, id).await?;
            if decide::is_used(&seen.sight()) {
                warn!(%lease, node = %id, "a node of a lease that is gone is given back");
                let ops = seen.give(&Given::Back, self.now())?;
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
            let mut scope = stored.value;
            let version = Version::Exactly(stored.stat.version);
            let written = match decide::next_for_scope(&scope, leases, self.renewal, self.now()) {
                ScopeStep::Wait { until } => return Ok(until),
                ScopeStep::Close => {
                    scope.closing = true;
                    let written = self.tree.set(&path, json(&path, &scope)?, version).await;
                    written.map(|stat| self.book.scopes.wrote(id, Arc::new(scope), stat))
                }
                ScopeStep::Forget => {
                    let deleted = self.tree.delete(&path, version).await;
                    deleted.map(|()| {
                        self.book.scopes.deleted(&id);
                        info!(scope = %scope.name, "scope has ended");
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
