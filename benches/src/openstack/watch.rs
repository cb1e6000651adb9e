//! Notes when each node becomes ready, by a watch on the store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use nodeyard_model::NodeState;
use nodeyard_store::registry::{NodeShape, Registry};
use nodeyard_store::view::{Change, View};
use tokio::task::JoinSet;

/// Follows until it is dropped.
pub(crate) struct Watch {
    ready: Arc<Mutex<HashMap<String, Instant>>>,
    _follower: JoinSet<()>,
}

impl Watch {
    pub(crate) async fn start(registry: &Registry) -> anyhow::Result<Self> {
        let nodes = registry.nodes().view()?;
        nodes.synced().await?;
        let ready = Arc::new(Mutex::new(HashMap::new()));
        let mut follower = JoinSet::new();
        follower.spawn(follow(nodes, Arc::clone(&ready)));
        Ok(Self {
            ready,
            _follower: follower,
        })
    }

    /// When the record of each server's node became ready.
    pub(crate) fn ready(&self) -> HashMap<String, Instant> {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.clone()
    }
}

async fn follow(nodes: View<NodeShape>, ready: Arc<Mutex<HashMap<String, Instant>>>) {
    let mut changes = nodes.changes();
    while let Some(change) = changes.next().await {
        let now = Instant::now();
        let items = match change {
            Change::Ids(ids) => ids.iter().filter_map(|id| nodes.get(id)).collect(),
            Change::Everything => nodes.items(),
        };
        let mut ready = ready.lock().unwrap_or_else(PoisonError::into_inner);
        for item in items {
            if item.value.state == NodeState::Ready
                && let Some(server) = item.value.external_id.as_string()
            {
                ready.entry(server).or_insert(now);
            }
        }
    }
}
