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
//!
//! # Cost
//!
//! A [`plan`] costs all labels, and all pools that have room. Between two of them [`World::ready_nodes_wanted`] says
//! whether another one is worth it; that costs what has changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nodeyard_model::{Label, NodeId, NodeState, ProviderName, RequestId, RequestState, Resources};

use crate::setup::{LabelPolicy, LabelSetup, PoolKey, Readiness, Supply};
use crate::world::{OwnPool, World};

/// The precedence of requests for ready nodes: after everybody else's.
pub const PRECEDENCE: u16 = 900;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct MinReady {
    /// Requests to make: one node each, ephemeral, `reuse` false, requestor
    /// [`MIN_READY_REQUESTOR`](crate::MIN_READY_REQUESTOR).
    pub submit: Vec<Submit>,
    pub finished: FinishedRequests,
}

/// Own requests that are done.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FinishedRequests {
    /// Fulfilled: clear the allocation of their nodes, then delete them.
    pub collect: Vec<(RequestId, Vec<NodeId>)>,
    /// Failed: delete them.
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

/// What may make a node missing, or make room for one, and has changed since [`World::ready_nodes_wanted`] was last
/// called.
#[derive(Debug, Default)]
pub(crate) struct ReadyWatch {
    /// How many nodes are to be ready.
    wanted: BTreeMap<Label, usize>,
    /// How many are missing.
    missing: BTreeMap<Label, usize>,
    pub(crate) labels: BTreeSet<Label>,
    pub(crate) pools: BTreeSet<PoolKey>,
}

/// `own` are the requests this launcher made for this purpose.
pub fn plan(
    world: &World,
    labels: &BTreeMap<Label, LabelPolicy>,
    own: &BTreeSet<RequestId>,
) -> MinReady {
    let mut plan = MinReady {
        submit: Vec::new(),
        finished: finished(world, own),
    };
    let stranded = stranded(world);
    let mut room = Room::of(world, world.own.iter());
    for (label, policy) in labels.iter().filter(|(_, policy)| policy.min_ready > 0) {
        let missing = world.missing(label, policy.min_ready, &stranded);
        if missing == 0 {
            continue;
        }
        let count = room.take(label, missing);
        plan.submit.push(Submit {
            label: label.clone(),
            count,
            without_room: missing - count,
        });
    }
    plan
}

/// Returns which of our own requests are done.
pub fn finished(world: &World, own: &BTreeSet<RequestId>) -> FinishedRequests {
    let mut finished = FinishedRequests::default();
    for (id, request) in own
        .iter()
        .filter_map(|id| Some((*id, world.queue.get(*id)?)))
    {
        match request.state {
            RequestState::Fulfilled => finished.collect.push((id, request.nodes.clone())),
            RequestState::Failed => finished.discard.push(id),
            RequestState::Requested | RequestState::Pending => {}
        }
    }
    finished
}

impl World {
    /// Sets how many nodes are to be ready.
    pub fn set_ready_nodes(&mut self, labels: &BTreeMap<Label, LabelPolicy>) {
        let wanted = labels.iter().filter(|(_, policy)| policy.min_ready > 0);
        let wanted = wanted.map(|(label, policy)| (label.clone(), policy.min_ready));
        self.ready.wanted = wanted.collect();
        self.recheck_ready_nodes();
    }

    /// Whether any node is to be ready.
    pub fn keeps_nodes_ready(&self) -> bool {
        !self.ready.wanted.is_empty()
    }

    /// Has [`World::ready_nodes_wanted`] look at everything again, whether or not something has changed.
    pub fn recheck_ready_nodes(&mut self) {
        self.ready.missing.clear();
        self.ready.labels.extend(self.ready.wanted.keys().cloned());
    }

    /// Whether something has changed since the last call that makes a [`plan`] request nodes. If so, make one; or say
    /// that you did not, with [`World::recheck_ready_nodes`].
    pub fn ready_nodes_wanted(&mut self) -> bool {
        let mut labels = std::mem::take(&mut self.ready.labels);
        labels.append(&mut self.fleet.take_changed());
        labels.append(&mut self.queue.take_changed());
        let pools = std::mem::take(&mut self.ready.pools);
        let more = self.judge_missing(labels);
        if !more.is_empty() {
            let mut room = Room::of(self, self.own.iter());
            if more.iter().any(|label| room.take(label, 1) > 0) {
                return true;
            }
        }
        if self.ready.missing.is_empty() {
            return false;
        }
        let pools = pools.iter().filter_map(|key| self.own.get_key_value(key));
        let mut room = Room::of(self, pools);
        !room.open.is_empty()
            && self
                .ready
                .missing
                .keys()
                .any(|label| room.take(label, 1) > 0)
    }

    /// Counts again how many nodes of these labels are missing. Returns the labels that lack more than before.
    fn judge_missing(&mut self, labels: BTreeSet<Label>) -> Vec<Label> {
        let mut more = Vec::new();
        if labels.is_empty() || !self.keeps_nodes_ready() {
            return more;
        }
        let stranded = stranded(self);
        for label in labels {
            let Some(wanted) = self.ready.wanted.get(&label) else {
                continue;
            };
            let missing = self.missing(&label, *wanted, &stranded);
            let before = self.ready.missing.remove(&label).unwrap_or(0);
            if missing > before {
                more.push(label.clone());
            }
            if missing > 0 {
                self.ready.missing.insert(label, missing);
            }
        }
        more
    }

    fn missing(&self, label: &Label, wanted: usize, stranded: &HashMap<Label, usize>) -> usize {
        let departed = self.queue.departed().values();
        let departed = departed.filter(|of| *of == label).count();
        let coming = self.queue.min_ready(label) + departed;
        let stranded = stranded.get(label).copied().unwrap_or(0);
        let there = self.fleet.spare_of_label(label) + stranded;
        wanted.saturating_sub(there + coming)
    }
}

/// Ready nodes of requests for ready nodes that have gone before they could be collected. They are about to be free.
fn stranded(world: &World) -> HashMap<Label, usize> {
    let stranded = world.stranded.iter();
    let nodes = stranded.filter_map(|id| world.fleet.node(*id));
    let ready = nodes.filter(|node| node.state == NodeState::Ready && node.for_min_ready);
    let mut count = HashMap::new();
    for label in ready.flat_map(|node| &node.labels) {
        *count.entry(label.clone()).or_default() += 1;
    }
    count
}

/// Pools of ours that have room.
struct Room<'a> {
    world: &'a World,
    open: Vec<(&'a PoolKey, &'a OwnPool)>,
    taken: TakenRoom<'a>,
}

/// What is kept for requests, and what this plan has spoken for already.
#[derive(Default)]
struct TakenRoom<'a> {
    pools: BTreeMap<&'a PoolKey, Resources>,
    providers: BTreeMap<&'a ProviderName, Resources>,
}

impl<'a> Room<'a> {
    fn of(world: &'a World, pools: impl Iterator<Item = (&'a PoolKey, &'a OwnPool)>) -> Self {
        Self {
            world,
            open: pools
                .filter(|(key, pool)| is_open(world, key, pool))
                .collect(),
            taken: TakenRoom::default(),
        }
    }

    /// How many of `missing` nodes the pools have room for.
    fn take(&mut self, label: &Label, missing: usize) -> usize {
        let mut found = 0;
        if self.world.drains.labels.contains_key(label) {
            return found;
        }
        for &(key, pool) in &self.open {
            let Some(setup) = pool.setup.labels.get(label).filter(|l| can_launch(l)) else {
                continue;
            };
            while found < missing && self.taken.fits(self.world, key, &setup.cost) {
                found += 1;
            }
        }
        found
    }
}

impl<'a> TakenRoom<'a> {
    /// Takes the room for one node, if there is any.
    fn fits(&mut self, world: &World, key: &'a PoolKey, cost: &Resources) -> bool {
        let kept = |of: &dyn Fn(&PoolKey) -> bool| -> Resources {
            let pools = world.own.iter().filter(|(key, _)| of(key));
            let bookings = pools.flat_map(|(_, pool)| &pool.bookings);
            bookings.map(|booking| &booking.room).sum()
        };
        let pool = self.pools.entry(key);
        let pool = pool.or_insert_with(|| kept(&|other| other == key));
        let provider = self.providers.entry(&key.provider);
        let provider = provider.or_insert_with(|| kept(&|other| other.provider == key.provider));
        let pool_book = world.fleet.pool(key);
        let provider_book = world.fleet.provider(&key.provider);
        let fits = pool_book.is_none_or(|book| book.account.has_room(pool, cost))
            && provider_book.is_none_or(|book| book.account.has_room(provider, cost));
        if fits {
            *pool += cost;
            *provider += cost;
        }
        fits
    }
}

/// Whether a pool launches nodes that nobody waits for, and may have room.
fn is_open(world: &World, key: &PoolKey, pool: &OwnPool) -> bool {
    let provider = world.providers.get(&key.provider);
    !world.is_exhausted(key)
        && !pool.backoff.is_active()
        && !world.drains.pools.contains_key(key)
        && world.registry.get(&pool.setup.id).is_some()
        && provider.is_none_or(|provider| provider.max_launches != Some(0))
}

fn can_launch(label: &LabelSetup) -> bool {
    label.supply == Supply::Launched && label.readiness == Readiness::Ready
}
