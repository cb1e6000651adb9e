//! Serves one request, from the decision until its nodes are unlocked for Zuul.
//!
//! If ready nodes suffice, everything is written at once: nodes allocated and unlocked, the request fulfilled and
//! unlocked. Otherwise the request is marked `pending`, its lock is kept, and nodes are collected, each under its
//! lock, until there is one for every label.
//!
//! The requestor may delete the request at any time. That is noticed at once ([`Serving::gone`]); launches under way
//! are left to clean-up, and ready nodes become free.

mod collect;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use nodeyard_model::{Label, Node, NodeId, NodeRequest, PoolName, RequestId, RequestState};
use nodeyard_plan::ZoneName;
use nodeyard_plan::protocol::{self, node::ObservedState};
use nodeyard_plan::verdict::{Acceptance, NodeStep};
use nodeyard_store::ext::persist_in_session;
use nodeyard_store::lock::LockGuard;
use nodeyard_store::registry::{Attempt, Held, Patience};
use nodeyard_store::{Error, Op, OpOutcome, Result};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, debug, info, info_span, warn};

use crate::commit::{commit, set_node, set_request, unlock};
use crate::context::Context;
use crate::provider::{Pool, Provider};
use crate::report::{ServeOutcome, TaskReport};

/// The delay before a request that could not be declined is planned again.
pub(crate) const INCOMPLETE_PAUSE: Duration = Duration::from_secs(1);

/// A command of the dispatcher for a request.
#[derive(Debug)]
pub(crate) enum ServeCommand {
    /// Get these nodes as well.
    Accept(Acceptance),
    /// Mark it pending and wait for room.
    Reserve,
    /// Decline it, with the reason for the log.
    Decline(String),
    /// Unassign its nodes and wait for room.
    Unassign,
    /// Unassign its nodes and requeue it for any pool, with the reason for the log.
    Requeue(&'static str),
}

#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) ctx: Context,
    pub(crate) provider: Arc<Provider>,
    pub(crate) pool: PoolName,
    pub(crate) id: RequestId,
    pub(crate) orders: mpsc::UnboundedReceiver<ServeCommand>,
    /// The requestor has deleted the request.
    pub(crate) gone: CancellationToken,
}

/// A locked request with the nodes it has so far.
#[derive(Debug)]
struct HeldRequest {
    held: Held<NodeRequest>,
    assigned: Vec<AssignedNode>,
}

impl HeldRequest {
    fn new(held: Held<NodeRequest>) -> Self {
        if let Some(event) = &held.value.event_id {
            tracing::Span::current().record("event", &**event);
        }
        Self {
            held,
            assigned: Vec::new(),
        }
    }
}

/// A node for a request: ready, allocated to it, its lock held.
#[derive(Debug)]
struct AssignedNode {
    label: Label,
    id: NodeId,
    held: Held<Node>,
    /// It was launched for this request.
    launched: bool,
}

impl Serving {
    pub(crate) async fn run(mut self, first: ServeCommand) {
        let span = info_span!(
            "request",
            request = %self.id,
            event = tracing::field::Empty,
            launcher = self.pool_run().map(|pool| tracing::field::display(&pool.id)),
        );
        let work = async {
            let ctx = self.ctx.clone();
            let request = self.id;
            let outcome = tokio::select! {
                outcome = self.serve(first) => outcome,
                () = ctx.stop.cancelled() => return,
            };
            let outcome = outcome.unwrap_or_else(|error| {
                let error = &error as &dyn std::error::Error;
                warn!(
                    error,
                    "lost connection to the store while serving request; recovering it"
                );
                ServeOutcome::Lost
            });
            ctx.report(TaskReport::Served { request, outcome });
        };
        work.instrument(span).await;
    }

    async fn serve(&mut self, first: ServeCommand) -> Result<ServeOutcome> {
        if let ServeCommand::Accept(acceptance) = &first
            && acceptance.launched().next().is_none()
            && !self.may_exceed_tenant(acceptance)
        {
            return self.fulfil_from_ready(acceptance).await;
        }
        let held = match self
            .ctx
            .registry
            .requests()
            .lock(self.id, Patience::None)
            .await?
        {
            Attempt::Held(held) => *held,
            Attempt::Busy => return Ok(ServeOutcome::Conflict),
            Attempt::Gone => return Ok(ServeOutcome::Gone),
        };
        let mut held_request = HeldRequest::new(held);
        if let ServeCommand::Decline(reason) = &first {
            return self.decline(held_request, reason).await;
        }
        if !self.mark_pending(&mut held_request).await? {
            return held_request
                .held
                .guard
                .release()
                .await
                .map(|()| ServeOutcome::Conflict);
        }
        let mut order = first;
        loop {
            match order {
                ServeCommand::Accept(acceptance) => {
                    match self.collect(&mut held_request, &acceptance).await? {
                        collect::CollectOutcome::All => return self.fulfil(held_request).await,
                        collect::CollectOutcome::RequestGone => {
                            return self.abandon(held_request).await;
                        }
                        collect::CollectOutcome::Failed(why) => {
                            tokio::select! {
                                seen = self.pools_are_seen() => seen?,
                                () = self.gone.cancelled() => return self.abandon(held_request).await,
                                () = held_request.held.guard.lost() => return Err(Error::SessionExpired),
                            }
                            let reason = format!("a launch failed: {why}");
                            let served = self.decline(held_request, &reason).await?;
                            return Ok(match served {
                                ServeOutcome::Declined => ServeOutcome::LaunchFailed,
                                other => other,
                            });
                        }
                        collect::CollectOutcome::Lacking(missing) => {
                            let zone = held_request
                                .assigned
                                .iter()
                                .find_map(|assigned| assigned.held.value.az.as_deref());
                            self.ctx.report(TaskReport::Lacking {
                                request: self.id,
                                missing,
                                zone: zone.map(ZoneName::from),
                            });
                        }
                    }
                }
                ServeCommand::Reserve => debug!("request waits for room"),
                ServeCommand::Unassign => self.unassign_all(&mut held_request).await?,
                ServeCommand::Decline(reason) => return self.decline(held_request, &reason).await,
                ServeCommand::Requeue(reason) => return self.requeue(held_request, reason).await,
            }
            order = tokio::select! {
                order = self.orders.recv() => match order {
                    Some(order) => order,
                    // The dispatcher has ended; so will everything.
                    None => return Ok(ServeOutcome::Lost),
                },
                () = self.gone.cancelled() => return self.abandon(held_request).await,
                () = held_request.held.guard.lost() => return Err(Error::SessionExpired),
            };
        }
    }

    fn pool_run(&self) -> Option<&Pool> {
        self.provider.pools.get(&self.pool)
    }

    /// Marks the request as pending. Returns false if it is no longer available.
    async fn mark_pending(&self, held_request: &mut HeldRequest) -> Result<bool> {
        let Some(pool) = self.pool_run() else {
            return Ok(false);
        };
        let held = &mut held_request.held;
        let Ok(pending) =
            protocol::request::take(Some(&held.value), &pool.id, self.ctx.clock.now())
        else {
            return Ok(false);
        };
        let requests = self.ctx.registry.requests();
        let store = || requests.store(&held.guard, self.id, &pending);
        match persist_in_session(&**held.guard.tree(), store).await {
            Ok(stat) => {
                self.note_accepted(&pending);
                self.ctx
                    .requests
                    .wrote(self.id, Arc::new(pending.clone()), stat);
                held.value = pending;
                held.stat = stat;
                Ok(true)
            }
            Err(Error::NoNode { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Serves the request with ready nodes alone.
    async fn fulfil_from_ready(&self, acceptance: &Acceptance) -> Result<ServeOutcome> {
        let requests = self.ctx.registry.requests();
        let nodes = acceptance.steps.iter().filter_map(|step| match step {
            NodeStep::Reuse { label, node } => Some(self.lock_ready(label, *node)),
            NodeStep::Launch { .. } => None,
        });
        let (request, nodes) = join(requests.lock(self.id, Patience::None), join_all(nodes)).await;
        let held = match request? {
            Attempt::Held(held) => *held,
            Attempt::Busy => return Ok(ServeOutcome::Conflict),
            Attempt::Gone => return Ok(ServeOutcome::Gone),
        };
        let mut held_request = HeldRequest::new(held);
        let mut complete = true;
        for node in nodes {
            match node? {
                Some(assigned) => held_request.assigned.push(assigned),
                None => complete = false,
            }
        }
        let now = self.ctx.clock.now();
        let own = self.pool_run().map(|pool| &pool.id);
        let pending = own
            .and_then(|own| protocol::request::take(Some(&held_request.held.value), own, now).ok());
        let mut batch = WriteBatch::default();
        for assigned in &mut held_request.assigned {
            match protocol::node::allocate(
                Some(&assigned.held.value),
                self.id,
                &held_request.held.value,
            ) {
                Ok(allocated) => {
                    assigned.held.value = allocated.clone();
                    batch.set(assigned.id, allocated, assigned.held.stat.version)?;
                }
                Err(_) => complete = false,
            }
        }
        let Some(pending) = pending.filter(|_| complete) else {
            held_request.release().await?;
            return Ok(ServeOutcome::Conflict);
        };
        self.note_accepted(&pending);
        held_request.held.value = pending;
        self.finish(held_request, batch).await
    }

    fn note_accepted(&self, record: &NodeRequest) {
        let now = self.ctx.clock.now();
        self.ctx.history.accepted(self.id, now);
        let waited = record
            .created_time
            .map_or(Duration::ZERO, |at| now.since(at));
        self.ctx.events.accepted(&self.provider.name, waited);
    }

    /// Locks a ready node. None if it is not available.
    async fn lock_ready(&self, label: &Label, id: NodeId) -> Result<Option<AssignedNode>> {
        let nodes = self.ctx.registry.nodes();
        let (attempt, alive) = join(nodes.lock(id, Patience::None), self.is_alive(id)).await;
        let Some(held) = attempt?.held() else {
            return Ok(None);
        };
        if !alive {
            self.retire(id, held).await?;
            return Ok(None);
        }
        Ok(Some(AssignedNode {
            label: label.clone(),
            id,
            held,
            launched: false,
        }))
    }

    /// Returns whether the machine of an existing node responds, where that is to be checked.
    async fn is_alive(&self, id: NodeId) -> bool {
        let Some(roster) = self.provider.driver.roster() else {
            return true;
        };
        let machine = self
            .ctx
            .nodes
            .get(&id)
            .and_then(|node| crate::roster::identity(&node.value));
        match machine {
            Some(machine) => roster.is_alive(&machine).await,
            None => false,
        }
    }

    /// Marks a node whose machine is unreachable for deletion. It is registered again when the machine responds.
    async fn retire(&self, id: NodeId, held: Held<Node>) -> Result<()> {
        let seen = ObservedState::ready(held.value.state_time);
        match protocol::node::retire(Some(&held.value), seen, self.ctx.clock.now()) {
            Ok(retired) => {
                warn!(node = %id, "machine of ready node unreachable; marking node for deletion");
                let ops = vec![
                    set_node(id, &retired, held.stat.version)?,
                    unlock(&held.guard),
                ];
                commit(&held.guard, ops).await?;
                held.guard.forget();
                Ok(())
            }
            Err(_) => held.guard.release().await,
        }
    }

    async fn fulfil(&self, held_request: HeldRequest) -> Result<ServeOutcome> {
        self.finish(held_request, WriteBatch::default()).await
    }

    /// Fulfils the request with its nodes. The nodes are unlocked in the same write.
    async fn finish(
        &self,
        held_request: HeldRequest,
        mut batch: WriteBatch,
    ) -> Result<ServeOutcome> {
        let now = self.ctx.clock.now();
        let launched = held_request
            .assigned
            .iter()
            .filter(|assigned| assigned.launched)
            .count();
        let given = held_request
            .assigned
            .iter()
            .map(|assigned| (assigned.label.clone(), assigned.id))
            .collect();
        let Ok(fulfilled) = protocol::request::fulfil(Some(&held_request.held.value), given, now)
        else {
            return self
                .decline(held_request, "the nodes do not match the labels")
                .await;
        };
        for assigned in &held_request.assigned {
            batch.unlock(&assigned.held.guard);
        }
        match self.write(held_request, fulfilled, batch).await? {
            CommitOutcome::Done(record) => {
                let waited = record
                    .created_time
                    .map_or(Duration::ZERO, |at| now.since(at));
                self.ctx.events.fulfilled(&self.provider.name, waited);
                if let Some(pool) = self.pool_run() {
                    let history = &self.ctx.history;
                    history.fulfilled(self.id, &record, &pool.key, launched, now);
                }
                info!(nodes = ?record.nodes, pool = %self.pool, "request fulfilled");
                Ok(ServeOutcome::Fulfilled)
            }
            CommitOutcome::Refused(held_request) => self.abandon(*held_request).await,
        }
    }

    /// Waits until all pools of this launcher are registered. The last registered pool that declines a request fails
    /// it, and one that is about to be registered may be able to serve it.
    async fn pools_are_seen(&self) -> Result<()> {
        loop {
            let (answer, complete) = oneshot::channel();
            self.ctx.report(TaskReport::IsComplete(answer));
            if complete.await.map_err(|_| Error::Closed)? {
                return Ok(());
            }
            sleep(INCOMPLETE_PAUSE).await;
        }
    }

    /// Unassigns all nodes and declines the request, which fails if every pool has declined.
    async fn decline(&self, held_request: HeldRequest, reason: &str) -> Result<ServeOutcome> {
        let Some(pool) = self.pool_run() else {
            return held_request
                .release()
                .await
                .map(|()| ServeOutcome::Conflict);
        };
        self.ctx.pools.synced().await?;
        let registered = self.ctx.registered();
        let now = self.ctx.clock.now();
        let declined =
            protocol::request::decline(Some(&held_request.held.value), &pool.id, &registered, now);
        let Ok(declined) = declined else {
            return held_request
                .release()
                .await
                .map(|()| ServeOutcome::Conflict);
        };
        let mut batch = WriteBatch::default();
        for assigned in &held_request.assigned {
            self.free(assigned, &mut batch)?;
        }
        match self.write(held_request, declined, batch).await? {
            CommitOutcome::Done(record) => {
                let history = &self.ctx.history;
                history.declined(self.id, &record, &pool.key, reason, now);
                if record.state == RequestState::Failed {
                    self.ctx.events.failed();
                }
                info!(reason, pool = %self.pool, state = %record.state, "request declined");
                Ok(ServeOutcome::Declined)
            }
            CommitOutcome::Refused(held_request) => self.abandon(*held_request).await,
        }
    }

    /// Unassigns all nodes and requeues the request for any pool.
    async fn requeue(&self, held_request: HeldRequest, reason: &str) -> Result<ServeOutcome> {
        let now = self.ctx.clock.now();
        let Ok(waiting) = protocol::request::requeue(Some(&held_request.held.value), now) else {
            return self.abandon(held_request).await;
        };
        let mut batch = WriteBatch::default();
        for assigned in &held_request.assigned {
            self.free(assigned, &mut batch)?;
        }
        match self.write(held_request, waiting, batch).await? {
            CommitOutcome::Done(_) => {
                info!(reason, pool = %self.pool, "requeued request");
                Ok(ServeOutcome::Requeued)
            }
            CommitOutcome::Refused(held_request) => self.abandon(*held_request).await,
        }
    }

    /// Writes and unlocks the request together with the rest of `batch`.
    async fn write(
        &self,
        held_request: HeldRequest,
        record: NodeRequest,
        mut batch: WriteBatch,
    ) -> Result<CommitOutcome> {
        let place = batch.ops.len();
        batch.ops.push(set_request(
            self.id,
            &record,
            held_request.held.stat.version,
        )?);
        batch.unlock(&held_request.held.guard);
        match commit(&held_request.held.guard, batch.ops).await {
            Ok(outcomes) => {
                held_request.forget();
                // Update the views at once, nodes first: a request must not look done while its nodes look free.
                match outcomes {
                    Some(outcomes) => {
                        for (place, id, node) in batch.nodes {
                            if let Some(OpOutcome::Set(stat)) = outcomes.get(place) {
                                self.ctx.nodes.wrote(id, Arc::new(node), *stat);
                            }
                        }
                        if let Some(OpOutcome::Set(stat)) = outcomes.get(place) {
                            let record = Arc::new(record.clone());
                            self.ctx.requests.wrote(self.id, record, *stat);
                        }
                    }
                    None => self.ctx.nodes.synced().await?,
                }
                Ok(CommitOutcome::Done(record))
            }
            Err(Error::Multi { source, .. }) if !source.is_connection() => {
                debug!(%source, "request or node changed meanwhile");
                Ok(CommitOutcome::Refused(Box::new(held_request)))
            }
            Err(error) => Err(error),
        }
    }

    /// Stops serving a request that was deleted or changed. Its nodes become free one by one.
    async fn abandon(&self, mut held_request: HeldRequest) -> Result<ServeOutcome> {
        self.unassign_all(&mut held_request).await?;
        held_request.held.guard.release().await?;
        debug!("stopped serving request");
        Ok(ServeOutcome::Gone)
    }

    async fn unassign_all(&self, held_request: &mut HeldRequest) -> Result<()> {
        for assigned in held_request.assigned.drain(..) {
            self.unassign(assigned).await?;
        }
        Ok(())
    }

    async fn unassign(&self, assigned: AssignedNode) -> Result<()> {
        let mut batch = WriteBatch::default();
        self.free(&assigned, &mut batch)?;
        match commit(&assigned.held.guard, batch.ops).await {
            Ok(_) => assigned.held.guard.forget(),
            Err(Error::Multi { .. }) => assigned.held.guard.release().await?,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Adds the release of a node to a batch.
    fn free(&self, assigned: &AssignedNode, batch: &mut WriteBatch) -> Result<()> {
        if let Ok(freed) = protocol::node::free(Some(&assigned.held.value), self.id) {
            batch.set(assigned.id, freed, assigned.held.stat.version)?;
        }
        batch.unlock(&assigned.held.guard);
        Ok(())
    }
}

/// Operations that are written atomically.
#[derive(Debug, Default)]
struct WriteBatch {
    ops: Vec<Op>,
    /// The written nodes, each with its index in `ops`.
    nodes: Vec<(usize, NodeId, Node)>,
}

impl WriteBatch {
    fn set(&mut self, id: NodeId, node: Node, version: i32) -> Result<()> {
        let op = set_node(id, &node, version)?;
        self.nodes.push((self.ops.len(), id, node));
        self.ops.push(op);
        Ok(())
    }

    fn unlock(&mut self, guard: &LockGuard) {
        self.ops.push(unlock(guard));
    }
}

enum CommitOutcome {
    Done(NodeRequest),
    /// Nothing was written.
    Refused(Box<HeldRequest>),
}

impl HeldRequest {
    async fn release(self) -> Result<()> {
        let nodes = self
            .assigned
            .into_iter()
            .map(|assigned| assigned.held.guard.release());
        let (request, nodes) = join(self.held.guard.release(), join_all(nodes)).await;
        nodes.into_iter().collect::<Result<()>>()?;
        request
    }

    /// Drops the guards without releasing them: their contenders were deleted in the write.
    fn forget(self) {
        for assigned in self.assigned {
            assigned.held.guard.forget();
        }
        self.held.guard.forget();
    }
}
