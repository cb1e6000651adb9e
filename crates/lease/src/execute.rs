//! Executes the steps that [`decide`] returns.
//!
//! Leases have no locks. Each step reads the lease, then the records it refers to, and writes with the versions it has
//! read; on a conflict nothing is written, and the step is decided again.
//!
//! The contenders for node locks are created one by one, and one that no record leads to would block its node for ever. So
//! each is created while the lease is `taking`, in one transaction with a check of the lease's version: later none can
//! appear, and all are in the lock queues of the nodes that the lease names.

mod create;
mod garbage;
mod ops;
mod snapshot;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::try_join_all;
use nodeyard_model::{NodeId, NodeRequest, NodeState, RequestId, RequestState, Timestamp, layout};
use nodeyard_store::{self as store, CreateMode, Op, OpOutcome, Tree, TreePath, Version};
use tracing::{debug, info};

use crate::context::{self, LeaseContext, json, lease_path, request_path, scope_path};
use crate::decide::{self, LeaseLock, LeaseStep, PlacementMatch, Renewal, later};
use crate::ids::LeaseId;
use crate::lease::{EndCause, Lease, LeaseEnding, LeasePhase, LeasedNode, LeasedNodeState};
use crate::leases::HoldOptions;
use crate::scope::LeaseScope;
use ops::{create, delete, is_conflict, set, set_node};
use snapshot::{LeaseSnapshot, NodeSnapshot};

/// How long the record of a lease is kept after its end.
pub(crate) const RETENTION: Duration = Duration::from_secs(3600);

/// Changes leases through one handle on the store.
pub(crate) struct LeaseWriter<'a> {
    context: &'a LeaseContext,
    tree: &'a Arc<dyn Tree>,
    renewal: Renewal,
}

/// How a node leaves its lease.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum NodeRelease {
    Used,
    Hold { by: Box<str>, hold: HoldOptions },
}

impl NodeRelease {
    pub(crate) fn state(&self) -> LeasedNodeState {
        match self {
            Self::Used => LeasedNodeState::Returned,
            Self::Hold { .. } => LeasedNodeState::Held,
        }
    }
}

pub(crate) fn record_end(lease: &mut Lease, cause: EndCause, text: Option<String>, now: Timestamp) {
    lease.phase = LeasePhase::Ending;
    lease.end = Some(LeaseEnding {
        at: now,
        cause,
        text,
    });
}

impl<'a> LeaseWriter<'a> {
    pub(crate) fn new(
        context: &'a LeaseContext,
        tree: &'a Arc<dyn Tree>,
        renewal: Renewal,
    ) -> Self {
        Self {
            context,
            tree,
            renewal,
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.context.clock.now()
    }

    /// Writes a lease; returns false on a conflict.
    pub(crate) async fn write(
        &self,
        id: LeaseId,
        lease: &Lease,
        version: i32,
    ) -> store::Result<bool> {
        let path = lease_path(id)?;
        let data = json(&path, lease)?;
        match self.tree.set(&path, data, Version::Exactly(version)).await {
            Ok(stat) => {
                self.context.leases.wrote(id, Arc::new(lease.clone()), stat);
                Ok(true)
            }
            Err(store::Error::BadVersion { .. } | store::Error::NoNode { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Executes all steps that are possible now. Returns when the next one is due, if that depends on the time.
    pub(crate) async fn advance(&self, id: LeaseId) -> store::Result<Option<Timestamp>> {
        let mut existed = false;
        loop {
            let Some(seen) = self.read_snapshot(id).await? else {
                if !existed {
                    self.delete_strays(id).await?;
                }
                return Ok(None);
            };
            existed = true;
            let (lease, renewal) = (&seen.lease, self.renewal);
            let step = decide::next_step(lease, &seen.observed(), RETENTION, renewal, self.now());
            if let LeaseStep::Wait { until } = step {
                return Ok(until);
            }
            debug!(lease = %id, phase = %seen.lease.phase, ?step, "executing lease step");
            self.execute(id, seen, step).await?;
        }
    }

    /// Executes one step; does nothing on a conflict.
    async fn execute(
        &self,
        id: LeaseId,
        seen: LeaseSnapshot,
        step: LeaseStep,
    ) -> store::Result<()> {
        let now = self.now();
        let version = seen.version;
        let mut lease = seen.lease.clone();
        match step {
            LeaseStep::Wait { .. } => {}
            LeaseStep::RecordRequest(request) => {
                lease.request = Some(request);
                self.write(id, &lease, version).await?;
            }
            LeaseStep::RecordNodes { request, nodes } => {
                lease.phase = LeasePhase::Taking;
                lease.request = Some(request);
                let pairs = nodes.into_iter().zip(&seen.lease.spec.labels);
                let nodes = pairs.map(|(node, label)| LeasedNode {
                    node,
                    label: label.clone(),
                    state: LeasedNodeState::Leased,
                });
                lease.nodes = nodes.collect();
                self.write(id, &lease, version).await?;
            }
            LeaseStep::JoinLockQueues => {
                let absent = seen.nodes.iter();
                let absent = absent.filter(|node| node.lock == LeaseLock::Absent);
                let joins = absent.map(|node| self.join_lock_queue(id, version, node.id));
                try_join_all(joins).await?;
            }
            LeaseStep::Activate => self.activate(id, seen, now).await?,
            LeaseStep::Abandon => {
                lease.phase = LeasePhase::Dropping;
                self.write(id, &lease, version).await?;
            }
            LeaseStep::RequestAgain => self.request_again(id, seen, now).await?,
            LeaseStep::End(cause) => {
                let text = match (cause, &seen.request) {
                    (EndCause::Failed, Some((request, record))) => {
                        Some(self.failure_text(&lease, *request, record).await)
                    }
                    _ => None,
                };
                record_end(&mut lease, cause, text, now);
                if self.write(id, &lease, version).await? {
                    info!(lease = %id, %cause, "ending lease");
                }
            }
            LeaseStep::Release => self.release_all(id, seen, now).await?,
            LeaseStep::RecordStates(states) => {
                let mut ops = Vec::new();
                for (node, state) in states {
                    lease.set_node_state(node, state);
                    let lost = seen.nodes.iter().filter(|seen| seen.id == node);
                    ops.extend(lost.flat_map(NodeSnapshot::unlock_ops));
                }
                self.commit(id, lease, version, ops).await?;
            }
            LeaseStep::Delete => {
                let path = lease_path(id)?;
                match self.tree.delete(&path, Version::Exactly(version)).await {
                    Err(store::Error::BadVersion { .. } | store::Error::NoNode { .. }) => {}
                    result => {
                        result?;
                        self.context.leases.deleted(&id);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns why a request failed, for people.
    async fn failure_text(&self, lease: &Lease, id: RequestId, request: &NodeRequest) -> String {
        if let (RequestState::Fulfilled, Some(provider)) =
            (request.state, lease.placement.provider())
        {
            return format!(
                "provider {provider} declined it; another provider could serve it, but is not allowed"
            );
        }
        if let Some(text) = self.context.explain.failure(id).await {
            return text;
        }
        match request.declined_by.len() {
            0 => "no pool can serve it".to_owned(),
            count => format!("all {count} pools declined it"),
        }
    }

    /// Joins the lock queue of a node; does nothing if the lease has changed or the node is gone.
    async fn join_lock_queue(
        &self,
        lease: LeaseId,
        version: i32,
        node: NodeId,
    ) -> store::Result<()> {
        let directory = TreePath::new(layout::node_lock(node))?;
        let path = directory.join(&format!("{lease}__lock__"))?;
        let ops = vec![
            Op::Check {
                path: lease_path(lease)?,
                version: Version::Exactly(version),
            },
            create(
                &path,
                Bytes::from(format!("nodeyard lease {lease}")),
                CreateMode::PersistentSequential,
            ),
        ];
        let made = self
            .tree
            .create(&directory, Bytes::new(), CreateMode::Persistent)
            .await;
        match made {
            Ok(_) | Err(store::Error::NodeExists { .. }) => {}
            Err(store::Error::NoNode { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
        self.apply(ops).await.map(drop)
    }

    async fn activate(
        &self,
        id: LeaseId,
        seen: LeaseSnapshot,
        now: Timestamp,
    ) -> store::Result<()> {
        let LeaseSnapshot {
            mut lease,
            version,
            request,
            nodes,
            scope,
        } = seen;
        let records = nodes
            .iter()
            .filter_map(|node| Some(&node.stored.as_ref()?.value));
        if let PlacementMatch::Fallback(placement) = decide::match_placement(&lease, records) {
            lease.placement = placement;
        }
        let mut ops = Vec::new();
        let mut provider = None;
        for node in &nodes {
            let Some(stored) = &node.stored else {
                return Ok(());
            };
            let mut record = stored.value.clone();
            if provider.is_none() {
                provider.clone_from(&record.provider);
            }
            record.user_data = context::encode_node_mark(id)?;
            record.set_state(NodeState::InUse, now);
            ops.push(set_node(node.id, &record, stored.stat.version)?);
        }
        if let Some((request, _)) = request {
            ops.push(delete(request_path(request)?));
        }
        if let (Some(Some(stored)), Some(scope)) = (scope, lease.scope)
            && stored.value.provider.is_none()
        {
            let path = scope_path(scope)?;
            let pinned = LeaseScope {
                provider,
                ..stored.value
            };
            ops.push(set(&path, &pinned, stored.stat.version)?);
        }
        lease.phase = LeasePhase::Active;
        lease.expires = later(now, Duration::from_secs(lease.spec.duration));
        if self.commit(id, lease, version, ops).await? {
            info!(lease = %id, nodes = nodes.len(), "lease activated");
        }
        Ok(())
    }

    /// Leaves the lock queues and makes a new request, in one transaction.
    async fn request_again(
        &self,
        id: LeaseId,
        seen: LeaseSnapshot,
        now: Timestamp,
    ) -> store::Result<()> {
        let mut lease = seen.lease;
        let mut ops: Vec<Op> = seen
            .nodes
            .iter()
            .flat_map(NodeSnapshot::unlock_ops)
            .collect();
        if let Some((request, _)) = seen.request {
            ops.push(delete(request_path(request)?));
        }
        lease.phase = LeasePhase::Waiting;
        lease.request = None;
        lease.nodes.clear();
        ops.push(create::create_request(
            &lease,
            &create::new_request(id, &lease, now)?,
        )?);
        if self.commit(id, lease, seen.version, ops).await? {
            info!(lease = %id, "requested nodes again");
        }
        Ok(())
    }

    async fn release_all(
        &self,
        id: LeaseId,
        seen: LeaseSnapshot,
        now: Timestamp,
    ) -> store::Result<()> {
        let mut lease = seen.lease.clone();
        let mut ops = Vec::new();
        for node in &seen.nodes {
            let leased =
                lease.node(node.id).map(|leased| leased.state) == Some(LeasedNodeState::Leased);
            if !leased {
                continue;
            }
            ops.extend(node.release_ops(&NodeRelease::Used, now)?);
            lease.set_node_state(node.id, LeasedNodeState::Returned);
        }
        if let Some((request, _)) = seen.request {
            ops.push(delete(request_path(request)?));
        }
        lease.phase = LeasePhase::Ended;
        if self.commit(id, lease, seen.version, ops).await? {
            info!(lease = %id, "lease ended");
        }
        Ok(())
    }

    /// Removes one node from an active lease; returns none on a conflict.
    pub(crate) async fn remove_node(
        &self,
        id: LeaseId,
        mut lease: Lease,
        version: i32,
        node: NodeId,
        release: &NodeRelease,
    ) -> store::Result<Option<Lease>> {
        let now = self.now();
        let seen = self.read_node(id, node).await?;
        let ops = seen.release_ops(release, now)?;
        let state = if decide::is_used(&seen.observed()) {
            release.state()
        } else {
            LeasedNodeState::Lost
        };
        lease.set_node_state(node, state);
        if lease.leased().next().is_none() {
            record_end(&mut lease, EndCause::Released, None, now);
            lease.phase = LeasePhase::Ended;
        }
        let done = self.commit(id, lease.clone(), version, ops).await?;
        Ok(done.then_some(lease))
    }

    /// Writes a lease and `ops` in one transaction; returns false on a conflict.
    async fn commit(
        &self,
        id: LeaseId,
        lease: Lease,
        version: i32,
        ops: Vec<Op>,
    ) -> store::Result<bool> {
        let path = lease_path(id)?;
        let ops = [vec![set(&path, &lease, version)?], ops].concat();
        let Some(outcomes) = self.apply(ops).await? else {
            return Ok(false);
        };
        if let Some(OpOutcome::Set(stat)) = outcomes.into_iter().next() {
            self.context.leases.wrote(id, Arc::new(lease), stat);
        }
        Ok(true)
    }

    /// Returns none on a conflict.
    async fn apply(&self, ops: Vec<Op>) -> store::Result<Option<Vec<OpOutcome>>> {
        match self.tree.multi(ops).await {
            Ok(outcomes) => Ok(Some(outcomes)),
            Err(error) if is_conflict(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
