//! Nodes to prepare before anybody asks for them.
//!
//! A missing node is asked for by a request of our own, which any pool may serve. Python asks again every second
//! and lets a full pool decline; here a request is made only if one of our pools has room for it at
//! the moment, so that a full cloud does not cause a stream of requests that fail.
//!
//! # Never more than asked for
//!
//! A node counts from the request that asks for it until somebody else has it: as the request, open or fulfilled;
//! when that is gone, as its shadow ([`World::departed`]) until the nodes have been looked at again; then as a node,
//! whoever holds its lock for the moment. So whichever of requests and nodes is seen first, nothing is asked for twice.
//!
//! Several launchers ask one at a time. Whoever is to ask takes the lock that all share and then
//!
//! 1. sees all requests that were made so far, and takes note of [`World::departed`];
//! 2. sees all nodes, and says so ([`World::nodes_seen`]);
//! 3. plans, makes the requests, and releases the lock.

use std::collections::{BTreeMap, BTreeSet};

use nodeyard_model::{Label, NodeId, NodeState, ProviderName, RequestId, RequestState, Resources};

use crate::setup::{LabelPolicy, LabelSetup, PoolKey, Readiness, Supply};
use crate::world::World;

/// The precedence of requests for ready nodes: after everybody else's.
pub const PRECEDENCE: u16 = 900;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct MinReady {
    /// Requests to make: one node each, ephemeral, `reuse` false, requestor
    /// [`MIN_READY_REQUESTOR`](crate::MIN_READY_REQUESTOR).
    pub submit: Vec<Submit>,
    /// Own requests that are fulfilled: clear the allocation of their nodes, then delete them.
    pub collect: Vec<(RequestId, Vec<NodeId>)>,
    /// Own requests that failed: delete them.
    pub discard: Vec<RequestId>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Submit {
    pub label: Label,
    /// How many requests to make now.
    pub count: usize,
    /// How many more nodes are missing, for which there is no room.
    pub without_room: usize,
}

/// `own` are the requests this launcher made for this purpose.
pub fn plan(
    world: &World,
    labels: &BTreeMap<Label, LabelPolicy>,
    own: &BTreeSet<RequestId>,
) -> MinReady {
    let mut plan = MinReady::default();
    for (id, request) in own
        .iter()
        .filter_map(|id| Some((*id, world.queue.get(*id)?)))
    {
        match request.state {
            RequestState::Fulfilled => plan.collect.push((id, request.nodes.clone())),
            RequestState::Failed => plan.discard.push(id),
            RequestState::Requested | RequestState::Pending => {}
        }
    }
    let mut room = Room::default();
    for (label, policy) in labels.iter().filter(|(_, policy)| policy.min_ready > 0) {
        let coming = world.queue.min_ready(label).count();
        let departed = world.queue.departed().values();
        let coming = coming + departed.filter(|of| *of == label).count();
        let there = world.fleet.spare_of_label(label) + stranded(world, label);
        let missing = policy.min_ready.saturating_sub(there + coming);
        if missing == 0 {
            continue;
        }
        let count = room.take(world, label, missing);
        plan.submit.push(Submit {
            label: label.clone(),
            count,
            without_room: missing - count,
        });
    }
    plan
}

/// Ready nodes of requests for ready nodes that have gone before they could be collected. They are about to be free.
fn stranded(world: &World, label: &Label) -> usize {
    let stranded = world.stranded.iter();
    let nodes = stranded.filter_map(|id| world.fleet.node(*id));
    let ready = nodes.filter(|node| node.state == NodeState::Ready && node.for_min_ready);
    ready.filter(|node| node.labels.contains(label)).count()
}

/// What this plan has spoken for already.
#[derive(Default)]
struct Room {
    pools: BTreeMap<PoolKey, Resources>,
    providers: BTreeMap<ProviderName, Resources>,
}

impl Room {
    /// How many of `missing` nodes our pools have room for.
    fn take(&mut self, world: &World, label: &Label, missing: usize) -> usize {
        let mut found = 0;
        for (key, pool) in &world.own {
            let Some(setup) = pool.setup.labels.get(label).filter(|l| can_launch(l)) else {
                continue;
            };
            let takes = |id| {
                world
                    .providers
                    .get(id)
                    .is_none_or(|p| p.max_launches != Some(0))
            };
            let drained = world.drains.pools.contains_key(key);
            if drained || world.registry.get(&pool.setup.id).is_none() || !takes(&key.provider) {
                continue;
            }
            while found < missing && self.fits(world, key, &setup.cost) {
                found += 1;
            }
        }
        found
    }

    /// Takes the room for one node, if there is any beside what is kept for requests.
    fn fits(&mut self, world: &World, key: &PoolKey, cost: &Resources) -> bool {
        let pool = self.pools.entry(key.clone()).or_default();
        let provider = self.providers.entry(key.provider.clone()).or_default();
        let kept = |of: &dyn Fn(&PoolKey) -> bool| -> Resources {
            let pools = world.own.iter().filter(|(key, _)| of(key));
            let bookings = pools.flat_map(|(_, pool)| &pool.bookings);
            bookings.map(|booking| &booking.room).sum()
        };
        let in_pool: Resources = [&*pool, &kept(&|other| other == key)].into_iter().sum();
        let kept_at_provider = kept(&|other| other.provider == key.provider);
        let in_provider: Resources = [&*provider, &kept_at_provider].into_iter().sum();
        let pool_book = world.fleet.pool(key);
        let provider_book = world.fleet.provider(&key.provider);
        let fits = pool_book.is_none_or(|book| book.account.has_room(&in_pool, cost))
            && provider_book.is_none_or(|book| book.account.has_room(&in_provider, cost));
        if fits {
            *pool += cost;
            *provider += cost;
        }
        fits
    }
}

fn can_launch(label: &LabelSetup) -> bool {
    label.supply == Supply::Launched && label.readiness == Readiness::Ready
}
