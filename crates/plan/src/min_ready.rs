//! Plans ready nodes that are prepared before they are requested (`min-ready`).
//!
//! A missing node is requested by a request of our own, which any pool may serve. Python requests again every second
//! and lets a full pool decline; here a request is made only while one of our pools has room for it, so that a full
//! cloud does not cause a stream of failing requests.
//!
//! # Never more than configured
//!
//! A node counts from the request for it until another request is allocated it: as the request, open or fulfilled;
//! after the request is deleted, as its entry in [`RequestScheduler::removed_min_ready`] until the nodes have been
//! read again; then as a node, locked or not. So nothing is requested twice, in whichever order requests and nodes are
//! seen.
//!
//! Launchers request one at a time. The one whose turn it is takes a shared lock and then
//!
//! 1. sees all requests that were made so far, and copies [`RequestScheduler::removed_min_ready`];
//! 2. sees all nodes, and calls [`RequestScheduler::nodes_seen`];
//! 3. plans, makes the requests, and releases the lock.
//!
//! # Cost
//!
//! A [`plan`] costs all labels, and all pools that have room. Between two plans
//! [`RequestScheduler::ready_nodes_wanted`] returns whether another one is needed; that costs what has changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nodeyard_model::{Label, NodeId, NodeState, ProviderName, RequestId, RequestState, Resources};

use crate::scheduler::{OwnPool, RequestScheduler};
use crate::setup::{LabelPolicy, LabelReadiness, LabelSetup, PoolKey, Supply};

/// The precedence of requests for ready nodes: after all others.
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

/// Changes since [`RequestScheduler::ready_nodes_wanted`] was last called that may make a node missing or free room
/// for one.
#[derive(Debug, Default)]
pub(crate) struct ReadyWatch {
    /// How many nodes have to be ready.
    wanted: BTreeMap<Label, usize>,
    /// How many are missing.
    missing: BTreeMap<Label, usize>,
    pub(crate) labels: BTreeSet<Label>,
    pub(crate) pools: BTreeSet<PoolKey>,
}

/// Plans the requests to make. `own` are the min-ready requests of this launcher.
pub fn plan(
    scheduler: &RequestScheduler,
    labels: &BTreeMap<Label, LabelPolicy>,
    own: &BTreeSet<RequestId>,
) -> MinReady {
    let mut plan = MinReady {
        submit: Vec::new(),
        finished: finished(scheduler, own),
    };
    let dangling = dangling(scheduler);
    let mut room = Room::of(scheduler, scheduler.own.iter());
    for (label, policy) in labels.iter().filter(|(_, policy)| policy.min_ready > 0) {
        let missing = scheduler.missing(label, policy.min_ready, &dangling);
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
pub fn finished(scheduler: &RequestScheduler, own: &BTreeSet<RequestId>) -> FinishedRequests {
    let mut finished = FinishedRequests::default();
    for (id, request) in own
        .iter()
        .filter_map(|id| Some((*id, scheduler.queue.get(*id)?)))
    {
        match request.state {
            RequestState::Fulfilled => finished.collect.push((id, request.nodes.clone())),
            RequestState::Failed => finished.discard.push(id),
            RequestState::Requested | RequestState::Pending => {}
        }
    }
    finished
}

impl RequestScheduler {
    /// Sets how many nodes have to be ready.
    pub fn set_ready_nodes(&mut self, labels: &BTreeMap<Label, LabelPolicy>) {
        let wanted = labels.iter().filter(|(_, policy)| policy.min_ready > 0);
        let wanted = wanted.map(|(label, policy)| (label.clone(), policy.min_ready));
        self.ready.wanted = wanted.collect();
        self.recheck_ready_nodes();
    }

    /// Returns whether any node has to be ready.
    pub fn keeps_nodes_ready(&self) -> bool {
        !self.ready.wanted.is_empty()
    }

    /// Makes the next [`RequestScheduler::ready_nodes_wanted`] check all labels, changed or not.
    pub fn recheck_ready_nodes(&mut self) {
        self.ready.missing.clear();
        self.ready.labels.extend(self.ready.wanted.keys().cloned());
    }

    /// Returns whether a change since the last call makes a [`plan`] request nodes. If so, make a plan, or call
    /// [`RequestScheduler::recheck_ready_nodes`].
    pub fn ready_nodes_wanted(&mut self) -> bool {
        let mut labels = std::mem::take(&mut self.ready.labels);
        labels.append(&mut self.node_index.take_changed());
        labels.append(&mut self.queue.take_changed());
        let pools = std::mem::take(&mut self.ready.pools);
        let more = self.update_missing(labels);
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

    /// Recounts the missing nodes of these labels. Returns the labels that lack more than before.
    fn update_missing(&mut self, labels: BTreeSet<Label>) -> Vec<Label> {
        let mut more = Vec::new();
        if labels.is_empty() || !self.keeps_nodes_ready() {
            return more;
        }
        let dangling = dangling(self);
        for label in labels {
            let Some(wanted) = self.ready.wanted.get(&label) else {
                continue;
            };
            let missing = self.missing(&label, *wanted, &dangling);
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

    fn missing(&self, label: &Label, wanted: usize, dangling: &HashMap<Label, usize>) -> usize {
        let removed_min_ready = self.queue.removed_min_ready().values();
        let removed_min_ready = removed_min_ready.filter(|of| *of == label).count();
        let coming = self.queue.min_ready(label) + removed_min_ready;
        let dangling = dangling.get(label).copied().unwrap_or(0);
        let there = self.node_index.spare_of_label(label) + dangling;
        wanted.saturating_sub(there + coming)
    }
}

/// Counts ready nodes whose min-ready request was deleted before they were collected. They are about to become free.
fn dangling(scheduler: &RequestScheduler) -> HashMap<Label, usize> {
    let dangling = scheduler.dangling.iter();
    let nodes = dangling.filter_map(|id| scheduler.node_index.node(*id));
    let ready = nodes.filter(|node| node.state == NodeState::Ready && node.for_min_ready);
    let mut count = HashMap::new();
    for label in ready.flat_map(|node| &node.labels) {
        *count.entry(label.clone()).or_default() += 1;
    }
    count
}

/// Pools of ours that have room.
struct Room<'a> {
    scheduler: &'a RequestScheduler,
    open: Vec<(&'a PoolKey, &'a OwnPool)>,
    taken: TakenRoom<'a>,
}

/// The room that is booked for requests, and the room used by this plan so far.
#[derive(Default)]
struct TakenRoom<'a> {
    pools: BTreeMap<&'a PoolKey, Resources>,
    providers: BTreeMap<&'a ProviderName, Resources>,
}

impl<'a> Room<'a> {
    fn of(
        scheduler: &'a RequestScheduler,
        pools: impl Iterator<Item = (&'a PoolKey, &'a OwnPool)>,
    ) -> Self {
        Self {
            scheduler,
            open: pools
                .filter(|(key, pool)| is_open(scheduler, key, pool))
                .collect(),
            taken: TakenRoom::default(),
        }
    }

    /// Returns how many of `missing` nodes the pools have room for, and takes that room.
    fn take(&mut self, label: &Label, missing: usize) -> usize {
        let mut found = 0;
        if self.scheduler.drains.labels.contains_key(label) {
            return found;
        }
        for &(key, pool) in &self.open {
            let Some(setup) = pool.setup.labels.get(label).filter(|l| can_launch(l)) else {
                continue;
            };
            while found < missing && self.taken.fits(self.scheduler, key, &setup.cost) {
                found += 1;
            }
        }
        found
    }
}

impl<'a> TakenRoom<'a> {
    /// Takes the room for one node. Returns false if there is none.
    fn fits(&mut self, scheduler: &RequestScheduler, key: &'a PoolKey, cost: &Resources) -> bool {
        let kept = |of: &dyn Fn(&PoolKey) -> bool| -> Resources {
            let pools = scheduler.own.iter().filter(|(key, _)| of(key));
            let bookings = pools.flat_map(|(_, pool)| &pool.bookings);
            bookings.map(|booking| &booking.room).sum()
        };
        let pool = self.pools.entry(key);
        let pool = pool.or_insert_with(|| kept(&|other| other == key));
        let provider = self.providers.entry(&key.provider);
        let provider = provider.or_insert_with(|| kept(&|other| other.provider == key.provider));
        let pool_usage = scheduler.node_index.pool(key);
        let provider_usage = scheduler.node_index.provider(&key.provider);
        let fits = pool_usage.is_none_or(|usage| usage.account.has_room(pool, cost))
            && provider_usage.is_none_or(|usage| usage.account.has_room(provider, cost));
        if fits {
            *pool += cost;
            *provider += cost;
        }
        fits
    }
}

/// Returns whether a pool may launch min-ready nodes.
fn is_open(scheduler: &RequestScheduler, key: &PoolKey, pool: &OwnPool) -> bool {
    let provider = scheduler.providers.get(&key.provider);
    !scheduler.is_exhausted(key)
        && !pool.backoff.is_active()
        && !scheduler.drains.pools.contains_key(key)
        && scheduler.registry.get(&pool.setup.id).is_some()
        && provider.is_none_or(|provider| provider.max_launches != Some(0))
}

fn can_launch(label: &LabelSetup) -> bool {
    label.supply == Supply::Launched && label.readiness == LabelReadiness::Ready
}
