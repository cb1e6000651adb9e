//! The load: a requestor that takes the steps that Zuul takes, in one session, and checks what it is given.
//!
//! As Zuul does, it follows all requests by a watch and reads each one that changes, locks each node before it
//! deletes the request, and writes a node's record twice (in use, used) before it lets go of it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use nodeyard_model::{
    Label, Node, NodeId, NodeRequest, NodeState, RequestId, RequestState, layout, now,
};
use nodeyard_store::registry::{Held, Lifetime, Patience, Registry, RequestShape};
use nodeyard_store::view::{Change, View};
use nodeyard_store::{Tree, TreePath, WatchEvent, Watcher};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// What Zuul's executor grants to the lock of a node.
const LOCK_PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Zuul {
    pub(crate) registry: Registry,
    requests: View<RequestShape>,
    ledger: Arc<Mutex<Ledger>>,
    _followers: JoinSet<()>,
}

#[derive(Default)]
struct Ledger {
    waiting: HashMap<RequestId, oneshot::Sender<Moment>>,
    /// How many requests have been fulfilled so far.
    fulfilled: usize,
    in_use: HashSet<NodeId>,
    given_back: HashMap<NodeId, Instant>,
    /// How long nodes lived on after they had been given back.
    gone_after: Vec<Duration>,
}

/// When a request was fulfilled, and how many had been before.
struct Moment {
    at: Instant,
    before: usize,
}

pub(crate) struct Submitted {
    pub(crate) id: RequestId,
    at: Instant,
    /// How many requests had been fulfilled when it was there.
    before: usize,
    done: oneshot::Receiver<Moment>,
}

pub(crate) struct Fulfilled {
    pub(crate) id: RequestId,
    pub(crate) after: Duration,
    /// How many other requests were fulfilled meanwhile.
    pub(crate) overtaken_by: usize,
}

impl Zuul {
    pub(crate) async fn new(tree: Arc<dyn Tree>) -> anyhow::Result<Self> {
        let registry = Registry::new(Arc::clone(&tree));
        let requests = registry.requests().view()?;
        requests.synced().await?;
        let ledger = Arc::new(Mutex::new(Ledger::default()));
        let nodes = tree.watch(&TreePath::new(layout::NODES)?).await?;
        let mut followers = JoinSet::new();
        followers.spawn(follow_requests(requests.clone(), Arc::clone(&ledger)));
        followers.spawn(follow_nodes(nodes, Arc::clone(&ledger)));
        Ok(Self {
            registry,
            requests,
            ledger,
            _followers: followers,
        })
    }

    pub(crate) async fn submit(
        &self,
        precedence: u16,
        labels: &[&str],
    ) -> anyhow::Result<Submitted> {
        let created = now();
        let mut request = NodeRequest::new(RequestState::Requested, created);
        request.labels = labels.iter().map(|label| Label::new(*label)).collect();
        request.requestor = Some("benchmark".into());
        request.tenant_name = Some("tenant".into());
        request.event_id = Some("event".into());
        request.created_time = Some(created);
        let at = Instant::now();
        let requests = self.registry.requests();
        let (id, _) = requests
            .create(precedence, &request, Lifetime::UntilDeleted)
            .await?;
        let (sender, done) = oneshot::channel();
        let before = {
            let mut ledger = lock(&self.ledger);
            ledger.waiting.insert(id, sender);
            ledger.fulfilled
        };
        // It may have been fulfilled before anybody waited for it.
        if let Some(item) = self.requests.get(&id) {
            lock(&self.ledger).note(id, &item.value);
        }
        Ok(Submitted {
            id,
            at,
            before,
            done,
        })
    }

    pub(crate) async fn fulfilled(&self, submitted: Submitted) -> anyhow::Result<Fulfilled> {
        let Moment { at, before } = submitted
            .done
            .await
            .with_context(|| format!("request {} was not fulfilled", submitted.id))?;
        Ok(Fulfilled {
            id: submitted.id,
            after: at.saturating_duration_since(submitted.at),
            overtaken_by: before.saturating_sub(submitted.before),
        })
    }

    /// From the fulfilled request to the return of its nodes.
    pub(crate) async fn run_job(&self, id: RequestId, use_time: Duration) -> anyhow::Result<()> {
        let request = self.registry.requests().get(id).await?;
        let request = request.context("the request is gone")?.value;
        ensure!(
            request.nodes.len() == request.labels.len(),
            "{id} has {} nodes for {} labels",
            request.nodes.len(),
            request.labels.len()
        );
        let mut nodes = Vec::with_capacity(request.nodes.len());
        for node in &request.nodes {
            nodes.push((*node, self.take(id, *node).await?));
        }
        self.registry.requests().delete(id).await?;
        self.write(&mut nodes, NodeState::InUse).await?;
        if !use_time.is_zero() {
            tokio::time::sleep(use_time).await;
        }
        self.write(&mut nodes, NodeState::Used).await?;
        for (node, held) in nodes {
            lock(&self.ledger).in_use.remove(&node);
            held.guard.release().await?;
            lock(&self.ledger).given_back.insert(node, Instant::now());
        }
        Ok(())
    }

    async fn take(&self, request: RequestId, id: NodeId) -> anyhow::Result<Held<Node>> {
        let nodes = self.registry.nodes();
        let read = nodes.get(id).await?.context("a node is gone")?.value;
        ensure!(
            read.request() == Some(request) && read.state == NodeState::Ready,
            "node {id} is {} and not for {request}",
            read.state.as_str()
        );
        let attempt = nodes.lock(id, Patience::For(LOCK_PATIENCE)).await?;
        let held = attempt.held().context("a node cannot be locked")?;
        ensure!(
            lock(&self.ledger).in_use.insert(id),
            "node {id} was given twice"
        );
        Ok(held)
    }

    async fn write(
        &self,
        nodes: &mut [(NodeId, Held<Node>)],
        state: NodeState,
    ) -> anyhow::Result<()> {
        for (id, held) in nodes {
            held.value.set_state(state, now());
            let nodes = self.registry.nodes();
            nodes.store(&held.guard, *id, &held.value).await?;
        }
        Ok(())
    }

    /// Waits until so many nodes can be requested.
    pub(crate) async fn ready_nodes(&self, count: usize, patience: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            let nodes = self.registry.nodes().list().await?;
            let free = |node: &Node| node.state == NodeState::Ready && node.allocated_to.is_none();
            let ready = nodes.iter().filter(|(_, node)| free(&node.value)).count();
            if ready >= count {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!("{ready} of {count} nodes are ready after {patience:?}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until every node that was given back is gone, or until the patience is at its end.
    pub(crate) async fn gone_after(&self, patience: Duration) -> Vec<Duration> {
        let deadline = Instant::now() + patience;
        while !lock(&self.ledger).given_back.is_empty() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        std::mem::take(&mut lock(&self.ledger).gone_after)
    }

    pub(crate) async fn close(&self) {
        self.registry.tree().close().await;
    }
}

impl Ledger {
    /// A request that has failed is not waited for any longer.
    fn note(&mut self, id: RequestId, request: &NodeRequest) {
        if !request.state.is_final() {
            return;
        }
        if let Some(waiter) = self.waiting.remove(&id)
            && request.state == RequestState::Fulfilled
        {
            let moment = Moment {
                at: Instant::now(),
                before: self.fulfilled,
            };
            self.fulfilled += 1;
            let _ = waiter.send(moment);
        }
    }
}

async fn follow_requests(requests: View<RequestShape>, ledger: Arc<Mutex<Ledger>>) {
    let mut changes = requests.changes();
    while let Some(change) = changes.next().await {
        let items = match change {
            Change::Ids(ids) => ids.iter().filter_map(|id| requests.get(id)).collect(),
            Change::Everything => requests.items(),
        };
        let mut ledger = lock(&ledger);
        for item in items {
            ledger.note(item.id, &item.value);
        }
    }
}

async fn follow_nodes(mut events: Watcher, ledger: Arc<Mutex<Ledger>>) {
    while let Some(event) = events.next().await {
        let WatchEvent::Deleted(path) = event else {
            continue;
        };
        let Ok(id) = path.name().parse::<NodeId>() else {
            continue;
        };
        let mut ledger = lock(&ledger);
        if let Some(since) = ledger.given_back.remove(&id) {
            ledger.gone_after.push(since.elapsed());
        }
    }
}

/// Nothing panics while it holds the lock.
fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}
