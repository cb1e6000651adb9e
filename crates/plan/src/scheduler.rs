//! The state that decisions are made on: what a launcher sees of the store and of its own pools, indexed.
//!
//! The launcher puts in every change it sees ([`put_node`](RequestScheduler::put_node),
//! [`put_request`](RequestScheduler::put_request), [`put_pool`](RequestScheduler::put_pool), ...) and every decision
//! it executes; [`take_stale`](RequestScheduler::take_stale) then returns the pools for which
//! [`assign`](RequestScheduler::assign) may decide differently than before. The cost of an update is proportional to
//! the change.
//!
//! Load it completely before acting on it: a node whose request has not been read yet looks abandoned.

pub(crate) mod node_index;
pub(crate) mod queue;
pub(crate) mod quota;
pub(crate) mod registry;
mod wake;

use std::collections::{BTreeMap, BTreeSet};

use nodeyard_model::{
    Label, LauncherId, Limits, Node, NodeId, NodeRequest, NodeState, PoolComponent, ProviderName,
    RequestId, RequestOrder, Resources, TenantName, Timestamp,
};

use crate::assign::backoff::LaunchBackoff;
use crate::assign::bookings::Booking;
use crate::min_ready::ReadyWatch;
use crate::setup::{
    Drains, LabelReadiness, Policy, PoolKey, PoolSetup, ProviderSetup, Supply, ZoneName,
};
use crate::verdict::QuotaShortage;
use node_index::NodeIndex;
use queue::{QueuedRequest, RequestQueue, RequestSpec, Route, Stage};
use registry::{PoolRegistry, RegistryChange};

#[derive(Debug, Default)]
pub struct RequestScheduler {
    pub(crate) policy: Policy,
    pub(crate) node_index: NodeIndex,
    pub(crate) queue: RequestQueue,
    pub(crate) registry: PoolRegistry,
    pub(crate) own: BTreeMap<PoolKey, OwnPool>,
    pub(crate) providers: BTreeMap<ProviderName, ProviderSetup>,
    pub(crate) drains: Drains,
    /// Requests with one of these labels wait for an image that is being made, even without asking for it.
    pub(crate) labels_that_wait: BTreeSet<Label>,
    /// Initial or ready nodes that are allocated to a deleted request.
    pub(crate) dangling: BTreeSet<NodeId>,
    /// Nodes to check with [`orphans::take`](crate::orphans::take).
    orphan_candidates: BTreeSet<NodeId>,
    stale: BTreeSet<PoolKey>,
    pub(crate) ready: ReadyWatch,
}

/// One of our pools, and the result of its last pass.
#[derive(Debug)]
pub(crate) struct OwnPool {
    pub(crate) setup: PoolSetup,
    /// Some request waits for room here.
    pub(crate) paused: bool,
    /// The request that this pool has reserved.
    pub(crate) held: Option<RequestId>,
    pub(crate) backoff: LaunchBackoff,
    pub(crate) bookings: Vec<Booking>,
    /// A lower bound of the cost of its launched nodes. None if it launches none.
    least: Option<Resources>,
    /// Set if it was full at its last pass and only later requests have changed since.
    pub(crate) full: Option<Full>,
}

/// Where the last pass of a pool without room ended.
#[derive(Debug)]
pub(crate) struct Full {
    pub(crate) order: RequestOrder,
    /// When the pass is to be repeated.
    pub(crate) until: Option<Timestamp>,
}

impl RequestScheduler {
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            ..Self::default()
        }
    }

    /// Adds or updates a node.
    pub fn put_node(&mut self, id: NodeId, node: &Node) {
        let freed = self.node_index.put(id, node);
        self.update_dangling(id);
        self.mark_for_orphan_check(id);
        self.wake_freed(&freed);
    }

    /// Sets whether the lock of a node has contenders. Only a hint, which every inspection of foreign locks yields.
    /// Ignored for unknown nodes.
    pub fn set_node_locked(&mut self, id: NodeId, locked: bool) {
        let freed = self.node_index.set_locked(id, locked);
        self.mark_for_orphan_check(id);
        self.wake_freed(&freed);
    }

    /// Adds a node with an empty record, which a late lock left of a deleted one.
    pub fn put_empty_node(&mut self, id: NodeId) {
        let freed = self.node_index.put_empty(id);
        self.dangling.remove(&id);
        self.mark_for_orphan_check(id);
        self.wake_freed(&freed);
    }

    /// Adds a node with an invalid record. It is never cleaned up, and keeps the room of its last valid record.
    pub fn put_unreadable_node(&mut self, id: NodeId) {
        self.node_index.put_unreadable(id);
        self.dangling.remove(&id);
    }

    pub fn remove_node(&mut self, id: NodeId) {
        let freed = self.node_index.remove(id);
        self.dangling.remove(&id);
        self.wake_freed(&freed);
    }

    /// Adds or updates a request. Patience runs from `now` of the first call.
    pub fn put_request(&mut self, id: RequestId, record: &NodeRequest, now: Timestamp) {
        if record.state.is_final() {
            self.fleet_release(id);
        }
        let route = route(&self.registry, &self.own, &self.drains);
        self.queue.put(id, record, now, route);
        self.update_nodes_of(id);
        self.wake_concerned(id);
    }

    pub fn remove_request(&mut self, id: RequestId) {
        self.fleet_release(id);
        self.drop_bookings(id);
        let removed = self.queue.remove(id);
        self.update_nodes_of(id);
        // Another request is now the first to wait, and may be reserved.
        let waited = removed.filter(|of| !matches!(of.stage, Stage::Taken(_)));
        if let Some(order) = waited.map(|of| of.order) {
            self.wake_pools(|pool| pool.full.as_ref().is_some_and(|full| full.order == order));
        }
    }

    /// Returns the min-ready requests, of any launcher, that were deleted. Requests and nodes are seen independently,
    /// so the nodes of such a request may not be known yet; until [`RequestScheduler::nodes_seen`] it counts as one
    /// node.
    pub fn removed_min_ready(&self) -> BTreeSet<RequestId> {
        self.queue.removed_min_ready().keys().copied().collect()
    }

    /// Returns whether [`RequestScheduler::removed_min_ready`] is not empty.
    pub fn has_removed_min_ready(&self) -> bool {
        !self.queue.removed_min_ready().is_empty()
    }

    /// Forgets these deleted min-ready requests. The known nodes must be at least as new as their deletion.
    pub fn nodes_seen(&mut self, removed_min_ready: &BTreeSet<RequestId>) {
        for id in removed_min_ready {
            self.queue.forget_removed_min_ready(*id);
        }
    }

    /// Adds or updates a registered pool of any launcher. `entry` is its name in the registry.
    pub fn put_pool(&mut self, entry: &str, component: &PoolComponent) {
        let change = self.registry.put(entry, component);
        self.registry_changed(change);
    }

    pub fn remove_pool(&mut self, entry: &str) {
        let change = self.registry.remove(entry);
        self.registry_changed(change);
    }

    /// Adds or replaces a provider of this launcher. Its quota must be known.
    pub fn set_provider(&mut self, name: &ProviderName, setup: ProviderSetup) {
        if self.providers.get(name) == Some(&setup) {
            return;
        }
        let account = &mut self.node_index.provider_mut(name).account;
        account.limits = setup.limits.clone();
        account.foreign = setup.foreign.clone();
        account.leaked = setup.leaked.clone();
        if self.providers.insert(name.clone(), setup).is_none() {
            self.mark_nodes_for_orphan_check(name);
        }
        for key in self.own.keys().filter(|key| key.provider == *name) {
            self.queue.mark_unchecked(key, |_| true);
        }
        self.wake_provider(name);
    }

    /// Updates the quota of a provider, and what is used without a record.
    pub fn set_provider_quota(
        &mut self,
        name: &ProviderName,
        limits: Limits,
        foreign: Resources,
        leaked: Resources,
    ) {
        if let Some(setup) = self.providers.get(name) {
            let setup = ProviderSetup {
                limits,
                foreign,
                leaked,
                ..setup.clone()
            };
            self.set_provider(name, setup);
        }
    }

    pub fn provider(&self, name: &ProviderName) -> Option<&ProviderSetup> {
        self.providers.get(name)
    }

    /// Removes a provider of this launcher with its pools.
    pub fn remove_provider(&mut self, name: &ProviderName) {
        self.providers.remove(name);
        let account = &mut self.node_index.provider_mut(name).account;
        account.limits = Limits::unlimited();
        account.foreign = Resources::default();
        account.leaked = Resources::default();
        let keys = self.own.keys().filter(|key| key.provider == *name);
        for key in keys.cloned().collect::<Vec<_>>() {
            self.remove_own_pool(&key);
        }
    }

    /// Adds or replaces one of our pools.
    pub fn set_own_pool(&mut self, setup: PoolSetup) {
        self.node_index.set_pool(&setup);
        let key = setup.key.clone();
        let launched = setup.labels.values();
        let launched = launched.filter(|label| label.supply == Supply::Launched);
        let costs = launched.map(|label| label.cost.clone());
        let least = costs.reduce(|one, other| smaller(&one, &other));
        let pool = OwnPool {
            setup,
            paused: false,
            held: None,
            backoff: LaunchBackoff::default(),
            bookings: Vec::new(),
            least,
            full: None,
        };
        self.own.insert(key, pool);
        self.registry_changed(RegistryChange::Candidates);
    }

    fn remove_own_pool(&mut self, key: &PoolKey) {
        self.own.remove(key);
        self.stale.remove(key);
        self.node_index.forget_pool(key);
        self.registry_changed(RegistryChange::Candidates);
    }

    /// Updates the zones of a pool.
    pub fn set_zones(&mut self, key: &PoolKey, zones: Vec<ZoneName>) {
        if let Some(pool) = self.own.get_mut(key) {
            pool.setup.zones = zones;
        }
    }

    /// Updates whether a label can be launched.
    pub fn set_readiness(&mut self, key: &PoolKey, label: &Label, readiness: LabelReadiness) {
        let labels = self.own.get_mut(key).map(|pool| &mut pool.setup.labels);
        let Some(setup) = labels.and_then(|labels| labels.get_mut(label)) else {
            return;
        };
        if setup.readiness != readiness {
            setup.readiness = readiness;
            self.queue
                .mark_unchecked(key, |spec| spec.labels.contains(label));
            // Other pools may have yielded to this one.
            self.wake_all();
        }
    }

    /// Replaces the labels for which all requests wait for an image that is being made.
    pub fn set_labels_that_wait(&mut self, labels: BTreeSet<Label>) {
        if self.labels_that_wait == labels {
            return;
        }
        self.labels_that_wait = labels;
        for key in self.own.keys() {
            self.queue.mark_unchecked(key, |_| true);
        }
        self.wake_all();
    }

    /// Replaces the limits of all tenants.
    pub fn set_tenant_limits(&mut self, limits: impl IntoIterator<Item = (TenantName, Limits)>) {
        let tenants = self.node_index.tenants_mut();
        for account in tenants.values_mut() {
            account.limits = Limits::unlimited();
        }
        for (tenant, limits) in limits {
            tenants.entry(tenant).or_default().limits = limits;
        }
        self.wake_all();
    }

    /// Replaces the drains in force.
    pub fn set_drains(&mut self, drains: Drains) {
        if self.drains != drains {
            self.drains = drains;
            self.registry_changed(RegistryChange::Candidates);
        }
    }

    /// Revokes the reservations of pools that were removed or drained, and returns their requests. Requeue them. No
    /// pool considers them until [`RequestScheduler::release`] is called.
    pub fn revoke_reservations(&mut self) -> Vec<(PoolKey, RequestId)> {
        let unkept = |(_, key, request): &(RequestId, &PoolKey, &QueuedRequest)| {
            !self.own.contains_key(key) || self.drains.on(key, &request.spec.labels).is_some()
        };
        let unkept = self.queue.held().filter(unkept);
        let unkept: Vec<_> = unkept.map(|(id, key, _)| (key.clone(), id)).collect();
        for (key, id) in &unkept {
            self.set_stage(*id, Stage::Taken(key.clone()));
        }
        unkept
    }

    /// Reverts what `pool` decided on a request and the record does not show: the request could not be locked, a
    /// launch failed, or the pool stops. Decisions of other pools of ours are kept.
    pub fn release(&mut self, pool: &PoolKey, id: RequestId) {
        let Some(request) = self.queue.get(id) else {
            return;
        };
        let stage = match &request.stage {
            Stage::Open => return,
            Stage::Held(by) | Stage::Taken(by) if by != pool => return,
            Stage::Held(_) | Stage::Taken(_) => {
                self.fleet_release(id);
                Stage::Open
            }
            Stage::Declined(by) => {
                let own = self.own.get(pool).map(|pool| &pool.setup.id);
                let others = by.iter().filter(|id| Some(*id) != own);
                Stage::declined(others.cloned().collect())
            }
        };
        self.set_stage(id, stage);
        self.wake_concerned(id);
    }

    /// Records that the cloud refused a launch for lack of quota although there seemed to be room. The pool launches
    /// nothing for a while and is paused, so that pools with the same labels do not wait for it.
    pub fn record_quota_refusal(&mut self, id: RequestId, now: Timestamp) {
        if let Some(pool) = self.launching_pool(id) {
            pool.backoff.record_quota_refusal(now);
            let key = pool.setup.key.clone();
            self.wake_pool(&key);
        }
    }

    /// Records that the cloud has accepted a launch for a request.
    pub fn record_accepted_launch(&mut self, id: RequestId) {
        if let Some(pool) = self.launching_pool(id)
            && pool.backoff.accept(id)
        {
            let key = pool.setup.key.clone();
            self.wake_pool(&key);
        }
    }

    /// Returns our pool that launches for a request.
    pub(crate) fn launching_pool(&mut self, id: RequestId) -> Option<&mut OwnPool> {
        match &self.queue.get(id)?.stage {
            Stage::Taken(key) => self.own.get_mut(key),
            Stage::Open | Stage::Held(_) | Stage::Declined(_) => None,
        }
    }

    /// Releases a node whose eviction failed.
    pub fn release_eviction(&mut self, id: NodeId) {
        self.node_index.drop_claim(id);
        if let Some(provider) = self
            .node_index
            .node(id)
            .and_then(|node| node.provider.clone())
        {
            self.wake_provider(&provider);
        }
    }

    /// Returns the limit that a recorded node exceeds when several launchers write at once.
    ///
    /// Each launcher records its node first, and calls this when it sees its own record: everything recorded earlier
    /// is known by then. Of two that together exceed a limit the later one gets a shortage here, removes its record
    /// and waits again, so the limit holds at every moment.
    pub fn excess(&self, node: NodeId) -> Option<QuotaShortage> {
        self.node_index.excess_at(node)
    }

    /// Returns the limit that a tenant exceeds with a ready node that was allocated to it, when several launchers
    /// allocate at once. As for [`RequestScheduler::excess`], the record is written first, and reverted if there is a
    /// shortage.
    pub fn tenant_excess(&self, node: NodeId) -> Option<QuotaShortage> {
        self.node_index.tenant_excess_at(node)
    }

    /// Returns the nodes that are allocated to a request.
    pub fn nodes_of(&self, request: RequestId) -> impl Iterator<Item = NodeId> {
        self.node_index.allocated_to(request)
    }

    /// Makes the next [`orphans::take`](crate::orphans::take) check a node again.
    pub fn mark_for_orphan_check(&mut self, id: NodeId) {
        if self.node_index.is_unattended(id)
            || self.node_index.is_empty(id)
            || self.dangling.contains(&id)
        {
            self.orphan_candidates.insert(id);
        }
    }

    fn mark_nodes_for_orphan_check(&mut self, provider: &ProviderName) {
        let dangling = self.dangling.iter();
        let dangling = dangling.filter_map(|id| Some((*id, self.node_index.node(*id)?)));
        let nodes = self.node_index.unattended().chain(dangling);
        let nodes = nodes.filter(|(_, node)| node.provider.as_ref() == Some(provider));
        self.orphan_candidates.extend(nodes.map(|(id, _)| id));
    }

    pub(crate) fn take_orphan_candidates(&mut self) -> BTreeSet<NodeId> {
        std::mem::take(&mut self.orphan_candidates)
    }

    /// Returns our pools for which a pass may decide differently since the last call.
    pub fn take_stale(&mut self) -> BTreeSet<PoolKey> {
        std::mem::take(&mut self.stale)
    }

    /// Returns pending requests that this launcher does not serve: another one does, or has abandoned it. Each is
    /// returned once, and again after its record was put again or this launcher released it.
    pub fn take_abandoned(&mut self) -> BTreeSet<RequestId> {
        self.queue.take_abandoned()
    }

    /// Returns the ids of all registered pools, which have to decline before a request fails.
    pub fn registered(&self) -> impl Iterator<Item = &LauncherId> {
        self.registry.iter().map(|(id, _)| id)
    }

    /// Returns whether the use of a node is counted.
    pub fn counts_node(&self, id: NodeId) -> bool {
        self.node_index.node(id).is_some()
    }

    /// Returns every known node, empty and invalid records included.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> {
        let unreadable = self.node_index.unreadable();
        let unknown = unreadable.filter(|id| self.node_index.node(*id).is_none());
        self.node_index
            .ids()
            .chain(self.node_index.empty())
            .chain(unknown)
    }

    /// Returns the pool of ours that serves or has reserved a request.
    pub fn taken_by(&self, request: RequestId) -> Option<&PoolKey> {
        match &self.queue.get(request)?.stage {
            Stage::Taken(key) | Stage::Held(key) => Some(key),
            Stage::Open | Stage::Declined(_) => None,
        }
    }

    pub fn request_ids(&self) -> impl Iterator<Item = RequestId> {
        self.queue.ids()
    }

    pub fn node_count(&self) -> usize {
        self.node_index.len()
    }

    pub fn request_count(&self) -> usize {
        self.queue.len()
    }

    /// Returns the number of lines, which is the cost of a pass.
    pub fn line_count(&self) -> usize {
        self.queue.lines()
    }

    pub(crate) fn set_stage(&mut self, id: RequestId, stage: Stage) {
        let route = route(&self.registry, &self.own, &self.drains);
        self.queue.set_stage(id, stage, route);
    }

    pub(crate) fn forget_probe(&mut self, id: RequestId) {
        if let Some(pool) = self.launching_pool(id)
            && pool.backoff.forget(id)
        {
            let key = pool.setup.key.clone();
            self.wake_pool(&key);
        }
    }

    fn fleet_release(&mut self, id: RequestId) {
        self.forget_probe(id);
        if let Some(Stage::Held(key)) = self.queue.get(id).map(|request| &request.stage) {
            let key = key.clone();
            self.wake_pool(&key);
        }
        if let Some(key) = self.node_index.revoke_promise(id) {
            self.wake_provider(&key.provider);
            let tenant = self.queue.get(id).and_then(|r| r.spec.tenant.as_ref());
            if tenant.is_some_and(|tenant| self.is_limited(tenant)) {
                self.wake_all();
            }
        }
    }

    fn update_nodes_of(&mut self, request: RequestId) {
        let nodes: Vec<NodeId> = self.node_index.allocated_to(request).collect();
        for node in nodes {
            self.update_dangling(node);
        }
    }

    fn update_dangling(&mut self, id: NodeId) {
        let node = self.node_index.node(id);
        if let Some(node) = node.filter(|node| node.for_min_ready) {
            self.ready.labels.extend(node.labels.iter().cloned());
        }
        let dangling = node.is_some_and(|node| {
            matches!(node.state, NodeState::Ready | NodeState::Init)
                && node.allocated_to.as_ref().is_some_and(|to| {
                    let request = to.request().and_then(|id| self.queue.get(id));
                    request.is_none()
                })
        });
        if dangling {
            if self.dangling.insert(id) {
                self.orphan_candidates.insert(id);
            }
        } else {
            self.dangling.remove(&id);
        }
    }

    fn registry_changed(&mut self, change: RegistryChange) {
        if change == RegistryChange::Candidates {
            self.queue
                .reroute(route(&self.registry, &self.own, &self.drains));
        }
        if change != RegistryChange::Nothing {
            self.wake_all();
        }
    }
}

/// Routes a request spec to our pools that can serve it or, if no registered pool can, to all that have to decline it.
/// Specs with a drained label are routed to none.
fn route<'a>(
    registry: &'a PoolRegistry,
    own: &'a BTreeMap<PoolKey, OwnPool>,
    drains: &'a Drains,
) -> impl Fn(&RequestSpec) -> Route + 'a {
    |spec| {
        let candidates = registry.candidates(&spec.labels, &spec.declined_by);
        if drains.of_labels(&spec.labels).is_some() {
            return Route {
                candidates,
                concerned: Vec::new(),
            };
        }
        let concerns = |pool: &OwnPool| match &spec.held_by {
            Some(holder) => *holder == pool.setup.key,
            None => {
                let id = &pool.setup.id;
                if candidates.is_empty() {
                    return registry.get(id).is_some() && !spec.declined_by.contains(id);
                }
                // The candidates are sorted by id.
                candidates.binary_search(id).is_ok()
            }
        };
        let concerned = own.values().filter(|pool| concerns(pool));
        Route {
            concerned: concerned.map(|pool| pool.setup.key.clone()).collect(),
            candidates,
        }
    }
}

/// Returns the smaller amount of each resource.
fn smaller(one: &Resources, other: &Resources) -> Resources {
    let amounts = one.iter();
    amounts
        .map(|(name, amount)| (name.clone(), amount.min(other.get(name))))
        .collect()
}
