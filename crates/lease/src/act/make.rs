//! A new lease: its record, its request and its scope, in one write.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join;
use nodeyard_model::{
    NodeRequest, Record as _, RequestId, RequestState, TenantName, Timestamp, layout,
};
use nodeyard_store::registry::Stored;
use nodeyard_store::{self as store, CreateMode, Op, OpOutcome, Stat, TreePath, ext};
use tracing::info;

use super::Hand;
use super::ops::{create, is_conflict, set};
use crate::ask::{Ask, Caller};
use crate::book::{self, json, lease_path, request_path, scope_path};
use crate::error::{Error, Result};
use crate::ids::{LeaseId, ScopeId};
use crate::lease::{Lease, Phase, Placement};
use crate::leases::Asked;
use crate::scope::{Scope, ScopeName};

impl Hand<'_> {
    /// Makes a lease with its request, unless it is there already.
    pub(crate) async fn make(
        &self,
        id: LeaseId,
        caller: &Caller,
        ask: &Ask,
        tenant: Option<&TenantName>,
    ) -> Result<Asked> {
        loop {
            if let Some(found) = self.found(id, ask).await? {
                return Ok(found);
            }
            let now = self.book.clock.now();
            let mut lease = Lease {
                phase: Phase::Waiting,
                ask: ask.clone(),
                tenant: tenant.cloned(),
                requestor: caller.name.clone(),
                scope: None,
                created: now,
                expires: now + Duration::from_secs(ask.duration),
                request: None,
                placement: match &ask.provider {
                    Some(provider) => Placement::Asked {
                        provider: provider.clone(),
                    },
                    None => Placement::Anywhere,
                },
                parts: Vec::new(),
                end: None,
            };
            let mut ops = Vec::new();
            if let Some(name) = &ask.scope {
                ops.push(self.enter(name, &mut lease, now).await?);
            }
            let path = lease_path(id)?;
            ops.push(create(&path, json(&path, &lease)?, CreateMode::Persistent));
            let request = new_request(id, &lease, now)?;
            ops.push(create_request(&lease, &request)?);
            match self.tree.multi(ops).await {
                Ok(outcomes) => {
                    let number = made_request(&outcomes);
                    info!(lease = %id, request = ?number, requestor = %caller.name, "lease asked for");
                    self.show(id, &lease, number, request).await?;
                    lease.request = number;
                    return Ok(Asked {
                        id,
                        lease,
                        new: true,
                    });
                }
                Err(error) if is_conflict(&error) => {
                    for directory in [layout::LEASES, layout::SCOPES, layout::REQUESTS] {
                        let directory = TreePath::new(directory).map_err(store::Error::from)?;
                        ext::ensure_path(&**self.tree, &directory).await?;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Puts a lease into a scope, which is made if there is none.
    async fn enter(&self, name: &ScopeName, lease: &mut Lease, now: Timestamp) -> Result<Op> {
        let id = ScopeId::of_name(lease.tenant.as_ref(), name.as_str());
        lease.scope = Some(id);
        let path = scope_path(id)?;
        let stored: Option<Stored<Scope>> = book::read(&**self.tree, &path).await?;
        let Some(stored) = stored else {
            let scope = Scope {
                name: name.clone(),
                tenant: lease.tenant.clone(),
                owner: lease.requestor.clone(),
                created: now,
                expires: None,
                duration: None,
                provider: None,
                closing: false,
            };
            return Ok(create(&path, json(&path, &scope)?, CreateMode::Persistent));
        };
        if !stored.value.is_alive(now) {
            return Err(Error::ScopeCloses {
                scope: name.clone(),
            });
        }
        if let (Some(provider), Placement::Anywhere) = (&stored.value.provider, &lease.placement) {
            lease.placement = Placement::Scope {
                provider: provider.clone(),
            };
        }
        // Written as it is, so that nobody removes it for having no leases.
        Ok(set(&path, &stored.value, stored.stat.version)?)
    }

    /// Puts a new lease and its request into the views, so that whoever made it sees it at once.
    async fn show(
        &self,
        id: LeaseId,
        lease: &Lease,
        number: Option<RequestId>,
        request: NodeRequest,
    ) -> store::Result<()> {
        let Some(number) = number else { return Ok(()) };
        let (at, request_at) = (lease_path(id)?, request_path(number)?);
        let (stat, request_stat) = join(self.tree.stat(&at), self.tree.stat(&request_at)).await;
        let new = |stat: store::Result<Option<Stat>>| stat.ok()?.filter(|stat| stat.version == 0);
        if let Some(stat) = new(stat) {
            self.book.leases.wrote(id, Arc::new(lease.clone()), stat);
        }
        if let Some(stat) = new(request_stat) {
            self.book.requests.wrote(number, Arc::new(request), stat);
        }
        Ok(())
    }

    /// The lease with this id, if it was asked for already.
    async fn found(&self, id: LeaseId, ask: &Ask) -> Result<Option<Asked>> {
        let stored: Option<Stored<Lease>> = book::read(&**self.tree, &lease_path(id)?).await?;
        match stored {
            Some(stored) if stored.value.ask != *ask => Err(Error::KeyReused { lease: id }),
            Some(stored) => Ok(Some(Asked {
                id,
                lease: stored.value,
                new: false,
            })),
            None => Ok(None),
        }
    }
}

/// The request of a lease: one like any other, which says whose it is.
pub(super) fn new_request(
    id: LeaseId,
    lease: &Lease,
    now: Timestamp,
) -> store::Result<NodeRequest> {
    let mut request = NodeRequest::new(RequestState::Requested, now);
    request.labels.clone_from(&lease.ask.labels);
    request.requestor = Some(book::requestor(&lease.requestor));
    request.requestor_data = book::request_mark(id, lease.ask.scope.as_ref())?;
    request.provider = lease.placement.provider().cloned();
    request.relative_priority = lease.ask.relative_priority;
    request.event_id = Some(id.to_string().into());
    request.created_time = Some(now);
    request.tenant_name.clone_from(&lease.tenant);
    Ok(request)
}

pub(super) fn create_request(lease: &Lease, request: &NodeRequest) -> store::Result<Op> {
    let prefix = layout::request_prefix(lease.ask.priority.precedence());
    let data = Bytes::from(request.to_json());
    let mode = CreateMode::PersistentSequential;
    Ok(create(&TreePath::new(prefix)?, data, mode))
}

fn made_request(outcomes: &[OpOutcome]) -> Option<RequestId> {
    match outcomes.last() {
        Some(OpOutcome::Created(path)) => path.name().parse().ok(),
        _ => None,
    }
}
