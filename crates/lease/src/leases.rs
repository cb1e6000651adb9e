//! The interface of lessees.

use std::sync::Arc;
use std::time::Duration;

use nodeyard_model::{Node, NodeId, NodeRequest, NodeState, RequestId, Timestamp};
use nodeyard_store::registry::{Attempt, Patience, Stored};
use nodeyard_store::view::Changes;
use nodeyard_store::{self as store, ext};

use crate::buildsets;
use crate::context::{self, LeaseContext, LeaseDependencies};
use crate::decide::{Renewal, later};
use crate::error::{Error, Result};
use crate::execute::{self, LeaseWriter, NodeRelease};
use crate::ids::{LeaseId, ScopeId};
use crate::lease::{EndCause, Lease, LeasePhase, LeasedNode, LeasedNodeState};
use crate::spec::{self, LeaseSpec, Lessee};

/// How long to wait for the lock of a node on hold.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Creates, lists, renews and releases leases and scopes. Cloning is cheap.
///
/// Calls wait for a lost connection and retry. A caller that does not want to wait drops the future; a
/// [`LeaseKeeper`](crate::LeaseKeeper) completes what was begun.
#[derive(Debug, Clone)]
pub struct Leases {
    pub(crate) context: Arc<LeaseContext>,
}

/// The result of [`Leases::create`].
#[derive(Debug, Clone, PartialEq)]
pub struct CreatedLease {
    pub id: LeaseId,
    pub lease: Lease,
    /// False if it was created by an earlier call with the same key.
    pub new: bool,
}

/// A lease, its request and its nodes.
#[derive(Debug, Clone)]
pub struct LeaseStatus {
    pub id: LeaseId,
    pub lease: Arc<Lease>,
    /// None if the record was deleted.
    pub request: Option<Arc<NodeRequest>>,
    /// In the order of the labels.
    pub nodes: Vec<LeasedNodeStatus>,
}

#[derive(Debug, Clone)]
pub struct LeasedNodeStatus {
    pub leased: LeasedNode,
    /// None if the record was deleted.
    pub node: Option<Arc<Node>>,
}

/// How to hold a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HoldOptions {
    pub comment: Option<String>,
    /// Seconds; unlimited if none, within `max-hold-age`.
    pub expiration: Option<u32>,
}

impl Leases {
    /// Starts to watch the store; does not wait for it. Must be called inside a runtime.
    pub fn open(dependencies: LeaseDependencies) -> store::Result<Self> {
        let context = Arc::new(LeaseContext::open(dependencies)?);
        Ok(Self { context })
    }

    /// Creates a lease. With a `key`, another call returns the same lease, for as long as its record is kept.
    pub async fn create(
        &self,
        caller: &Lessee,
        spec: &LeaseSpec,
        key: Option<&str>,
    ) -> Result<CreatedLease> {
        spec.check()?;
        spec::check_text("name of the caller", &caller.name)?;
        spec.scope
            .as_ref()
            .map_or(Ok(()), buildsets::reject_zuul_scope)?;
        let tenant = caller.resolve_tenant(spec.tenant.as_ref())?;
        let id = match key {
            Some(key) => {
                spec::check_text("idempotency key", key)?;
                LeaseId::of_key(tenant.as_ref(), key)
            }
            None => LeaseId::random(),
        };
        self.retry(|| async {
            self.writer()
                .create_lease(id, caller, spec, tenant.as_ref())
                .await
        })
        .await
    }

    /// Reads a lease.
    pub async fn get(&self, caller: &Lessee, id: LeaseId) -> Result<LeaseStatus> {
        let lease = self.retry(|| self.read(caller, id)).await?;
        let mut status = self.status(id, Arc::new(lease.value));
        // The views may be behind the lease.
        for seen in &mut status.nodes {
            if seen.node.is_none() && seen.leased.state == LeasedNodeState::Leased {
                let node = self.context.registry.nodes().get(seen.leased.node).await?;
                seen.node = node.map(|stored| Arc::new(stored.value));
            }
        }
        Ok(status)
    }

    /// Returns all leases that the caller may see, from the cached view.
    pub fn list(&self, caller: &Lessee) -> Vec<LeaseStatus> {
        let mut leases = self.context.leases.items();
        leases.retain(|item| caller.may_see(item.value.tenant.as_ref()));
        let status = |item: nodeyard_store::view::Item<_>| self.status(item.id, item.value);
        leases.into_iter().map(status).collect()
    }

    /// Returns a stream of the leases that change from now on.
    pub fn changes(&self) -> Changes<LeaseId> {
        self.context.leases.changes()
    }

    /// Returns the lease that a request was made for.
    pub fn find_by_request(&self, request: RequestId) -> Option<LeaseId> {
        let known = self.context.requests.get(&request);
        let known = known.and_then(|item| context::lease_of_request(&item.value));
        known.or_else(|| self.find(|lease| lease.request == Some(request)))
    }

    /// Returns the lease that has a node, or had it last.
    pub fn find_by_node(&self, node: NodeId) -> Option<LeaseId> {
        let has = |lease: &Lease| {
            lease
                .leased()
                .chain(lease.held())
                .any(|leased| leased.node == node)
        };
        self.find(has)
            .or_else(|| self.find(|lease| lease.node(node).is_some()))
    }

    /// Extends a lease to its duration, or another, from now on; returns the new expiry. Also an overdue lease can be
    /// renewed until it is decided that it ends.
    pub async fn renew(
        &self,
        caller: &Lessee,
        id: LeaseId,
        duration: Option<u64>,
    ) -> Result<Timestamp> {
        duration.map_or(Ok(()), spec::check_duration)?;
        self.retry(|| async {
            loop {
                let stored = self.read(caller, id).await?;
                let mut lease = ensure_alive(id, stored.value)?;
                let seconds = duration.unwrap_or(lease.spec.duration);
                lease.expires = later(self.context.clock.now(), Duration::from_secs(seconds));
                let writer = self.writer();
                if writer.write(id, &lease, stored.stat.version).await? {
                    return Ok(lease.expires);
                }
            }
        })
        .await
    }

    /// Ends a lease: deletes its request, or releases its nodes, except for nodes on hold. Returns when that is done.
    /// Succeeds if it has ended already.
    pub async fn release(&self, caller: &Lessee, id: LeaseId) -> Result<Arc<Lease>> {
        self.retry(|| async {
            loop {
                let stored = self.read(caller, id).await?;
                let (mut lease, version) = (stored.value, stored.stat.version);
                if lease.phase == LeasePhase::Ended {
                    return Ok(Arc::new(lease));
                }
                let writer = self.writer();
                if lease.phase.is_alive() {
                    let cause = match lease.phase {
                        LeasePhase::Active => EndCause::Released,
                        _ => EndCause::Cancelled,
                    };
                    execute::record_end(&mut lease, cause, None, self.context.clock.now());
                    writer.write(id, &lease, version).await?;
                }
                writer.advance(id).await?;
            }
        })
        .await
    }

    /// Releases one node. With its last node a lease ends.
    pub async fn release_node(
        &self,
        caller: &Lessee,
        id: LeaseId,
        node: NodeId,
    ) -> Result<Arc<Lease>> {
        self.remove_node(caller, id, node, &NodeRelease::Used).await
    }

    /// Puts one node on hold: it leaves the lease, and is kept until the hold is released or expires.
    pub async fn hold(
        &self,
        caller: &Lessee,
        id: LeaseId,
        node: NodeId,
        hold: HoldOptions,
    ) -> Result<Arc<Lease>> {
        if let Some(comment) = &hold.comment {
            spec::check_text("comment", comment)?;
        }
        let release = NodeRelease::Hold {
            by: caller.name.clone(),
            hold,
        };
        self.remove_node(caller, id, node, &release).await
    }

    /// Releases a node from hold.
    pub async fn release_hold(
        &self,
        caller: &Lessee,
        id: LeaseId,
        node: NodeId,
    ) -> Result<Arc<Lease>> {
        self.retry(|| async {
            let mut stored = self.read(caller, id).await?;
            let state = leased_node(id, &stored.value, node)?.state;
            if state != LeasedNodeState::Held {
                return Ok(Arc::new(stored.value));
            }
            let nodes = self.context.registry.nodes();
            let patience = Patience::For(LOCK_TIMEOUT);
            match nodes.lock(node, patience).await? {
                Attempt::Held(mut held) => {
                    if held.value.state == NodeState::Hold {
                        let now = self.context.clock.now();
                        held.value.set_state(NodeState::Used, now);
                        nodes.store(&held.guard, node, &held.value).await?;
                    }
                    held.guard.release().await?;
                }
                Attempt::Busy => return Err(Error::NodeBusy { node }),
                Attempt::Gone => {}
            }
            // On a conflict a keeper records this.
            stored.value.set_node_state(node, LeasedNodeState::Returned);
            self.writer()
                .write(id, &stored.value, stored.stat.version)
                .await?;
            Ok(Arc::new(stored.value))
        })
        .await
    }

    async fn remove_node(
        &self,
        caller: &Lessee,
        id: LeaseId,
        node: NodeId,
        release: &NodeRelease,
    ) -> Result<Arc<Lease>> {
        self.retry(|| async {
            loop {
                let stored = self.read(caller, id).await?;
                let version = stored.stat.version;
                let state = leased_node(id, &stored.value, node)?.state;
                if state == release.state()
                    || (state != LeasedNodeState::Leased && *release == NodeRelease::Used)
                {
                    return Ok(Arc::new(stored.value));
                }
                let lease = ensure_alive(id, stored.value)?;
                if lease.phase != LeasePhase::Active || state != LeasedNodeState::Leased {
                    return Err(Error::NodeIs {
                        node,
                        state: format!("not in use under lease {id}"),
                    });
                }
                if let Some(lease) = self
                    .writer()
                    .remove_node(id, lease, version, node, release)
                    .await?
                {
                    return Ok(Arc::new(lease));
                }
            }
        })
        .await
    }

    pub(crate) fn writer(&self) -> LeaseWriter<'_> {
        LeaseWriter::new(&self.context, self.context.tree(), Renewal::OPEN)
    }

    async fn read(&self, caller: &Lessee, id: LeaseId) -> Result<Stored<Lease>> {
        let path = context::lease_path(id)?;
        let stored: Option<Stored<Lease>> = context::read(&**self.context.tree(), &path).await?;
        stored
            .filter(|stored| caller.may_see(stored.value.tenant.as_ref()))
            .ok_or(Error::NoSuchLease { lease: id })
    }

    pub(crate) fn status(&self, id: LeaseId, lease: Arc<Lease>) -> LeaseStatus {
        let request = match lease.request {
            Some(request) => self.context.requests.get(&request),
            None => self.writer().request_in_view(id),
        };
        let nodes = lease.nodes.iter().map(|leased| LeasedNodeStatus {
            leased: leased.clone(),
            node: self.context.nodes.get(&leased.node).map(|item| item.value),
        });
        LeaseStatus {
            id,
            request: request.map(|item| item.value),
            nodes: nodes.collect(),
            lease,
        }
    }

    fn find(&self, is_it: impl Fn(&Lease) -> bool) -> Option<LeaseId> {
        let mut found = None;
        self.context.leases.for_each(|item| {
            if is_it(&item.value) {
                found = Some(item.id);
            }
        });
        found
    }

    pub(crate) fn members(&self, scope: ScopeId) -> Vec<LeaseStatus> {
        let mut leases = self.context.leases.items();
        leases.retain(|item| item.value.scope == Some(scope));
        let status = |item: nodeyard_store::view::Item<_>| self.status(item.id, item.value);
        leases.into_iter().map(status).collect()
    }

    /// Repeats an idempotent operation until the connection lasts for its answer.
    pub(crate) async fn retry<T, F>(&self, mut work: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        loop {
            match work().await {
                Err(Error::Store(error)) if error.is_connection() => {}
                result => return result,
            }
            ext::reconnected(&**self.context.tree()).await?;
        }
    }
}

fn leased_node(lease: LeaseId, record: &Lease, node: NodeId) -> Result<&LeasedNode> {
    let leased = record.node(node);
    leased.ok_or(Error::NoSuchNode { lease, node })
}

/// Returns an error if the lease ends or has ended.
fn ensure_alive(id: LeaseId, lease: Lease) -> Result<Lease> {
    match &lease.end {
        Some(end) => Err(Error::Over {
            lease: id,
            cause: end.cause,
        }),
        None => Ok(lease),
    }
}
