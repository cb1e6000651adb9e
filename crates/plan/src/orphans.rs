//! Nodes that were left behind: by a crash, a cancelled job, an executor that died. Of requests that were,
//! [`World::take_abandoned`] tells.
//!
//! Everything named here is only suspected from afar. Take the lock without waiting, read the record again and let
//! [`protocol`](crate::protocol) decide; whoever still works on it holds the lock.

use nodeyard_model::{Allocation, NodeId, NodeState};

use crate::world::World;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Orphans {
    /// Unlocked in a state that nobody leaves a node in, or that says it is to go: delete them.
    pub nodes: Vec<(NodeId, NodeState)>,
    /// Allocated to a request that is gone: ready nodes become free, others are deleted.
    pub stranded: Vec<(NodeId, Allocation)>,
    /// Records without content: remove them.
    pub empty: Vec<NodeId>,
}

/// Nodes of our providers. Costs what there is to clean up.
pub fn find(world: &World) -> Orphans {
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
        nodes,
        stranded,
        empty: world.fleet.empty().collect(),
    }
}
