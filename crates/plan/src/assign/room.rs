//! Selects idle nodes to evict when a request needs room.

use std::collections::HashSet;
use std::time::Duration;

use nodeyard_model::{NodeId, Quantity, RequestId, Resources, Timestamp};
use serde::{Deserialize, Serialize};

use super::bookings::BookedRoom;
use crate::scheduler::RequestScheduler;
use crate::scheduler::node_index::NodeClaim;
use crate::setup::PoolKey;

/// A node that has been in deletion for longer than this is not expected to free its room.
const STUCK_AFTER: Duration = Duration::from_secs(300);

/// An idle node to evict: lock it, check that it is still ready and free, set it to `deleting`. On failure call
/// [`RequestScheduler::release_eviction`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Eviction {
    pub node: NodeId,
    /// It has been ready since then.
    pub since: Timestamp,
    pub pool: PoolKey,
    pub wanted_by: RequestId,
}

impl RequestScheduler {
    /// Evicts the oldest idle nodes whose room `need` lacks: those of the pool, then, where the quota of the provider
    /// is exceeded, those of our other pools there. Nodes in deletion are counted first.
    pub(super) fn make_room(
        &mut self,
        key: &PoolKey,
        wanted_by: RequestId,
        need: &Resources,
        booked: &BookedRoom,
        protected: &[NodeId],
        now: Timestamp,
    ) -> Vec<Eviction> {
        let protected: HashSet<NodeId> = protected.iter().copied().collect();
        let is_protected = |node: &NodeId| protected.contains(node) || booked.nodes.contains(node);
        let mut siblings: Vec<&PoolKey> = self.own.keys().collect();
        siblings.retain(|other| other.provider == key.provider);
        siblings.sort_by_key(|other| *other != key);

        let (Some(pool), Some(provider)) = (
            self.node_index.pool(key),
            self.node_index.provider(&key.provider),
        ) else {
            return Vec::new();
        };
        let mut pool_lacks = pool.account.deficit(&booked.pool, need);
        let mut provider_lacks = provider.account.deficit(&booked.provider, need);
        let has_idle = |key: &&PoolKey| {
            self.node_index
                .pool(key)
                .is_some_and(|p| !p.idle.is_empty())
        };
        if !siblings.iter().any(has_idle) {
            return Vec::new();
        }
        let since = now - STUCK_AFTER;
        for sibling in &siblings {
            let leaving = self.node_index.leaving(sibling, since);
            provider_lacks -= &leaving;
            if *sibling == key {
                pool_lacks -= &leaving;
            }
        }

        let mut evictions = Vec::new();
        for sibling in siblings {
            let idle = self.node_index.pool(sibling).map(|pool| &pool.idle);
            for (since, node) in idle.into_iter().flatten() {
                let charge = self.node_index.charge(*node);
                let helps_pool = sibling == key && relieves(&pool_lacks, charge);
                if is_protected(node) || !(helps_pool || relieves(&provider_lacks, charge)) {
                    if is_covered(&pool_lacks) && is_covered(&provider_lacks) {
                        break;
                    }
                    continue;
                }
                provider_lacks -= charge;
                if sibling == key {
                    pool_lacks -= charge;
                }
                evictions.push(Eviction {
                    node: *node,
                    since: *since,
                    pool: sibling.clone(),
                    wanted_by,
                });
            }
        }
        for eviction in &evictions {
            self.node_index
                .claim(eviction.node, NodeClaim::Eviction(now));
        }
        evictions
    }
}

fn is_covered(lack: &Resources) -> bool {
    lack.iter().all(|(_, amount)| amount <= Quantity::ZERO)
}

fn relieves(lack: &Resources, charge: &Resources) -> bool {
    lack.iter()
        .any(|(name, amount)| amount > Quantity::ZERO && charge.get(name) > Quantity::ZERO)
}
