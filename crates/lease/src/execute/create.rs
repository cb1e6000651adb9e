//! Creates a lease with its request and its scope, in one transaction.

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

use super::LeaseWriter;
use super::ops::{create, is_conflict, set};
use crate::context::{self, json, lease_path, request_path, scope_path};
use crate::decide::later;
use crate::error::{Error, Result};
use crate::ids::{LeaseId, ScopeId};
use crate::lease::{Lease, LeasePhase, LeasePlacement};
use crate::leases::CreatedLease;
use crate::scope::{LeaseScope, ScopeName};
use crate::spec::{LeaseSpec, Lessee};

impl LeaseWriter<'_> {
    /// Creates a lease with its request, unless it exists already.
    pub(crate) async fn create_lease(
        &self,
        id: LeaseId,
        caller: &Lessee,
        spec: &LeaseSpec,
        tenant: Option<&TenantName>,
    ) -> Result<CreatedLease> {
        loop {
            if let Some(found) = self.find_existing(id, spec).await? {
                return Ok(found);
            }
            let now = self.now();
            let mut lease = Lease {
                phase: LeasePhase::Waiting,
                spec: spec.clone(),
                tenant: tenant.cloned(),
                requestor: caller.name.clone(),
                scope: None,
                created: now,
                expires: later(now, Duration::from_secs(spec.duration)),
                request: None,
                placement: match &spec.provider {
                    Some(provider) => LeasePlacement::Asked {
                        provider: provider.clone(),
                    },
                    None => LeasePlacement::Anywhere,
                },
                nodes: Vec::new(),
                end: None,
            };
            let mut ops = Vec::new();
            if let Some(name) = &spec.scope {
                ops.push(self.join_scope(name, &mut lease, now).await?);
            }
            let path = lease_path(id)?;
            ops.push(create(&path, json(&path, &lease)?, CreateMode::Persistent));
            let request = new_request(id, &lease, now)?;
            ops.push(create_request(&lease, &request)?);
            match self.tree.multi(ops).await {
                Ok(outcomes) => {
                    let number = created_request(&outcomes);
                    info!(lease = %id, request = ?number, requestor = %caller.name, "lease created");
                    self.update_views(id, &lease, number, request).await?;
                    lease.request = number;
                    return Ok(CreatedLease {
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

    /// Puts a new lease into a scope, which is created if it does not exist.
    async fn join_scope(&self, name: &ScopeName, lease: &mut Lease, now: Timestamp) -> Result<Op> {
        let id = ScopeId::of_name(lease.tenant.as_ref(), name.as_str());
        lease.scope = Some(id);
        let path = scope_path(id)?;
        let stored: Option<Stored<LeaseScope>> = context::read(&**self.tree, &path).await?;
        let Some(stored) = stored else {
            let scope = LeaseScope {
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
        if stored.value.closing {
            return Err(Error::ScopeClosing {
                scope: name.clone(),
            });
        }
        if let (Some(provider), LeasePlacement::Anywhere) =
            (&stored.value.provider, &lease.placement)
        {
            lease.placement = LeasePlacement::Scope {
                provider: provider.clone(),
            };
        }
        // Writes it unchanged, which makes a concurrent deletion of the scope fail.
        Ok(set(&path, &stored.value, stored.stat.version)?)
    }

    /// Puts a new lease and its request into the views, where its creator reads them next.
    async fn update_views(
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
            self.context.leases.wrote(id, Arc::new(lease.clone()), stat);
        }
        if let Some(stat) = new(request_stat) {
            self.context.requests.wrote(number, Arc::new(request), stat);
        }
        Ok(())
    }

    /// Returns the lease that was created with the same key.
    async fn find_existing(&self, id: LeaseId, spec: &LeaseSpec) -> Result<Option<CreatedLease>> {
        let stored: Option<Stored<Lease>> = context::read(&**self.tree, &lease_path(id)?).await?;
        match stored {
            Some(stored) if stored.value.spec != *spec => Err(Error::KeyReused { lease: id }),
            Some(stored) => Ok(Some(CreatedLease {
                id,
                lease: stored.value,
                new: false,
            })),
            None => Ok(None),
        }
    }
}

/// Returns the node request of a lease, with its mark.
pub(super) fn new_request(
    id: LeaseId,
    lease: &Lease,
    now: Timestamp,
) -> store::Result<NodeRequest> {
    let mut request = NodeRequest::new(RequestState::Requested, now);
    request.labels.clone_from(&lease.spec.labels);
    request.requestor = Some(context::requestor(&lease.requestor));
    request.requestor_data = context::encode_request_mark(id, lease.spec.scope.as_ref())?;
    request.provider = lease.placement.provider().cloned();
    request.relative_priority = lease.spec.relative_priority;
    request.event_id = Some(id.to_string().into());
    request.created_time = Some(now);
    request.tenant_name.clone_from(&lease.tenant);
    Ok(request)
}

pub(super) fn create_request(lease: &Lease, request: &NodeRequest) -> store::Result<Op> {
    let prefix = layout::request_prefix(lease.spec.priority.precedence());
    let data = Bytes::from(request.to_json());
    let mode = CreateMode::PersistentSequential;
    Ok(create(&TreePath::new(prefix)?, data, mode))
}

fn created_request(outcomes: &[OpOutcome]) -> Option<RequestId> {
    match outcomes.last() {
        Some(OpOutcome::Created(path)) => path.name().parse().ok(),
        _ => None,
    }
}
