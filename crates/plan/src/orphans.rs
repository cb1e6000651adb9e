//! Finds nodes that were abandoned by a crash, a cancelled job, or an executor that died. For requests see
//! [`RequestScheduler::take_abandoned`].
//!
//! The results are candidates only: take the lock without waiting, read the record again, and let
//! [`protocol`](crate::protocol) decide. An active owner holds the lock.

use std::collections::BTreeSet;

use nodeyard_model::{Allocation, NodeId, NodeState};

use crate::scheduler::RequestScheduler;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Orphans {
    /// Unlocked in a state that requires a lock, or marked for deletion: delete them.
    pub nodes: Vec<(NodeId, NodeState)>,
    /// Allocated to a deleted request: ready nodes become free, others are deleted.
    pub dangling: Vec<(NodeId, Allocation)>,
    /// Records without content: remove them.
    pub empty: Vec<NodeId>,
}

/// Returns all abandoned nodes of our providers. The cost is proportional to the result.
pub fn find(scheduler: &RequestScheduler) -> Orphans {
    let unattended = scheduler.node_index.unattended().map(|(id, _)| id);
    let dangling = scheduler.dangling.iter().copied();
    let orphan_candidates = unattended
        .chain(dangling)
        .chain(scheduler.node_index.empty());
    classify(scheduler, &orphan_candidates.collect())
}

/// Returns the same as [`find`], limited to the nodes that have changed since the last call and those of
/// [`RequestScheduler::mark_for_orphan_check`]. The cost is proportional to the changes.
pub fn take(scheduler: &mut RequestScheduler) -> Orphans {
    let orphan_candidates = scheduler.take_orphan_candidates();
    classify(scheduler, &orphan_candidates)
}

fn classify(scheduler: &RequestScheduler, orphan_candidates: &BTreeSet<NodeId>) -> Orphans {
    let mut orphans = Orphans::default();
    for id in orphan_candidates.iter().copied() {
        if scheduler.node_index.is_empty(id) {
            orphans.empty.push(id);
        }
        let Some(node) = scheduler.node_index.node(id) else {
            continue;
        };
        let is_ours = |name| scheduler.providers.contains_key(name);
        if scheduler.node_index.is_unattended(id) && node.provider.as_ref().is_none_or(is_ours) {
            orphans.nodes.push((id, node.state));
        }
        if scheduler.dangling.contains(&id)
            && !node.locked
            && node.provider.as_ref().is_some_and(is_ours)
            && let Some(to) = node.allocated_to.clone()
        {
            orphans.dangling.push((id, to));
        }
    }
    orphans
}
