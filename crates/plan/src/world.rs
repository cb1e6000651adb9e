//! The picture: everything a launcher sees of the store and of its own pools, indexed for decisions.
//!
//! The launcher feeds it every change it sees ([`put_node`](World::put_node),
//! [`put_request`](World::put_request), [`put_pool`](World::put_pool), ...) and everything it is about to do;
//! [`take_stale`](World::take_stale) then names the pools for which
//! [`assign`](World::assign) may answer differently than before. An update costs what it changes, whatever
//! else exists.
//!
//! Fill it completely before acting on it: a node whose request has not been read yet looks abandoned.

pub(crate) mod fleet;
pub(crate) mod ledger;
pub(crate) mod queue;
pub(crate) mod registry;
mod wake;

use std::collections::{BTreeMap, BTreeSet};

use nodeyard_model::{
    Label, LauncherId, Limits, Node, NodeId, NodeRequest, NodeState, PoolComponent, ProviderName,
    RequestId, RequestOrder, Resources, TenantName, Timestamp,
};

use crate::assign::accrual::Booking;
use crate::assign::backoff::LaunchBackoff;
use crate::min_ready::ReadyWatch;
use crate::setup::{Drains, Policy, PoolKey, PoolSetup, ProviderSetup, Readiness, Supply, Zone};
use crate::verdict::Sum;
use fleet::Fleet;
use queue::{Ask, Queue, Route, Stage, Waiting};
use registry::{Change, Registry};

#[derive(Debug, Default)]
pub struct World {
    pub(crate) policy: Policy,
    pub(crate) fleet: Fleet,
    pub(crate) queue: Queue,
    pub(crate) registry: Registry,
    pub(crate) own: BTreeMap<PoolKey, OwnPool>,
    pub(crate) providers: BTreeMap<ProviderName, ProviderSetup>,
    pub(crate) drains: Drains,
    /// Requests for these wait for an image that is being made, whoever asks.
    pub(crate) labels_that_wait: BTreeSet<Label>,
    /// Nodes on their way to a request, or ready for it, whose request is gone.
    pub(crate) stranded: BTreeSet<NodeId>,
    /// Nodes that may have been left behind, and have changed since they were last told.
    suspects: BTreeSet<NodeId>,
    stale: BTreeSet<PoolKey>,
    pub(crate) ready: ReadyWatch,
}

/// One of our pools, and what its last pass left.
#[derive(Debug)]
pub(crate) struct OwnPool {
    pub(crate) setup: PoolSetup,
    /// Some request waits for room here.
    pub(crate) paused: bool,
    /// The request that this pool has taken without having room for it yet.
    pub(crate) held: Option<RequestId>,
    pub(crate) backoff: LaunchBackoff,
    pub(crate) bookings: Vec<Booking>,
    /// At most what any node that it launches takes; none if it launches none.
    least: Option<Resources>,
    /// It was full at its last pass, and nothing has changed since but requests that come later.
    pub(crate) full: Option<Full>,
}

/// Where the last pass of a pool without room ended.
#[derive(Debug)]
pub(crate) struct Full {
    pub(crate) order: RequestOrder,
    /// When the pass is to be repeated.
    pub(crate) until: Option<Timestamp>,
}

impl World {
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            ..Self::default()
        }
    }

    /// A node's record was created or changed.
    pub fn put_node(&mut self, id: NodeId, node: &Node) {
        let freed = self.fleet.put(id, node);
        self.judge_stranded(id);
        self.suspect(id);
        self.wake_freed(&freed);
    }

    /// Somebody stands in line for the lock of a node, or nobody does any more. A hint, as every look at
    /// locks that one does not hold. Of a node that is not known it says nothing.
    pub fn set_node_locked(&mut self, id: NodeId, locked: bool) {
        let freed = self.fleet.set_locked(id, locked);
        self.suspect(id);
        self.wake_freed(&freed);
    }

    /// A node's record is there but empty: what a late lock left of a deleted one.
    pub fn put_empty_node(&mut self, id: NodeId) {
        let freed = self.fleet.put_empty(id);
        self.stranded.remove(&id);
        self.suspect(id);
        self.wake_freed(&freed);
    }

    /// A node's record is there, and nobody can tell what it says: nothing is done about the node, nothing of it is
    /// taken for left over, and it keeps the room it took when it could be read.
    pub fn put_illegible_node(&mut self, id: NodeId) {
        self.fleet.put_illegible(id);
        self.stranded.remove(&id);
    }

    pub fn remove_node(&mut self, id: NodeId) {
        let freed = self.fleet.remove(id);
        self.stranded.remove(&id);
        self.wake_freed(&freed);
    }

    /// A request's record was created or changed. `now` counts the first time only: patience runs from there.
    pub fn put_request(&mut self, id: RequestId, record: &NodeRequest, now: Timestamp) {
        if record.state.is_final() {
            self.fleet_release(id);
        }
        let route = route(&self.registry, &self.own, &self.drains);
        self.queue.put(id, record, now, route);
        self.judge_nodes_of(id);
        self.wake_concerned(id);
    }

    pub fn remove_request(&mut self, id: RequestId) {
        self.fleet_release(id);
        self.drop_bookings(id);
        let removed = self.queue.remove(id);
        self.judge_nodes_of(id);
        // It is somebody else's turn to wait first, and to be held.
        let waited = removed.filter(|of| !matches!(of.stage, Stage::Taken(_)));
        if let Some(order) = waited.map(|of| of.order) {
            self.wake_pools(|pool| pool.full.as_ref().is_some_and(|full| full.order == order));
        }
    }

    /// Requests for ready nodes, of any launcher, that have gone. Requests and nodes are seen independently, so the
    /// nodes that such a request got may not be in the picture yet; until [`World::nodes_seen`] it counts as one.
    pub fn departed(&self) -> BTreeSet<RequestId> {
        self.queue.departed().keys().copied().collect()
    }

    /// Whether [`World::departed`] names any.
    pub fn has_departed(&self) -> bool {
        !self.queue.departed().is_empty()
    }

    /// The nodes in the picture are at least as new as the moment when these requests were seen to be gone.
    pub fn nodes_seen(&mut self, departed: &BTreeSet<RequestId>) {
        for id in departed {
            self.queue.forget_departed(*id);
        }
    }

    /// A pool of any launcher, ours included, registered or changed; `entry` is its name in the registry.
    pub fn put_pool(&mut self, entry: &str, component: &PoolComponent) {
        let change = self.registry.put(entry, component);
        self.registry_changed(change);
    }

    pub fn remove_pool(&mut self, entry: &str) {
        let change = self.registry.remove(entry);
        self.registry_changed(change);
    }

    /// Adds or replaces a provider that this launcher runs. Its quota must be known by then.
    pub fn set_provider(&mut self, name: &ProviderName, setup: ProviderSetup) {
        if self.providers.get(name) == Some(&setup) {
            return;
        }
        let account = &mut self.fleet.provider_mut(name).account;
        account.limits = setup.limits.clone();
        account.foreign = setup.foreign.clone();
        account.leaked = setup.leaked.clone();
        if self.providers.insert(name.clone(), setup).is_none() {
            self.suspect_nodes_of(name);
        }
        for key in self.own.keys().filter(|key| key.provider == *name) {
            self.queue.unvet(key, |_| true);
        }
        self.wake_provider(name);
    }

    /// The provider's quota was looked up again, and what uses it without a record.
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

    /// The provider is no longer ours; its pools go with it.
    pub fn remove_provider(&mut self, name: &ProviderName) {
        self.providers.remove(name);
        let account = &mut self.fleet.provider_mut(name).account;
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
        self.fleet.set_pool(&setup);
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
        self.registry_changed(Change::Candidates);
    }

    fn remove_own_pool(&mut self, key: &PoolKey) {
        self.own.remove(key);
        self.stale.remove(key);
        self.fleet.forget_pool(key);
        self.registry_changed(Change::Candidates);
    }

    /// The zones of a pool were looked up again.
    pub fn set_zones(&mut self, key: &PoolKey, zones: Vec<Zone>) {
        if let Some(pool) = self.own.get_mut(key) {
            pool.setup.zones = zones;
        }
    }

    /// An image became available, or ceased to be, or is on its way.
    pub fn set_readiness(&mut self, key: &PoolKey, label: &Label, readiness: Readiness) {
        let labels = self.own.get_mut(key).map(|pool| &mut pool.setup.labels);
        let Some(setup) = labels.and_then(|labels| labels.get_mut(label)) else {
            return;
        };
        if setup.readiness != readiness {
            setup.readiness = readiness;
            self.queue.unvet(key, |ask| ask.labels.contains(label));
            // Others have left requests to this pool, or have not.
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
            self.queue.unvet(key, |_| true);
        }
        self.wake_all();
    }

    /// Replaces the limits of all tenants.
    pub fn set_tenant_limits(&mut self, limits: impl IntoIterator<Item = (TenantName, Limits)>) {
        let tenants = self.fleet.tenants_mut();
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
            self.registry_changed(Change::Candidates);
        }
    }

    /// Requests that a pool of ours has taken without room and is not to keep: it is gone, or a drain keeps it from
    /// serving them. Put them back. No pool looks at them until [`World::release`] says that this is done.
    pub fn let_go(&mut self) -> Vec<(PoolKey, RequestId)> {
        let unkept = |(_, key, request): &(RequestId, &PoolKey, &Waiting)| {
            !self.own.contains_key(key) || self.drains.on(key, &request.ask.labels).is_some()
        };
        let unkept = self.queue.held().filter(unkept);
        let unkept: Vec<_> = unkept.map(|(id, key, _)| (key.clone(), id)).collect();
        for (key, id) in &unkept {
            self.set_stage(*id, Stage::Taken(key.clone()));
        }
        unkept
    }

    /// Takes back what `pool` decided on a request and the records do not show: the lock was taken by somebody
    /// else, a launch failed, the pool stops. What another pool of ours decided meanwhile stays.
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

    /// The cloud has refused a launch for an accepted request for lack of quota, although there seemed to be room. Its
    /// pool launches nothing for a while, and is paused, so that others with the same labels do not wait for it.
    pub fn refuse(&mut self, id: RequestId, now: Timestamp) {
        if let Some(pool) = self.launching_pool(id) {
            pool.backoff.refuse(now);
            let key = pool.setup.key.clone();
            self.wake_pool(&key);
        }
    }

    /// The cloud has accepted a launch for a request.
    pub fn accept_launch(&mut self, id: RequestId) {
        if let Some(pool) = self.launching_pool(id)
            && pool.backoff.accept(id)
        {
            let key = pool.setup.key.clone();
            self.wake_pool(&key);
        }
    }

    /// Our pool that launches for a request.
    pub(crate) fn launching_pool(&mut self, id: RequestId) -> Option<&mut OwnPool> {
        match &self.queue.get(id)?.stage {
            Stage::Taken(key) => self.own.get_mut(key),
            Stage::Open | Stage::Held(_) | Stage::Declined(_) => None,
        }
    }

    /// The node chosen to make room could not be deleted.
    pub fn release_eviction(&mut self, id: NodeId) {
        self.fleet.drop_claim(id);
        if let Some(provider) = self.fleet.node(id).and_then(|node| node.provider.clone()) {
            self.wake_provider(&provider);
        }
    }

    /// Whether a recorded node still fits when several launchers write at once.
    ///
    /// Each launcher records its node first, and looks here when it sees its own record: everything recorded
    /// earlier is in the picture by then. Of two that together exceed a limit the later one gets a sum
    /// here, removes its record and waits again, so the limit holds at every moment.
    pub fn excess(&self, node: NodeId) -> Option<Sum> {
        self.fleet.excess_at(node)
    }

    /// Whether a tenant exceeds its limits with a ready node that was allocated to it, when several launchers allocate
    /// at once. As for [`World::excess`], the record is written first, and whoever gets a sum here takes it back.
    pub fn tenant_excess(&self, node: NodeId) -> Option<Sum> {
        self.fleet.tenant_excess_at(node)
    }

    /// The nodes that are allocated to a request.
    pub fn nodes_of(&self, request: RequestId) -> impl Iterator<Item = NodeId> {
        self.fleet.allocated_to(request)
    }

    /// A node is to be told once more by [`orphans::take`](crate::orphans::take) if it has been left behind.
    pub fn suspect(&mut self, id: NodeId) {
        if self.fleet.is_loose(id) || self.fleet.is_empty(id) || self.stranded.contains(&id) {
            self.suspects.insert(id);
        }
    }

    fn suspect_nodes_of(&mut self, provider: &ProviderName) {
        let stranded = self.stranded.iter();
        let stranded = stranded.filter_map(|id| Some((*id, self.fleet.node(*id)?)));
        let nodes = self.fleet.loose().chain(stranded);
        let nodes = nodes.filter(|(_, node)| node.provider.as_ref() == Some(provider));
        self.suspects.extend(nodes.map(|(id, _)| id));
    }

    pub(crate) fn take_suspects(&mut self) -> BTreeSet<NodeId> {
        std::mem::take(&mut self.suspects)
    }

    /// Our pools for which a pass may decide something new, since the last call.
    pub fn take_stale(&mut self) -> BTreeSet<PoolKey> {
        std::mem::take(&mut self.stale)
    }

    /// Pending requests that this launcher does not serve: some other does, or has left it behind. Each is told once; and
    /// once more when its record has been put again, or our own hands have come off it.
    pub fn take_abandoned(&mut self) -> BTreeSet<RequestId> {
        self.queue.take_abandoned()
    }

    /// The ids of all registered pools: who has to decline before a request fails.
    pub fn registered(&self) -> impl Iterator<Item = &LauncherId> {
        self.registry.iter().map(|(id, _)| id)
    }

    /// Whether what a node takes is counted.
    pub fn counts_node(&self, id: NodeId) -> bool {
        self.fleet.node(id).is_some()
    }

    /// Every node in the picture, empty and illegible records included.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> {
        let illegible = self.fleet.illegible();
        let unknown = illegible.filter(|id| self.fleet.node(*id).is_none());
        self.fleet.ids().chain(self.fleet.empty()).chain(unknown)
    }

    /// The pool of ours that has taken a request, with or without room for it.
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
        self.fleet.len()
    }

    pub fn request_count(&self) -> usize {
        self.queue.len()
    }

    /// How many different things are asked for; what a pass has to look at.
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
        if let Some(key) = self.fleet.break_promise(id) {
            self.wake_provider(&key.provider);
            let tenant = self.queue.get(id).and_then(|r| r.ask.tenant.as_ref());
            if tenant.is_some_and(|tenant| self.is_limited(tenant)) {
                self.wake_all();
            }
        }
    }

    fn judge_nodes_of(&mut self, request: RequestId) {
        let nodes: Vec<NodeId> = self.fleet.allocated_to(request).collect();
        for node in nodes {
            self.judge_stranded(node);
        }
    }

    fn judge_stranded(&mut self, id: NodeId) {
        let node = self.fleet.node(id);
        if let Some(node) = node.filter(|node| node.for_min_ready) {
            self.ready.labels.extend(node.labels.iter().cloned());
        }
        let stranded = node.is_some_and(|node| {
            matches!(node.state, NodeState::Ready | NodeState::Init)
                && node.allocated_to.as_ref().is_some_and(|to| {
                    let request = to.request().and_then(|id| self.queue.get(id));
                    request.is_none()
                })
        });
        if stranded {
            if self.stranded.insert(id) {
                self.suspects.insert(id);
            }
        } else {
            self.stranded.remove(&id);
        }
    }

    fn registry_changed(&mut self, change: Change) {
        if change == Change::Candidates {
            self.queue
                .reroute(route(&self.registry, &self.own, &self.drains));
        }
        if change != Change::Nothing {
            self.wake_all();
        }
    }
}

/// A pool of ours looks at an ask if it can serve it, or if nobody can and it has to say so; at one with a drained label
/// nobody does.
fn route<'a>(
    registry: &'a Registry,
    own: &'a BTreeMap<PoolKey, OwnPool>,
    drains: &'a Drains,
) -> impl Fn(&Ask) -> Route + 'a {
    |ask| {
        let candidates = registry.candidates(&ask.labels, &ask.declined_by);
        if drains.of_labels(&ask.labels).is_some() {
            return Route {
                candidates,
                concerned: Vec::new(),
            };
        }
        let concerns = |pool: &OwnPool| match &ask.held_by {
            Some(holder) => *holder == pool.setup.key,
            None => {
                let id = &pool.setup.id;
                if candidates.is_empty() {
                    return registry.get(id).is_some() && !ask.declined_by.contains(id);
                }
                // They are in the order of their ids.
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

/// The smaller amount of each resource.
fn smaller(one: &Resources, other: &Resources) -> Resources {
    let amounts = one.iter();
    amounts
        .map(|(name, amount)| (name.clone(), amount.min(other.get(name))))
        .collect()
}
