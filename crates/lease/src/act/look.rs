//! What a lease speaks of, read after it.

use futures_util::future::{join, try_join_all};
use nodeyard_model::{Node, NodeId, NodeRequest, NodeState, Record as _, RequestId, Timestamp};
use nodeyard_store::lock::LockContender;
use nodeyard_store::registry::{RequestShape, Stored};
use nodeyard_store::view::Item;
use nodeyard_store::{self as store, Op, Tree, TreePath, ext};

use super::ops::{delete, set_node};
use super::{Given, Hand};
use crate::book::{self, lease_path, node_path, request_path, scope_path};
use crate::decide::{self, LockSight, NodeSight, ScopeSight, Sight};
use crate::ids::LeaseId;
use crate::lease::{Lease, Phase};
use crate::scope::Scope;

/// A lease and everything it speaks of, read after it.
pub(super) struct Seen {
    pub(super) lease: Lease,
    pub(super) version: i32,
    pub(super) request: Option<(RequestId, NodeRequest)>,
    pub(super) nodes: Vec<SeenNode>,
    /// None if it has no scope, and none within if that is gone.
    pub(super) scope: Option<Option<Stored<Scope>>>,
}

pub(super) struct SeenNode {
    pub(super) id: NodeId,
    pub(super) stored: Option<Stored<Node>>,
    pub(super) contenders: Vec<LockContender>,
    pub(super) lock: LockSight,
}

impl Hand<'_> {
    pub(super) async fn look(&self, id: LeaseId) -> store::Result<Option<Seen>> {
        let tree = &**self.tree;
        let Some(stored) = book::read::<Lease>(tree, &lease_path(id)?).await? else {
            return Ok(None);
        };
        let (lease, version) = (stored.value, stored.stat.version);
        let nodes =
            try_join_all(lease.parts.iter().map(|part| self.look_at(id, part.node))).await?;
        let over = lease.phase == Phase::Ended;
        let request = if over || lease.phase == Phase::Active {
            None
        } else {
            self.request(id, lease.request).await?
        };
        let scope = match lease.scope {
            Some(scope) if !over => Some(book::read(tree, &scope_path(scope)?).await?),
            _ => None,
        };
        Ok(Some(Seen {
            lease,
            version,
            request,
            nodes,
            scope,
        }))
    }

    pub(super) async fn look_at(&self, lease: LeaseId, id: NodeId) -> store::Result<SeenNode> {
        let nodes = self.book.registry.nodes();
        let lock = nodes.lock_of(id)?;
        let path = node_path(id)?;
        let (contenders, stored) = join(lock.contenders(), read_node(&**self.tree, &path)).await;
        let contenders = contenders?;
        let prefix = lease.to_string();
        let ours = |contender: &LockContender| {
            contender.session.is_none() && contender.path.name().starts_with(&prefix)
        };
        let lock = match contenders.iter().position(ours) {
            None => LockSight::Absent,
            Some(0) => LockSight::Held,
            Some(_) => LockSight::Queued,
        };
        Ok(SeenNode {
            id,
            stored: stored?,
            contenders: contenders.into_iter().filter(ours).collect(),
            lock,
        })
    }

    /// The request of a lease. Its number is in the request's own record before it is in that of the lease.
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
        // The view may lag: it has none yet, or still the one that was replaced.
        self.book.requests.synced().await?;
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
        self.book.requests.for_each(|item| {
            // Cheap, and true for hardly any other.
            let likely = item.value.event_id.as_deref() == Some(&*event);
            if likely && book::lease_of(&item.value) == Some(lease) {
                found = Some(item);
            }
        });
        found
    }
}

impl Seen {
    pub(super) fn sight(&self) -> Sight<'_> {
        Sight {
            request: self.request.as_ref().map(|(id, record)| (*id, record)),
            nodes: self.nodes.iter().map(SeenNode::sight).collect(),
            scope: match &self.scope {
                None => ScopeSight::None,
                Some(None) => ScopeSight::Gone,
                Some(Some(scope)) => ScopeSight::There(&scope.value),
            },
        }
    }
}

impl SeenNode {
    pub(super) fn sight(&self) -> NodeSight<'_> {
        NodeSight {
            node: self.stored.as_ref().map(|stored| &stored.value),
            lock: self.lock,
        }
    }

    /// Leaves the queue for its lock.
    pub(super) fn unlock(&self) -> impl Iterator<Item = Op> {
        let contenders = self.contenders.iter();
        contenders.map(|contender| delete(contender.path.clone()))
    }

    /// Writes what becomes of it and unlocks it. What is not used by us is only unlocked.
    pub(super) fn give(&self, given: &Given, now: Timestamp) -> store::Result<Vec<Op>> {
        let mut ops = Vec::new();
        if let (Some(stored), true) = (&self.stored, decide::is_used(&self.sight())) {
            let mut record = stored.value.clone();
            match given {
                Given::Back => record.set_state(NodeState::Used, now),
                Given::OnHold { by, hold } => {
                    record.set_state(NodeState::Hold, now);
                    record.hold_job = Some(by.clone());
                    record.comment = hold.comment.as_deref().map(Into::into);
                    record.hold_expiration = hold.expiration.map(i64::from);
                }
            }
            ops.push(set_node(self.id, &record, stored.stat.version)?);
        }
        ops.extend(self.unlock());
        Ok(ops)
    }
}

async fn read_node(tree: &dyn Tree, path: &TreePath) -> store::Result<Option<Stored<Node>>> {
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
