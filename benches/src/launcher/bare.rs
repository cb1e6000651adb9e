//! The yardstick: hands out static nodes by the writes of the contract and nothing else.
//!
//! It takes each step that Nodepool's contract demands, one after the other, and thinks no further than "there are
//! enough free nodes". It recovers nothing, limits nothing and knows one label.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use nodeyard_model::{Label, LauncherId, Node, NodeId, NodeState, RequestId, RequestState, now};
use nodeyard_store::Tree;
use nodeyard_store::registry::{NodeShape, Patience, Registry, RequestShape};
use nodeyard_store::view::{Change, View};
use tokio::task::JoinSet;

/// Ends when it is dropped.
pub(crate) struct Bare {
    _tasks: JoinSet<()>,
}

struct Shared {
    registry: Registry,
    nodes: View<NodeShape>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: VecDeque<NodeId>,
    seen: BTreeSet<RequestId>,
    queue: VecDeque<(RequestId, usize)>,
    recycling: BTreeSet<NodeId>,
}

impl Bare {
    pub(crate) async fn start(tree: Arc<dyn Tree>, nodes: usize) -> anyhow::Result<Self> {
        let registry = Registry::new(tree);
        let requests = registry.requests().view()?;
        let shared = Arc::new(Shared {
            nodes: registry.nodes().view()?,
            registry,
            state: Mutex::default(),
        });
        requests.synced().await?;
        shared.nodes.synced().await?;
        for _ in 0..nodes {
            shared.register().await?;
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(follow_requests(Arc::clone(&shared), requests));
        tasks.spawn(follow_nodes(shared));
        Ok(Self { _tasks: tasks })
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn register(&self) -> anyhow::Result<()> {
        let mut node = Node::new(NodeState::Ready, now());
        node.labels = vec![Label::new("small")];
        node.provider = Some("lab".parse()?);
        node.pool = Some("main".into());
        node.launcher = Some(LauncherId::new("static driver"));
        let (id, _) = self.registry.nodes().create(&node).await?;
        self.state().free.push_back(id);
        Ok(())
    }

    fn dispatch(self: &Arc<Self>) {
        let mut state = self.state();
        while let Some((id, count)) = state.queue.front().copied()
            && state.free.len() >= count
        {
            state.queue.pop_front();
            let nodes: Vec<NodeId> = state.free.drain(..count).collect();
            let shared = Arc::clone(self);
            tokio::spawn(async move { shared.serve(id, nodes).await });
        }
    }

    async fn serve(&self, id: RequestId, nodes: Vec<NodeId>) -> anyhow::Result<()> {
        let requests = self.registry.requests();
        let attempt = requests.lock(id, Patience::None).await?;
        let mut request = attempt.held().context("the request is gone")?;
        request.value.set_state(RequestState::Pending, now());
        requests.store(&request.guard, id, &request.value).await?;
        let mut held = Vec::new();
        for node in &nodes {
            let attempt = self.registry.nodes().lock(*node, Patience::None).await?;
            let mut locked = attempt.held().context("the node is gone")?;
            locked.value.allocated_to = Some(id.into());
            let nodes = self.registry.nodes();
            nodes.store(&locked.guard, *node, &locked.value).await?;
            held.push(locked.guard);
        }
        for guard in held {
            guard.release().await?;
        }
        request.value.nodes = nodes;
        request.value.set_state(RequestState::Fulfilled, now());
        requests.store(&request.guard, id, &request.value).await?;
        request.guard.release().await?;
        Ok(())
    }

    async fn recycle(self: Arc<Self>, id: NodeId) -> anyhow::Result<()> {
        let attempt = self.registry.nodes().lock(id, Patience::None).await?;
        let held = attempt.held().context("the node is gone")?;
        self.registry.nodes().delete(id, held, now()).await?;
        self.register().await?;
        self.state().recycling.remove(&id);
        self.dispatch();
        Ok(())
    }
}

async fn follow_requests(shared: Arc<Shared>, requests: View<RequestShape>) {
    let mut changes = requests.changes();
    while let Some(change) = changes.next().await {
        let Change::Ids(ids) = change else { continue };
        for id in ids {
            if let Some(item) = requests.get(&id)
                && item.value.state == RequestState::Requested
                && shared.state().seen.insert(id)
            {
                let count = item.value.labels.len();
                shared.state().queue.push_back((id, count));
            }
        }
        shared.dispatch();
    }
}

async fn follow_nodes(shared: Arc<Shared>) {
    let mut changes = shared.nodes.changes();
    while let Some(change) = changes.next().await {
        let Change::Ids(ids) = change else { continue };
        for id in ids {
            if let Some(item) = shared.nodes.get(&id)
                && item.value.state == NodeState::Used
                && !item.locked
                && shared.state().recycling.insert(id)
            {
                tokio::spawn(Arc::clone(&shared).recycle(id));
            }
        }
    }
}
