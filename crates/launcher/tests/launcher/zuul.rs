//! A requestor that takes the steps Zuul takes, and checks what Zuul relies on.

use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use nodeyard_model::now;
use nodeyard_model::{Label, Node, NodeId, NodeRequest, NodeState, RequestId, RequestState};
use nodeyard_store::Tree;
use nodeyard_store::registry::{Held, Lifetime, Patience, Registry, RequestShape};
use nodeyard_store::view::View;

use crate::bed::{PATIENCE, eventually};

pub(crate) struct Zuul {
    pub(crate) registry: Registry,
    pub(crate) tree: Arc<dyn Tree>,
    requests: View<RequestShape>,
}

/// Nodes that were handed over and are locked.
pub(crate) struct Nodeset {
    pub(crate) request: RequestId,
    pub(crate) nodes: Vec<(NodeId, Held<Node>)>,
}

/// So many nodes were used, and each by one request only.
#[track_caller]
pub(crate) fn all_different(mut used: Vec<NodeId>, count: usize) {
    assert_eq!(used.len(), count);
    used.sort_unstable();
    used.dedup();
    assert_eq!(used.len(), count, "a node was given to two requests");
}

impl Zuul {
    pub(crate) fn new(tree: Arc<dyn Tree>) -> Self {
        let registry = Registry::new(Arc::clone(&tree));
        Self {
            requests: registry.requests().view().unwrap(),
            registry,
            tree,
        }
    }

    pub(crate) async fn submit(&self, labels: &[&str]) -> RequestId {
        self.submit_with(200, labels, |_| {}).await
    }

    pub(crate) async fn submit_with(
        &self,
        precedence: u16,
        labels: &[&str],
        change: impl FnOnce(&mut NodeRequest),
    ) -> RequestId {
        let mut request = NodeRequest::new(RequestState::Requested, now());
        request.labels = labels.iter().map(|label| Label::new(*label)).collect();
        request.requestor = Some("sysid".into());
        request.tenant_name = Some("tenant".into());
        request.event_id = Some("event".into());
        request.created_time = Some(now());
        change(&mut request);
        let lifetime = Lifetime::UntilDeleted;
        let created = self
            .registry
            .requests()
            .create(precedence, &request, lifetime)
            .await;
        created.unwrap().0
    }

    /// Waits until the request is done, as Zuul does: by its cache.
    pub(crate) async fn done(&self, id: RequestId) -> NodeRequest {
        let mut changes = self.requests.changes();
        let wait = async {
            loop {
                if let Some(request) = self.requests.get(&id)
                    && request.value.state.is_final()
                {
                    return NodeRequest::clone(&request.value);
                }
                changes.next().await.unwrap();
            }
        };
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(done) => done,
            Err(_) => panic!("{id} is {:?}", self.requests.get(&id)),
        }
    }

    pub(crate) async fn fulfilled(&self, id: RequestId) -> NodeRequest {
        let done = self.done(id).await;
        assert_eq!(done.state, RequestState::Fulfilled, "{done:?}");
        assert_eq!(done.nodes.len(), done.labels.len());
        assert_eq!(done.requestor.as_deref(), Some("sysid"));
        done
    }

    /// Locks the nodes of a fulfilled request and deletes it.
    pub(crate) async fn accept(&self, id: RequestId) -> Nodeset {
        let request = self.fulfilled(id).await;
        let mut nodes = Vec::new();
        for (node, label) in request.nodes.iter().zip(&request.labels) {
            let read = self
                .registry
                .nodes()
                .get(*node)
                .await
                .unwrap()
                .unwrap()
                .value;
            assert_eq!(read.request(), Some(id), "{read:?}");
            assert_eq!(read.state, NodeState::Ready);
            assert!(read.labels.contains(label), "{read:?}");
            assert_eq!(
                read.tenant_name
                    .as_ref()
                    .map(nodeyard_model::TenantName::as_str),
                Some("tenant")
            );
            let patience = Patience::For(PATIENCE);
            let held = self
                .registry
                .nodes()
                .lock(*node, patience)
                .await
                .unwrap()
                .held()
                .unwrap();
            assert_eq!(held.value.request(), Some(id));
            nodes.push((*node, held));
        }
        self.registry.requests().delete(id).await.unwrap();
        Nodeset { request: id, nodes }
    }

    pub(crate) async fn set_state(&self, nodeset: &mut Nodeset, state: NodeState) {
        for (id, held) in &mut nodeset.nodes {
            held.value.set_state(state, now());
            self.registry
                .nodes()
                .store(&held.guard, *id, &held.value)
                .await
                .unwrap();
        }
    }

    pub(crate) async fn unlock(&self, nodeset: Nodeset) {
        for (_, held) in nodeset.nodes {
            held.guard.release().await.unwrap();
        }
    }

    /// Runs a job on the nodes and gives them back.
    pub(crate) async fn run_job(&self, id: RequestId) -> Vec<NodeId> {
        let mut nodeset = self.accept(id).await;
        assert_eq!(nodeset.request, id);
        let nodes = nodeset.nodes.iter().map(|(id, _)| *id).collect();
        self.set_state(&mut nodeset, NodeState::InUse).await;
        self.set_state(&mut nodeset, NodeState::Used).await;
        self.unlock(nodeset).await;
        nodes
    }

    pub(crate) async fn gone(&self, node: NodeId) {
        eventually("the node is gone", || async {
            self.registry
                .nodes()
                .get(node)
                .await
                .unwrap()
                .is_none()
                .then_some(())
        })
        .await;
    }

    /// How long it takes from the request to its fulfilment, as Zuul sees it.
    pub(crate) async fn latency(&self, labels: &[&str]) -> (Duration, RequestId) {
        let begun = Instant::now();
        let id = self.submit(labels).await;
        self.fulfilled(id).await;
        (begun.elapsed(), id)
    }
}
