//! One request being served, from the decision to the hand-over.
//!
//! What ready nodes can serve is handed over in one write: nodes allocated and unlocked, the request fulfilled and
//! unlocked, all or nothing. Otherwise the request is taken (`pending`), its lock is kept, and nodes are
//! collected, each under its lock, until there is one for every label.
//!
//! The requestor may delete the request at any time. That is noticed at once ([`Serving::gone`]); launches under
//! way are left to clean-up, nodes that are ready become free.

mod collect;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use nodeyard_model::{Label, Node, NodeId, NodeRequest, PoolName, RequestId, RequestState};
use nodeyard_plan::Zone;
use nodeyard_plan::protocol::{self, node::Seen};
use nodeyard_plan::verdict::{Acceptance, Step};
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
use crate::report::{Report, Served};

/// Before a request is looked at again that could not be declined.
pub(crate) const INCOMPLETE_PAUSE: Duration = Duration::from_secs(1);

/// What the dispatcher wants done about a request.
#[derive(Debug)]
pub(crate) enum Order {
    /// Get these nodes, in addition to those it has.
    Accept(Acceptance),
    /// Take it and wait for room.
    Reserve,
    /// With the reason, for the log.
    Decline(String),
    /// Free the nodes it has, and wait for room.
    GiveBack,
    /// Free the nodes it has, and let it wait for any pool; with the reason, for the log.
    PutBack(&'static str),
}

#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) ctx: Context,
    pub(crate) provider: Arc<Provider>,
    pub(crate) pool: PoolName,
    pub(crate) id: RequestId,
    pub(crate) orders: mpsc::UnboundedReceiver<Order>,
    /// The requestor has deleted the request.
    pub(crate) gone: CancellationToken,
}

/// A request that we hold, with the nodes it has so far.
#[derive(Debug)]
struct Taken {
    held: Held<NodeRequest>,
    got: Vec<Got>,
}

impl Taken {
    fn new(held: Held<NodeRequest>) -> Self {
        if let Some(event) = &held.value.event_id {
            tracing::Span::current().record("event", &**event);
        }
        Self {
            held,
            got: Vec::new(),
        }
    }
}

/// A node for a request: ready, allocated to it, its lock held.
#[derive(Debug)]
struct Got {
    label: Label,
    id: NodeId,
    held: Held<Node>,
    /// It was made for this request.
    launched: bool,
}

impl Serving {
    pub(crate) async fn run(mut self, first: Order) {
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
                Served::Lost
            });
            ctx.report(Report::Served { request, outcome });
        };
        work.instrument(span).await;
    }

    async fn serve(&mut self, first: Order) -> Result<Served> {
        if let Order::Accept(acceptance) = &first
            && acceptance.launched().next().is_none()
            && !self.may_exceed_tenant(acceptance)
        {
            return self.hand_over(acceptance).await;
        }
        let held = match self
            .ctx
            .registry
            .requests()
            .lock(self.id, Patience::None)
            .await?
        {
            Attempt::Held(held) => *held,
            Attempt::Busy => return Ok(Served::NotAsPlanned),
            Attempt::Gone => return Ok(Served::Gone),
        };
        let mut taken = Taken::new(held);
        if let Order::Decline(reason) = &first {
            return self.decline(taken, reason).await;
        }
        if !self.take(&mut taken).await? {
            return taken
                .held
                .guard
                .release()
                .await
                .map(|()| Served::NotAsPlanned);
        }
        let mut order = first;
        loop {
            match order {
                Order::Accept(acceptance) => match self.collect(&mut taken, &acceptance).await? {
                    collect::Collected::All => return self.fulfil(taken).await,
                    collect::Collected::RequestGone => return self.abandon(taken).await,
                    collect::Collected::Failed(why) => {
                        tokio::select! {
                            seen = self.pools_are_seen() => seen?,
                            () = self.gone.cancelled() => return self.abandon(taken).await,
                            () = taken.held.guard.lost() => return Err(Error::SessionExpired),
                        }
                        let reason = format!("a launch failed: {why}");
                        let served = self.decline(taken, &reason).await?;
                        return Ok(match served {
                            Served::Declined => Served::LaunchFailed,
                            other => other,
                        });
                    }
                    collect::Collected::Lacking(missing) => {
                        let zone = taken
                            .got
                            .iter()
                            .find_map(|got| got.held.value.az.as_deref());
                        self.ctx.report(Report::Lacking {
                            request: self.id,
                            missing,
                            zone: zone.map(Zone::from),
                        });
                    }
                },
                Order::Reserve => debug!("request waits for room"),
                Order::GiveBack => self.give_back(&mut taken).await?,
                Order::Decline(reason) => return self.decline(taken, &reason).await,
                Order::PutBack(reason) => return self.put_back(taken, reason).await,
            }
            order = tokio::select! {
                order = self.orders.recv() => match order {
                    Some(order) => order,
                    // The dispatcher has ended; so will everything.
                    None => return Ok(Served::Lost),
                },
                () = self.gone.cancelled() => return self.abandon(taken).await,
                () = taken.held.guard.lost() => return Err(Error::SessionExpired),
            };
        }
    }

    fn pool_run(&self) -> Option<&Pool> {
        self.provider.pools.get(&self.pool)
    }

    /// Marks the request as ours; false if it is not to be had any more.
    async fn take(&self, taken: &mut Taken) -> Result<bool> {
        let Some(pool) = self.pool_run() else {
            return Ok(false);
        };
        let held = &mut taken.held;
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
    async fn hand_over(&self, acceptance: &Acceptance) -> Result<Served> {
        let requests = self.ctx.registry.requests();
        let nodes = acceptance.steps.iter().filter_map(|step| match step {
            Step::Reuse { label, node } => Some(self.lock_ready(label, *node)),
            Step::Launch { .. } => None,
        });
        let (request, nodes) = join(requests.lock(self.id, Patience::None), join_all(nodes)).await;
        let held = match request? {
            Attempt::Held(held) => *held,
            Attempt::Busy => return Ok(Served::NotAsPlanned),
            Attempt::Gone => return Ok(Served::Gone),
        };
        let mut taken = Taken::new(held);
        let mut complete = true;
        for node in nodes {
            match node? {
                Some(got) => taken.got.push(got),
                None => complete = false,
            }
        }
        let now = self.ctx.clock.now();
        let own = self.pool_run().map(|pool| &pool.id);
        let pending =
            own.and_then(|own| protocol::request::take(Some(&taken.held.value), own, now).ok());
        let mut batch = Batch::default();
        for got in &mut taken.got {
            match protocol::node::allocate(Some(&got.held.value), self.id, &taken.held.value) {
                Ok(allocated) => {
                    got.held.value = allocated.clone();
                    batch.set(got.id, allocated, got.held.stat.version)?;
                }
                Err(_) => complete = false,
            }
        }
        let Some(pending) = pending.filter(|_| complete) else {
            taken.release().await?;
            return Ok(Served::NotAsPlanned);
        };
        self.note_accepted(&pending);
        taken.held.value = pending;
        self.finish(taken, batch).await
    }

    fn note_accepted(&self, record: &NodeRequest) {
        let now = self.ctx.clock.now();
        self.ctx.history.accepted(self.id, now);
        let waited = record
            .created_time
            .map_or(Duration::ZERO, |at| now.since(at));
        self.ctx.events.accepted(&self.provider.name, waited);
    }

    /// A ready node under its lock; none if it is not to be had.
    async fn lock_ready(&self, label: &Label, id: NodeId) -> Result<Option<Got>> {
        let nodes = self.ctx.registry.nodes();
        let (attempt, alive) = join(nodes.lock(id, Patience::None), self.is_alive(id)).await;
        let Some(held) = attempt?.held() else {
            return Ok(None);
        };
        if !alive {
            self.retire(id, held).await?;
            return Ok(None);
        }
        Ok(Some(Got {
            label: label.clone(),
            id,
            held,
            launched: false,
        }))
    }

    /// Whether the machine of an existing node still answers, where that is to be checked.
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

    /// Its machine does not answer: it goes, and comes back when the machine does.
    async fn retire(&self, id: NodeId, held: Held<Node>) -> Result<()> {
        let seen = Seen::ready(held.value.state_time);
        match protocol::node::retire(Some(&held.value), seen, self.ctx.clock.now()) {
            Ok(retired) => {
                warn!(node = %id, "machine of ready node does not answer; retiring node");
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

    async fn fulfil(&self, taken: Taken) -> Result<Served> {
        self.finish(taken, Batch::default()).await
    }

    /// Hands over what was got: nodes are unlocked before the request says so.
    async fn finish(&self, taken: Taken, mut batch: Batch) -> Result<Served> {
        let now = self.ctx.clock.now();
        let launched = taken.got.iter().filter(|got| got.launched).count();
        let given = taken
            .got
            .iter()
            .map(|got| (got.label.clone(), got.id))
            .collect();
        let Ok(fulfilled) = protocol::request::fulfil(Some(&taken.held.value), given, now) else {
            return self
                .decline(taken, "the nodes do not match the labels")
                .await;
        };
        for got in &taken.got {
            batch.unlock(&got.held.guard);
        }
        match self.write(taken, fulfilled, batch).await? {
            Written::Done(record) => {
                let waited = record
                    .created_time
                    .map_or(Duration::ZERO, |at| now.since(at));
                self.ctx.events.fulfilled(&self.provider.name, waited);
                if let Some(pool) = self.pool_run() {
                    let history = &self.ctx.history;
                    history.fulfilled(self.id, &record, &pool.key, launched, now);
                }
                info!(nodes = ?record.nodes, pool = %self.pool, "request fulfilled");
                Ok(Served::Fulfilled)
            }
            Written::Refused(taken) => self.abandon(*taken).await,
        }
    }

    /// Returns when all pools of this launcher are in the registry. The last one there that declines a request fails
    /// it, and one that is about to come may be able to serve it.
    async fn pools_are_seen(&self) -> Result<()> {
        loop {
            let (answer, complete) = oneshot::channel();
            self.ctx.report(Report::IsComplete(answer));
            if complete.await.map_err(|_| Error::Closed)? {
                return Ok(());
            }
            sleep(INCOMPLETE_PAUSE).await;
        }
    }

    /// Gives back everything and declines; the request fails if every pool has done so.
    async fn decline(&self, taken: Taken, reason: &str) -> Result<Served> {
        let Some(pool) = self.pool_run() else {
            return taken.release().await.map(|()| Served::NotAsPlanned);
        };
        self.ctx.pools.synced().await?;
        let registered = self.ctx.registered();
        let now = self.ctx.clock.now();
        let declined =
            protocol::request::decline(Some(&taken.held.value), &pool.id, &registered, now);
        let Ok(declined) = declined else {
            return taken.release().await.map(|()| Served::NotAsPlanned);
        };
        let mut batch = Batch::default();
        for got in &taken.got {
            self.free(got, &mut batch)?;
        }
        match self.write(taken, declined, batch).await? {
            Written::Done(record) => {
                let history = &self.ctx.history;
                history.declined(self.id, &record, &pool.key, reason, now);
                if record.state == RequestState::Failed {
                    self.ctx.events.failed();
                }
                info!(reason, pool = %self.pool, state = %record.state, "request declined");
                Ok(Served::Declined)
            }
            Written::Refused(taken) => self.abandon(*taken).await,
        }
    }

    /// Gives back everything, the request as well: it waits for whoever can serve it.
    async fn put_back(&self, taken: Taken, reason: &str) -> Result<Served> {
        let now = self.ctx.clock.now();
        let Ok(waiting) = protocol::request::put_back(Some(&taken.held.value), now) else {
            return self.abandon(taken).await;
        };
        let mut batch = Batch::default();
        for got in &taken.got {
            self.free(got, &mut batch)?;
        }
        match self.write(taken, waiting, batch).await? {
            Written::Done(_) => {
                info!(reason, pool = %self.pool, "request put back");
                Ok(Served::PutBack)
            }
            Written::Refused(taken) => self.abandon(*taken).await,
        }
    }

    /// Writes the request and unlocks it, after the rest of `batch` and in one go with it.
    async fn write(&self, taken: Taken, record: NodeRequest, mut batch: Batch) -> Result<Written> {
        let place = batch.ops.len();
        batch
            .ops
            .push(set_request(self.id, &record, taken.held.stat.version)?);
        batch.unlock(&taken.held.guard);
        match commit(&taken.held.guard, batch.ops).await {
            Ok(outcomes) => {
                taken.forget();
                // In the views at once, the nodes first: as long as they look free, the request must not look done.
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
                Ok(Written::Done(record))
            }
            Err(Error::Multi { source, .. }) if !source.is_connection() => {
                debug!(%source, "request or node changed meanwhile");
                Ok(Written::Refused(Box::new(taken)))
            }
            Err(error) => Err(error),
        }
    }

    /// The request is gone, or is not what it was: nodes become free one by one.
    async fn abandon(&self, mut taken: Taken) -> Result<Served> {
        self.give_back(&mut taken).await?;
        taken.held.guard.release().await?;
        debug!("stopped serving request");
        Ok(Served::Gone)
    }

    async fn give_back(&self, taken: &mut Taken) -> Result<()> {
        for got in taken.got.drain(..) {
            self.let_go(got).await?;
        }
        Ok(())
    }

    async fn let_go(&self, got: Got) -> Result<()> {
        let mut batch = Batch::default();
        self.free(&got, &mut batch)?;
        match commit(&got.held.guard, batch.ops).await {
            Ok(_) => got.held.guard.forget(),
            Err(Error::Multi { .. }) => got.held.guard.release().await?,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// A node that was got becomes free again.
    fn free(&self, got: &Got, batch: &mut Batch) -> Result<()> {
        if let Ok(freed) = protocol::node::free(Some(&got.held.value), self.id) {
            batch.set(got.id, freed, got.held.stat.version)?;
        }
        batch.unlock(&got.held.guard);
        Ok(())
    }
}

/// What is written in one go.
#[derive(Debug, Default)]
struct Batch {
    ops: Vec<Op>,
    /// The nodes among it, each with its place in `ops`.
    nodes: Vec<(usize, NodeId, Node)>,
}

impl Batch {
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

enum Written {
    Done(NodeRequest),
    /// Nothing was written.
    Refused(Box<Taken>),
}

impl Taken {
    async fn release(self) -> Result<()> {
        let nodes = self.got.into_iter().map(|got| got.held.guard.release());
        let (request, nodes) = join(self.held.guard.release(), join_all(nodes)).await;
        nodes.into_iter().collect::<Result<()>>()?;
        request
    }

    /// All contenders were deleted in one write.
    fn forget(self) {
        for got in self.got {
            got.held.guard.forget();
        }
        self.held.guard.forget();
    }
}
