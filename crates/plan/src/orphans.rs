//! Nodes that were left behind: by a crash, a cancelled job, an executor that died. Of requests that were,
//! [`World::take_abandoned`] tells.
//!
//! Everything named here is only suspected from afar. Take the lock without waiting, read the record again and let
//! [`protocol`](crate::protocol) decide; whoever still works on it holds the lock.

use std::collections::BTreeSet;

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

/// Returns all nodes of our providers that were left behind. Costs what there is to clean up.
pub fn find(world: &World) -> Orphans {
    let loose = world.fleet.loose().map(|(id, _)| id);
    let stranded = world.stranded.iter().copied();
    let suspects = loose.chain(stranded).chain(world.fleet.empty());
    judge(world, &suspects.collect())
}

/// As [`find`], for the nodes that have changed since the last call, and those of [`World::suspect`]. Costs what has
/// changed.
pub fn take(world: &mut World) -> Orphans {
    let suspects = world.take_suspects();
    judge(world, &suspects)
}

fn judge(world: &World, suspects: &BTreeSet<NodeId>) -> Orphans {
    let mut orphans = Orphans::default();
    for id in suspects.iter().copied() {
        if world.fleet.is_empty(id) {
            orphans.empty.push(id);
        }
        let Some(node) = world.fleet.node(id) else {
            continue;
        };
        let is_ours = |name| world.providers.contains_key(name);
        if world.fleet.is_loose(id) && node.provider.as_ref().is_none_or(is_ours) {
            orphans.nodes.push((id, node.state));
        }
        if world.stranded.contains(&id)
            && !node.locked
            && node.provider.as_ref().is_some_and(is_ours)
            && let Some(to) = node.allocated_to.clone()
        {
            orphans.stranded.push((id, to));
        }
    }
    orphans
}
