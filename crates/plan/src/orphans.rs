//! What was left behind: by a crash, a cancelled job, an executor that died.
//!
//! Everything named here is only suspected from afar. Take the lock without waiting, read the record again and let
//! [`protocol`](crate::protocol) decide; whoever still works on it holds the lock.

use nodeyard_model::{Allocation, NodeId, NodeState, RequestId};

use crate::world::World;
use crate::world::queue::Stage;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Orphans {
    /// Pending, and not served by this launcher: if nobody holds the lock, reset the nodes and put the request back.
    pub requests: Vec<RequestId>,
    /// Unlocked in a state that nobody leaves a node in, or that says it is to go: delete them.
    pub nodes: Vec<(NodeId, NodeState)>,
    /// Allocated to a request that is gone: ready nodes become free, others are deleted.
    pub stranded: Vec<(NodeId, Allocation)>,
    /// Records without content: remove them.
    pub empty: Vec<NodeId>,
}

/// Requests of anybody, nodes of our providers. Costs what there is to clean up.
pub fn find(world: &World) -> Orphans {
    let requests = world
        .queue
        .pending()
        .filter(|(_, request)| request.stage == Stage::Open)
        .map(|(id, _)| id)
        .collect();
    let nodes = world
        .fleet
        .loose()
        .filter(|(_, node)| {
            let provider = node.provider.as_ref();
            provider.is_none_or(|name| world.providers.contains_key(name))
        })
        .map(|(id, node)| (id, node.state))
        .collect();
    let stranded = world
        .stranded
        .iter()
        .filter_map(|id| Some((*id, world.fleet.node(*id)?)))
        .filter(|(_, node)| {
            let provider = node.provider.as_ref();
            !node.locked && provider.is_some_and(|name| world.providers.contains_key(name))
        })
        .filter_map(|(id, node)| Some((id, node.allocated_to.clone()?)))
        .collect();
    Orphans {
        requests,
        nodes,
        stranded,
        empty: world.fleet.empty().collect(),
    }
}
