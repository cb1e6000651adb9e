//! Keeps the snapshot of the backing nodes of one provider up to date with the views.
//!
//! One task writes it from the current state of the views, so it never contains older state than before. The record
//! alone does not prove that a node is held: the first contender of its lock must be ours. That is checked when the
//! node appears, and again when its lock seems to have changed.

use std::collections::{BTreeSet, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use nodeyard_driver::backing::{
    BackingNode, BackingRequest, BackingSnapshot, Placement, SlotNode, SlotTable,
};
use nodeyard_model::{Node, NodeId, NodeRequest, NodeState, ProviderName, RequestId};
use nodeyard_store::registry::{NodeShape, RequestShape};
use nodeyard_store::view::{Change, Changes, Item};
use nodeyard_store::{Error, Result, TreePath, ext};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;
use tracing::{error, warn};

use crate::context::Context;

/// Before following that failed is begun again.
const PAUSE: Duration = Duration::from_secs(1);

/// A caller waits until the snapshot shows what the views show.
#[derive(Debug)]
pub(super) struct CatchUp {
    pub(super) doubtful: Option<NodeId>,
    pub(super) done: oneshot::Sender<()>,
}

pub(super) struct Follower {
    ctx: Context,
    provider: ProviderName,
    identity: Arc<str>,
    snapshot: watch::Sender<BackingSnapshot>,
    /// Nodes whose lock is ours.
    proven: HashSet<NodeId>,
}

/// Changes that the snapshot does not show yet.
#[derive(Default)]
struct Pending {
    nodes: BTreeSet<NodeId>,
    all_nodes: bool,
    requests: BTreeSet<RequestId>,
    all_requests: bool,
}

impl Pending {
    fn add_nodes(&mut self, change: Change<NodeId>) {
        match change {
            Change::Ids(ids) => self.nodes.extend(ids),
            Change::Everything => self.all_nodes = true,
        }
    }

    fn add_requests(&mut self, change: Change<RequestId>) {
        match change {
            Change::Ids(ids) => self.requests.extend(ids),
            Change::Everything => self.all_requests = true,
        }
    }
}

struct BackingChanges {
    nodes: Changes<NodeId>,
    requests: Changes<RequestId>,
}

impl BackingChanges {
    /// Collects all pending changes.
    fn drain(&mut self, pending: &mut Pending) {
        while let Some(Some(change)) = self.nodes.next().now_or_never() {
            pending.add_nodes(change);
        }
        while let Some(Some(change)) = self.requests.next().now_or_never() {
            pending.add_requests(change);
        }
    }
}

impl Follower {
    pub(super) fn new(
        ctx: Context,
        provider: ProviderName,
        identity: Arc<str>,
    ) -> (Self, watch::Receiver<BackingSnapshot>) {
        let (snapshot, receiver) = watch::channel(BackingSnapshot::default());
        let follower = Self {
            ctx,
            provider,
            identity,
            snapshot,
            proven: HashSet::new(),
        };
        (follower, receiver)
    }

    /// Runs until the store is closed or all receivers are dropped.
    pub(super) async fn run(mut self, mut calls: mpsc::UnboundedReceiver<CatchUp>) {
        loop {
            match AssertUnwindSafe(self.follow(&mut calls))
                .catch_unwind()
                .await
            {
                Ok(Ok(()) | Err(Error::Closed)) => return,
                Ok(Err(error)) => warn!(
                    provider = %self.provider,
                    error = &error as &dyn std::error::Error,
                    "failed to follow backing nodes of provider; retrying"
                ),
                Err(_) => error!(
                    provider = %self.provider,
                    "task that follows backing nodes panicked, which is a bug in this program; restarting"
                ),
            }
            sleep(PAUSE).await;
        }
    }

    async fn follow(&mut self, calls: &mut mpsc::UnboundedReceiver<CatchUp>) -> Result<()> {
        let mut changes = BackingChanges {
            nodes: self.ctx.nodes.changes(),
            requests: self.ctx.requests.changes(),
        };
        self.ctx.nodes.synced().await?;
        self.ctx.requests.synced().await?;
        let mut pending = Pending {
            all_nodes: true,
            all_requests: true,
            ..Pending::default()
        };
        let mut waiting = Vec::new();
        loop {
            changes.drain(&mut pending);
            self.apply_changes(&mut changes, std::mem::take(&mut pending))
                .await?;
            for done in waiting.drain(..) {
                let done: oneshot::Sender<()> = done;
                // The receiver may have been dropped.
                let _ = done.send(());
            }
            tokio::select! {
                change = changes.nodes.next() => pending.add_nodes(change.ok_or(Error::Closed)?),
                change = changes.requests.next() => pending.add_requests(change.ok_or(Error::Closed)?),
                call = calls.recv() => match call {
                    Some(CatchUp { doubtful, done }) => {
                        if let Some(node) = doubtful {
                            self.proven.remove(&node);
                            pending.nodes.insert(node);
                        }
                        waiting.push(done);
                    }
                    None => return Ok(()),
                },
            }
        }
    }

    async fn apply_changes(
        &mut self,
        changes: &mut BackingChanges,
        mut pending: Pending,
    ) -> Result<()> {
        let has_ended = {
            let snapshot = self.snapshot.borrow();
            let mut requests = pending.requests.iter();
            requests
                .any(|id| snapshot.requests.contains_key(id) && self.ctx.requests.get(id).is_none())
        };
        if has_ended {
            // A request of ours goes in the write that takes its node into use: the node must be seen first.
            self.ctx.nodes.synced().await?;
            changes.drain(&mut pending);
        }
        if pending.all_nodes {
            let snapshot = self.snapshot.borrow();
            pending.nodes.extend(snapshot.slot_nodes.keys());
            pending.nodes.extend(snapshot.backing_nodes.keys());
            self.ctx.nodes.for_each(|item| {
                if self.is_own(&item.value) || self.is_claimed(&item.value) {
                    pending.nodes.insert(item.id);
                }
            });
        }
        if pending.all_requests {
            pending
                .requests
                .extend(self.snapshot.borrow().requests.keys());
            self.ctx.requests.for_each(|item| {
                pending.requests.insert(item.id);
            });
        }
        self.prove(&pending.nodes).await?;
        self.snapshot
            .send_if_modified(|snapshot| self.update(snapshot, &pending));
        Ok(())
    }

    /// Finds out which of the nodes that name us are ours.
    async fn prove(&mut self, nodes: &BTreeSet<NodeId>) -> Result<()> {
        for id in nodes {
            let item = self.ctx.nodes.get(id);
            let Some(item) = item.filter(|item| self.is_claimed(&item.value)) else {
                self.proven.remove(id);
                continue;
            };
            if item.locked && self.proven.contains(id) {
                continue;
            }
            if contender(&self.ctx, *id, &self.identity).await?.is_some() {
                self.proven.insert(*id);
            } else {
                self.proven.remove(id);
            }
        }
        Ok(())
    }

    /// Returns whether the snapshot changed.
    fn update(&self, snapshot: &mut BackingSnapshot, pending: &Pending) -> bool {
        // The first time counts even if there is nothing.
        let mut changed = snapshot.revision == 0;
        for id in &pending.nodes {
            let item = self.ctx.nodes.get(id);
            let own = item.as_ref().and_then(|item| self.own(&item.value));
            let held = item.filter(|_| self.proven.contains(id));
            let held = held.map(|item| self.held(&item));
            changed |= put(&mut snapshot.slot_nodes, id, own);
            changed |= put(&mut snapshot.backing_nodes, id, held);
        }
        for id in &pending.requests {
            let item = self.ctx.requests.get(id);
            let request = item.and_then(|item| self.request(&item));
            changed |= put(&mut snapshot.requests, id, request);
        }
        if changed {
            snapshot.revision += 1;
        }
        changed
    }

    fn is_own(&self, node: &Node) -> bool {
        node.provider.as_ref() == Some(&self.provider)
    }

    /// Returns whether the record names us as its owner.
    fn is_claimed(&self, node: &Node) -> bool {
        node.requestor.as_deref() == Some(&*self.identity) && !self.is_own(node)
    }

    fn own(&self, node: &Node) -> Option<SlotNode> {
        self.is_own(node).then(|| SlotNode {
            label: node.labels.first().cloned(),
            request: node.request(),
            created: node.created_time,
            launching: matches!(node.state, NodeState::Init | NodeState::Building),
            placement: Placement::read(&node.driver_data),
        })
    }

    fn held(&self, item: &Item<NodeShape>) -> BackingNode {
        BackingNode {
            node: Arc::clone(&item.value),
            version: item.stat.version,
            slots: SlotTable::read(&item.value.user_data, &self.identity),
        }
    }

    fn request(&self, item: &Item<RequestShape>) -> Option<BackingRequest> {
        let record: &NodeRequest = &item.value;
        if record.requestor.as_deref() != Some(&*self.identity) {
            return None;
        }
        let session = self.ctx.registry.tree().session().borrow().id();
        Some(BackingRequest {
            label: record.labels.first()?.clone(),
            state: record.state,
            of_this_process: session.is_some_and(|session| session.0 == item.stat.ephemeral_owner),
        })
    }
}

/// Returns whether the value changed.
fn put<K: Ord + Copy, V: PartialEq>(
    map: &mut std::collections::BTreeMap<K, V>,
    key: &K,
    value: Option<V>,
) -> bool {
    if map.get(key) == value.as_ref() {
        return false;
    }
    match value {
        Some(value) => map.insert(*key, value),
        None => map.remove(key),
    };
    true
}

/// Returns the contender by which we hold a node.
pub(super) async fn contender(
    ctx: &Context,
    node: NodeId,
    identity: &str,
) -> Result<Option<TreePath>> {
    let lock = ctx.registry.nodes().lock_of(node)?;
    let contenders = ext::persist(&**ctx.registry.tree(), || lock.contenders()).await?;
    let first = contenders.into_iter().next();
    let ours = first.filter(|first| first.identifier == identity && first.session.is_none());
    Ok(ours.map(|ours| ours.path))
}
