//! Implements [`Backing`] over the store.
//!
//! The request is an ordinary one. Like that of Python Nodepool it ends with its session, so that no node is allocated
//! to a launcher that died. The node is held by a *persistent* contender of its lock, which carries the identity of
//! the provider: no launcher, ours or Python's, treats a locked node as abandoned, and a restart does not affect it.
//!
//! # After a crash
//!
//! The lock comes first; then one write marks the record as used and deletes the request. After a crash between the
//! two there is a locked node whose request has ended with its session. It has no slot table, and is released. The end
//! of a use is one write of record and lock. So the record always shows whether the node is in use or to be released.
//!
//! The lock may belong to an attempt that was interrupted and is being cleaned up, so the write that begins a use
//! takes over the contender as well.
//!
//! Writes are conditional on the version that was read: the lock excludes other providers, but the launchers that
//! serve the same provider share it.

mod follow;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use nodeyard_driver::Error;
use nodeyard_driver::backing::{Backing, BackingSnapshot, SlotTable};
use nodeyard_model::{
    Label, Node, NodeId, NodeRequest, NodeState, ProviderName, Record as _, RequestId,
    RequestState, layout,
};
use nodeyard_store::ext::persist_in_session;
use nodeyard_store::lock::adopt;
use nodeyard_store::registry::{Attempt, Lifetime, Patience, Stored};
use nodeyard_store::{self as store, Op, OpOutcome, TreePath, Version};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use uuid::Uuid;

use crate::commit::set_node;
use crate::context::Context;
use follow::{CatchUp, Follower};

/// The highest priority: a request waits for a slot on it.
const PRECEDENCE: u16 = 100;

/// What one provider asks for and holds.
pub(crate) struct StoreBacking {
    ctx: Context,
    identity: Arc<str>,
    snapshot: watch::Receiver<BackingSnapshot>,
    catch_up: mpsc::UnboundedSender<CatchUp>,
    follower: AbortHandle,
}

impl StoreBacking {
    /// Follows the views of `ctx` until it is dropped.
    pub(crate) fn open(ctx: Context, provider: ProviderName, identity: &str) -> Self {
        let identity: Arc<str> = identity.into();
        let (catch_up, requests) = mpsc::unbounded_channel();
        let (follower, snapshot) = Follower::new(ctx.clone(), provider, Arc::clone(&identity));
        let follower = tokio::spawn(follower.run(requests)).abort_handle();
        Self {
            ctx,
            identity,
            snapshot,
            catch_up,
            follower,
        }
    }

    /// Returns when the snapshot shows what the views show. Whether we hold `doubtful` is checked again.
    async fn caught_up(&self, doubtful: Option<NodeId>) -> store::Result<()> {
        let (done, result) = oneshot::channel();
        let message = CatchUp { doubtful, done };
        let closed = |_| store::Error::Closed;
        self.catch_up
            .send(message)
            .map_err(|_| store::Error::Closed)?;
        result.await.map_err(closed)
    }

    /// Repeats what may be done twice, for as long as the session lives.
    async fn with_retries<T, F>(&self, work: impl FnMut() -> F) -> store::Result<T>
    where
        F: Future<Output = store::Result<T>>,
    {
        persist_in_session(&**self.ctx.registry.tree(), work).await
    }

    async fn synced(&self) -> store::Result<()> {
        self.ctx.nodes.synced().await?;
        self.ctx.requests.synced().await?;
        self.caught_up(None).await
    }

    async fn submit(&self, label: &Label) -> store::Result<()> {
        let now = self.ctx.clock.now();
        let mut record = NodeRequest::new(RequestState::Requested, now);
        record.labels = vec![label.clone()];
        record.requestor = Some(Arc::clone(&self.identity));
        record.event_id = Some(Uuid::new_v4().simple().to_string().into());
        record.created_time = Some(now);
        let requests = self.ctx.registry.requests();
        loop {
            let made = requests.create(PRECEDENCE, &record, Lifetime::Session);
            match made.await {
                Ok((id, stat)) => self.ctx.requests.wrote(id, Arc::new(record), stat),
                Err(store::Error::ConnectionLoss) => {
                    self.ctx.requests.synced().await?;
                    if !self.is_made(&record) {
                        continue;
                    }
                }
                Err(error) => return Err(error),
            }
            return self.caught_up(None).await;
        }
    }

    /// Returns whether a matching request exists. Its event id is its own.
    fn is_made(&self, record: &NodeRequest) -> bool {
        let mut made = false;
        self.ctx.requests.for_each(|item| {
            made |= item.value.event_id == record.event_id;
        });
        made
    }

    async fn end(&self, request: RequestId) -> store::Result<()> {
        self.ctx.registry.requests().delete(request).await?;
        self.ctx.requests.deleted(&request);
        self.caught_up(None).await
    }

    async fn accept(&self, request: RequestId, slots: &SlotTable) -> store::Result<Accepted> {
        let Some(record) = self.ctx.registry.requests().get(request).await? else {
            self.synced().await?;
            return Ok(Accepted::Settled);
        };
        let Some(node) = record.value.nodes.first().copied() else {
            self.end(request).await?;
            return Ok(Accepted::Settled);
        };
        let nodes = self.ctx.registry.nodes();
        let contender = match self.contender(node).await? {
            Some(contender) => Some(contender),
            None => {
                let attempt = nodes.lock_for_good(node, &self.identity, Patience::None);
                match attempt.await? {
                    // Dropping the guard of a persistent contender leaves it in place.
                    Attempt::Held(held) => Some(held.guard.path().clone()),
                    Attempt::Busy => return Ok(Accepted::Busy(node)),
                    Attempt::Gone => None,
                }
            }
        };
        match (nodes.get(node).await?, contender) {
            (Some(stored), Some(contender)) if is_given(&stored.value, request) => {
                let adopted = adopt(contender, &self.identity);
                self.begin_use(request, node, stored, slots, adopted)
                    .await?;
            }
            (_, contender) => {
                if let Some(contender) = contender {
                    store::ext::delete_opt(&**self.ctx.registry.tree(), &contender).await?;
                }
                self.end(request).await?;
            }
        }
        self.caught_up(Some(node)).await?;
        Ok(Accepted::Settled)
    }

    async fn begin_use(
        &self,
        request: RequestId,
        id: NodeId,
        stored: Stored<Node>,
        slots: &SlotTable,
        adopted: Op,
    ) -> store::Result<()> {
        let mut node = stored.value;
        node.user_data = user_data(id, slots)?;
        node.set_state(NodeState::InUse, self.ctx.clock.now());
        let ops = vec![
            set_node(id, &node, stored.stat.version)?,
            delete(layout::request(request))?,
            adopted,
        ];
        if self.apply(id, node, ops).await? {
            self.ctx.requests.deleted(&request);
        }
        Ok(())
    }

    async fn replace(&self, id: NodeId, version: i32, slots: &SlotTable) -> store::Result<bool> {
        let Some(mut node) = self.seen(id, version) else {
            self.synced().await?;
            return Ok(false);
        };
        node.user_data = user_data(id, slots)?;
        let path = TreePath::new(layout::node(id))?;
        let data = Bytes::from(node.to_json());
        let set = self
            .ctx
            .registry
            .tree()
            .set(&path, data, Version::Exactly(version));
        match set.await {
            Ok(stat) => {
                self.ctx.nodes.wrote(id, Arc::new(node), stat);
                self.caught_up(None).await?;
                Ok(true)
            }
            // If the response to a write was lost, the record shows the result.
            Err(
                store::Error::BadVersion { .. }
                | store::Error::NoNode { .. }
                | store::Error::ConnectionLoss,
            ) => {
                self.synced().await?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    async fn end_use(&self, id: NodeId, version: i32) -> store::Result<()> {
        let contender = self.contender(id).await?;
        if let (Some(contender), Some(mut node)) = (contender, self.seen(id, version)) {
            let record = if node.state == NodeState::InUse {
                node.set_state(NodeState::Used, self.ctx.clock.now());
                set_node(id, &node, version)?
            } else {
                Op::Check {
                    path: TreePath::new(layout::node(id))?,
                    version: Version::Exactly(version),
                }
            };
            self.apply(id, node, vec![record, delete(contender.as_str())?])
                .await?;
        }
        self.caught_up(Some(id)).await
    }

    /// Does all of `ops`, the first of which is about the node; false if something is not as it was.
    async fn apply(&self, id: NodeId, node: Node, ops: Vec<Op>) -> store::Result<bool> {
        match self.ctx.registry.tree().multi(ops).await {
            Ok(outcomes) => {
                if let Some(OpOutcome::Set(stat)) = outcomes.into_iter().next() {
                    self.ctx.nodes.wrote(id, Arc::new(node), stat);
                }
                Ok(true)
            }
            Err(store::Error::Multi { source, .. }) if !source.is_connection() => {
                self.synced().await?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the record of a node if it is unchanged.
    fn seen(&self, id: NodeId, version: i32) -> Option<Node> {
        let item = self.ctx.nodes.get(&id)?;
        (item.stat.version == version).then(|| Node::clone(&item.value))
    }

    async fn contender(&self, node: NodeId) -> store::Result<Option<TreePath>> {
        follow::contender(&self.ctx, node, &self.identity).await
    }
}

enum Accepted {
    /// The request is over, one way or another, or will be seen to be.
    Settled,
    /// Another contender holds the lock of the node.
    Busy(NodeId),
}

fn is_given(node: &Node, request: RequestId) -> bool {
    node.state == NodeState::Ready && node.request() == Some(request)
}

fn user_data(id: NodeId, slots: &SlotTable) -> store::Result<nodeyard_model::Opaque> {
    slots.to_user_data().map_err(|cause| store::Error::Backend {
        context: format!("failed to encode the slots of node {id}"),
        source: cause.into(),
    })
}

fn delete(path: impl Into<Arc<str>>) -> store::Result<Op> {
    Ok(Op::Delete {
        path: TreePath::new(path)?,
        version: Version::Any,
    })
}

fn passing(what: &str) -> impl FnOnce(store::Error) -> Error {
    move |cause| Error::retry(format!("failed to {what}")).because(cause)
}

#[async_trait]
impl Backing for StoreBacking {
    async fn snapshot(&self) -> Result<watch::Receiver<BackingSnapshot>, Error> {
        let mut snapshot = self.snapshot.clone();
        let loaded = snapshot.wait_for(|snapshot| snapshot.revision > 0);
        if loaded.await.is_ok() {
            Ok(snapshot)
        } else {
            Err(passing("read nodes of other providers")(
                store::Error::Closed,
            ))
        }
    }

    async fn refresh(&self) -> Result<(), Error> {
        self.synced()
            .await
            .map_err(passing("read nodes of other providers"))
    }

    async fn request_node(&self, label: &Label) -> Result<(), Error> {
        self.submit(label)
            .await
            .map_err(passing("request a node of another provider"))
    }

    async fn withdraw_request(&self, request: RequestId) -> Result<(), Error> {
        self.with_retries(|| self.end(request))
            .await
            .map_err(passing("withdraw a request"))
    }

    async fn accept_node(&self, request: RequestId, slots: &SlotTable) -> Result<(), Error> {
        let accepted = self.with_retries(|| self.accept(request, slots)).await;
        match accepted.map_err(passing("accept a node of another provider"))? {
            Accepted::Settled => Ok(()),
            Accepted::Busy(node) => {
                let text = format!(
                    "node {node} was given to this provider, but is locked by another requestor"
                );
                Err(Error::retry(text))
            }
        }
    }

    async fn write_slots(
        &self,
        node: NodeId,
        version: i32,
        slots: &SlotTable,
    ) -> Result<bool, Error> {
        self.replace(node, version, slots)
            .await
            .map_err(passing("assign slots"))
    }

    async fn release_node(&self, node: NodeId, version: i32) -> Result<(), Error> {
        self.with_retries(|| self.end_use(node, version))
            .await
            .map_err(passing("release a node"))
    }
}

impl fmt::Debug for StoreBacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreBacking")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl Drop for StoreBacking {
    fn drop(&mut self) {
        self.follower.abort();
    }
}
