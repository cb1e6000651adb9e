//! Reads a lease and then the records it refers to.

use futures_util::future::{join, try_join_all};
use nodeyard_model::{Node, NodeId, NodeRequest, NodeState, Record as _, RequestId, Timestamp};
use nodeyard_store::lock::LockContender;
use nodeyard_store::registry::{RequestShape, Stored};
use nodeyard_store::view::Item;
use nodeyard_store::{self as store, Op, Tree, TreePath, ext};

use super::ops::{delete, set_node};
use super::{LeaseWriter, NodeRelease};
use crate::context::{self, lease_path, node_path, request_path, scope_path};
use crate::decide::{self, LeaseLock, Observed, ObservedNode, ObservedScope};
use crate::ids::LeaseId;
use crate::lease::{Lease, LeasePhase};
use crate::scope::LeaseScope;

/// A lease, and the records it refers to, read after it.
pub(super) struct LeaseSnapshot {
    pub(super) lease: Lease,
    pub(super) version: i32,
    pub(super) request: Option<(RequestId, NodeRequest)>,
    pub(super) nodes: Vec<NodeSnapshot>,
    /// None without a scope; none within if the scope was deleted.
    pub(super) scope: Option<Option<Stored<LeaseScope>>>,
}

pub(super) struct NodeSnapshot {
    pub(super) id: NodeId,
    pub(super) stored: Option<Stored<Node>>,
    pub(super) contenders: Vec<LockContender>,
    pub(super) lock: LeaseLock,
}

impl LeaseWriter<'_> {
    pub(super) async fn read_snapshot(&self, id: LeaseId) -> store::Result<Option<LeaseSnapshot>> {
        let tree = &**self.tree;
        let Some(stored) = context::read::<Lease>(tree, &lease_path(id)?).await? else {
            return Ok(None);
        };
        let (lease, version) = (stored.value, stored.stat.version);
        let nodes = try_join_all(
            lease
                .nodes
                .iter()
                .map(|leased| self.read_node(id, leased.node)),
        )
        .await?;
        let over = lease.phase == LeasePhase::Ended;
        let request = if over || lease.phase == LeasePhase::Active {
            None
        } else {
            self.request(id, lease.request).await?
        };
        let scope = match lease.scope {
            Some(scope) if !over => Some(context::read(tree, &scope_path(scope)?).await?),
            _ => None,
        };
        Ok(Some(LeaseSnapshot {
            lease,
            version,
            request,
            nodes,
            scope,
        }))
    }

    pub(super) async fn read_node(
        &self,
        lease: LeaseId,
        id: NodeId,
    ) -> store::Result<NodeSnapshot> {
        let nodes = self.context.registry.nodes();
        let lock = nodes.lock_of(id)?;
        let path = node_path(id)?;
        let (contenders, stored) =
            join(lock.contenders(), read_node_record(&**self.tree, &path)).await;
        let contenders = contenders?;
        let prefix = lease.to_string();
        let ours = |contender: &LockContender| {
            contender.session.is_none() && contender.path.name().starts_with(&prefix)
        };
        let lock = match contenders.iter().position(ours) {
            None => LeaseLock::Absent,
            Some(0) => LeaseLock::Held,
            Some(_) => LeaseLock::Queued,
        };
        Ok(NodeSnapshot {
            id,
            stored: stored?,
            contenders: contenders.into_iter().filter(ours).collect(),
            lock,
        })
    }

    /// Reads the request of a lease. Until its id is recorded in the lease, it is found by its mark.
    async fn request(
        &self,
        lease: LeaseId,
        known: Option<RequestId>,
    ) -> store::Result<Option<(RequestId, NodeRequest)>> {
        if let Some(id) = known {
            return self.read_request(id).await;
        }
        if let Some(item) = self.request_in_view(lease)
            && let Some(found) = self.read_request(item.id).await?
        {
            return Ok(Some(found));
        }
        // The view may be behind: without the request, or with the one before.
        self.context.requests.synced().await?;
        match self.request_in_view(lease) {
            Some(item) => self.read_request(item.id).await,
            None => Ok(None),
        }
    }

    async fn read_request(&self, id: RequestId) -> store::Result<Option<(RequestId, NodeRequest)>> {
        let path = request_path(id)?;
        let Some(record) = ext::get_opt(&**self.tree, &path).await? else {
            return Ok(None);
        };
        match NodeRequest::from_json(&record.data) {
            Ok(request) => Ok(Some((id, request))),
            Err(source) => Err(store::Error::Malformed { path, source }),
        }
    }

    pub(crate) fn request_in_view(&self, lease: LeaseId) -> Option<Item<RequestShape>> {
        let event = lease.to_string();
        let mut found = None;
        self.context.requests.for_each(|item| {
            // A cheap filter before the mark is decoded.
            let likely = item.value.event_id.as_deref() == Some(&*event);
            if likely && context::lease_of_request(&item.value) == Some(lease) {
                found = Some(item);
            }
        });
        found
    }
}

impl LeaseSnapshot {
    pub(super) fn observed(&self) -> Observed<'_> {
        Observed {
            request: self.request.as_ref().map(|(id, record)| (*id, record)),
            nodes: self.nodes.iter().map(NodeSnapshot::observed).collect(),
            scope: match &self.scope {
                None => ObservedScope::None,
                Some(None) => ObservedScope::Missing,
                Some(Some(scope)) => ObservedScope::Exists(&scope.value),
            },
        }
    }
}

impl NodeSnapshot {
    pub(super) fn observed(&self) -> ObservedNode<'_> {
        ObservedNode {
            node: self.stored.as_ref().map(|stored| &stored.value),
            lock: self.lock,
        }
    }

    /// Returns the operations that leave the lock queue.
    pub(super) fn unlock_ops(&self) -> impl Iterator<Item = Op> {
        let contenders = self.contenders.iter();
        contenders.map(|contender| delete(contender.path.clone()))
    }

    /// Returns the operations that release the node and its lock. The record of a node that is not in use by the lease is
    /// not changed.
    pub(super) fn release_ops(
        &self,
        release: &NodeRelease,
        now: Timestamp,
    ) -> store::Result<Vec<Op>> {
        let mut ops = Vec::new();
        if let (Some(stored), true) = (&self.stored, decide::is_used(&self.observed())) {
            let mut record = stored.value.clone();
            match release {
                NodeRelease::Used => record.set_state(NodeState::Used, now),
                NodeRelease::Hold { by, hold } => {
                    record.set_state(NodeState::Hold, now);
                    record.hold_job = Some(by.clone());
                    record.comment = hold.comment.as_deref().map(Into::into);
                    record.hold_expiration = hold.expiration.map(i64::from);
                }
            }
            ops.push(set_node(self.id, &record, stored.stat.version)?);
        }
        ops.extend(self.unlock_ops());
        Ok(ops)
    }
}

async fn read_node_record(tree: &dyn Tree, path: &TreePath) -> store::Result<Option<Stored<Node>>> {
    let Some(record) = ext::get_opt(tree, path).await? else {
        return Ok(None);
    };
    if record.data.is_empty() {
        return Ok(None);
    }
    match Node::from_json(&record.data) {
        Ok(value) => Ok(Some(Stored {
            value,
            stat: record.stat,
        })),
        Err(source) => Err(store::Error::Malformed {
            path: path.clone(),
            source,
        }),
    }
}
