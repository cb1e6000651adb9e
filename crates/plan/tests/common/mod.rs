//! A launcher without a store: carries out what the plan decides, on records in memory.

#![allow(
    dead_code,
    reason = "every test program uses its own part of this module"
)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use nodeyard_model::{
    Label, LauncherId, Limits, Node, NodeId, NodeRequest, NodeState, PoolComponent, ProviderName,
    RequestId, RequestState, ResourceName, Resources, TenantName, Timestamp,
};
use nodeyard_plan::assign::{Decision, Moment, Retry};
use nodeyard_plan::protocol::{node, request};
use nodeyard_plan::verdict::{Acceptance, Step};
use nodeyard_plan::{
    Drains, LabelSetup, Policy, PoolKey, PoolSetup, ProviderSetup, Verdict, World,
};

pub(crate) fn time(seconds: f64) -> Timestamp {
    Timestamp::from_secs(seconds).unwrap()
}

pub(crate) fn node_id(number: u64) -> NodeId {
    format!("{number:010}").parse().unwrap()
}

pub(crate) fn request_id(precedence: u16, number: u64) -> RequestId {
    format!("{precedence:03}-{number:010}").parse().unwrap()
}

pub(crate) fn pool_key(provider: &str, pool: &str) -> PoolKey {
    PoolKey::new(ProviderName::new(provider).unwrap(), pool.into())
}

pub(crate) fn limits(list: &[(&str, i64)]) -> Limits {
    let named = list.iter().map(|(name, n)| (ResourceName::from(*name), *n));
    named.collect()
}

/// Cost and name of the labels that tests use: `small` is one instance, `large` has four cores.
pub(crate) fn cost(label: &str) -> Resources {
    match label {
        "large" => Resources::new(4, 1, 8000),
        "gpu" => {
            let mut cost = Resources::new(2, 1, 4000);
            cost.set(ResourceName::from("gpu"), 1);
            cost
        }
        "disk" => {
            let mut cost = Resources::new(1, 1, 1000);
            cost.set(ResourceName::from("volumes"), 1);
            cost.set(ResourceName::from("volume-gb"), 40);
            cost
        }
        _ => Resources::new(1, 1, 1000),
    }
}

pub(crate) fn setup(provider: &str, pool: &str, labels: &[&str], limits: Limits) -> PoolSetup {
    let key = pool_key(provider, pool);
    PoolSetup {
        id: LauncherId::new(format!("host-PoolWorker.{provider}-{pool}-0")),
        limits,
        labels: labels
            .iter()
            .map(|label| (Label::from(*label), LabelSetup::launched(cost(label))))
            .collect(),
        zones: vec!["zone-1".into(), "zone-2".into()],
        key,
    }
}

pub(crate) fn component(setup: &PoolSetup, priority: i64) -> PoolComponent {
    let mut component = PoolComponent::new(
        "host".into(),
        setup.id.clone(),
        setup.key.pool.clone(),
        setup.key.provider.clone(),
    );
    component.supported_labels = setup.labels.keys().cloned().collect();
    component.priority = priority;
    component
}

pub(crate) fn ask(labels: &[&str], now: Timestamp) -> NodeRequest {
    let mut request = NodeRequest::new(RequestState::Requested, now);
    request.labels = labels.iter().copied().map(Label::from).collect();
    request.requestor = Some("zuul".into());
    request
}

/// A request that one of our pools is at work on.
struct Job {
    acceptance: Acceptance,
    /// The pool when it accepted.
    own: LauncherId,
    /// One place for each label.
    nodes: Vec<Option<NodeId>>,
}

pub(crate) struct Launcher {
    pub(crate) world: World,
    pub(crate) now: Timestamp,
    pub(crate) seed: u64,
    pub(crate) requests: BTreeMap<RequestId, NodeRequest>,
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    pub(crate) pools: BTreeMap<PoolKey, PoolSetup>,
    /// Of each pool, the name in the registry and the priority.
    entries: BTreeMap<PoolKey, (String, i64)>,
    pub(crate) drains: Drains,
    pub(crate) provider_limits: BTreeMap<ProviderName, Limits>,
    pub(crate) tenant_limits: BTreeMap<TenantName, Limits>,
    pub(crate) max_launches: Option<usize>,
    /// Decisions that are not carried out yet.
    pub(crate) backlog: VecDeque<(PoolKey, Decision)>,
    jobs: BTreeMap<RequestId, Job>,
    next_node: u64,
    next_request: u64,
    next_entry: u64,
    /// Everything that was decided, for comparison.
    pub(crate) log: Vec<String>,
}

impl Launcher {
    pub(crate) fn new(policy: Policy) -> Self {
        Self {
            world: World::new(policy),
            now: time(1000.0),
            seed: 0,
            requests: BTreeMap::new(),
            nodes: BTreeMap::new(),
            pools: BTreeMap::new(),
            entries: BTreeMap::new(),
            drains: Drains::default(),
            provider_limits: BTreeMap::new(),
            tenant_limits: BTreeMap::new(),
            max_launches: None,
            backlog: VecDeque::new(),
            jobs: BTreeMap::new(),
            next_node: 0,
            next_request: 0,
            next_entry: 0,
            log: Vec::new(),
        }
    }

    pub(crate) fn provider(&mut self, name: &str, limits: Limits, max_launches: Option<usize>) {
        let name = ProviderName::new(name).unwrap();
        let setup = ProviderSetup {
            limits: limits.clone(),
            max_launches,
            ..ProviderSetup::default()
        };
        self.world.set_provider(&name, setup);
        self.provider_limits.insert(name, limits);
        self.max_launches = max_launches;
    }

    pub(crate) fn pool(&mut self, setup: PoolSetup, priority: i64) {
        let entry = format!("host{}", self.next_entry);
        self.next_entry += 1;
        self.world.set_own_pool(setup.clone());
        self.world.put_pool(&entry, &component(&setup, priority));
        self.entries.insert(setup.key.clone(), (entry, priority));
        self.pools.insert(setup.key.clone(), setup);
    }

    /// The provider leaves the configuration, with its pools.
    pub(crate) fn remove_provider(&mut self, name: &str) {
        let name = ProviderName::new(name).unwrap();
        self.world.remove_provider(&name);
        self.put_back();
        self.pools.retain(|key, _| key.provider != name);
        for (key, (entry, _)) in &self.entries {
            if key.provider == name {
                self.world.remove_pool(entry);
            }
        }
        self.provider_limits.remove(&name);
    }

    /// The provider is replaced by one with the same settings, whose pools are others to everybody.
    pub(crate) fn reload(&mut self, name: &str) {
        let provider = ProviderName::new(name).unwrap();
        let limits = self.provider_limits[&provider].clone();
        let mut pools: Vec<PoolSetup> = self.pools.values().cloned().collect();
        pools.retain(|pool| pool.key.provider == provider);
        self.remove_provider(name);
        self.provider(name, limits, self.max_launches);
        for mut pool in pools {
            let (_, priority) = self.entries[&pool.key];
            pool.id = LauncherId::new(format!("{}'", pool.id));
            self.pool(pool, priority);
        }
        self.world.set_drains(self.drains.clone());
    }

    pub(crate) fn drain_pool(&mut self, key: &PoolKey, drained: bool) {
        let scope = format!("pool {key}").into();
        if drained {
            self.drains.pools.insert(key.clone(), scope);
        } else {
            self.drains.pools.remove(key);
        }
        self.world.set_drains(self.drains.clone());
    }

    pub(crate) fn drain_label(&mut self, label: &str, drained: bool) {
        let scope = format!("label {label}").into();
        if drained {
            self.drains.labels.insert(label.into(), scope);
        } else {
            self.drains.labels.remove(label);
        }
        self.world.set_drains(self.drains.clone());
    }

    pub(crate) fn undrain_all(&mut self) {
        self.drains = Drains::default();
        self.world.set_drains(Drains::default());
    }

    /// Requests that a pool has taken without having nodes for them.
    pub(crate) fn held(&self) -> Vec<RequestId> {
        let pending = self.requests.iter();
        let pending = pending.filter(|(_, record)| record.state == RequestState::Pending);
        let held = pending.filter(|(id, _)| !self.jobs.contains_key(id));
        let begun: BTreeSet<_> = self.backlog.iter().map(|(_, of)| of.request).collect();
        held.map(|(id, _)| *id)
            .filter(|id| !begun.contains(id))
            .collect()
    }

    pub(crate) fn tenants(&mut self, limits: &[(&str, Limits)]) {
        let limits = limits
            .iter()
            .map(|(t, l)| (TenantName::from(*t), l.clone()));
        self.tenant_limits = limits.collect();
        self.world.set_tenant_limits(self.tenant_limits.clone());
    }

    pub(crate) fn advance(&mut self, seconds: f64) {
        self.now = time(self.now.as_secs() + seconds);
    }

    fn at(&self) -> Moment {
        Moment {
            now: self.now,
            seed: self.seed,
        }
    }

    pub(crate) fn submit(&mut self, precedence: u16, record: NodeRequest) -> RequestId {
        let id = request_id(precedence, self.next_request);
        self.next_request += 1;
        self.write_request(id, record);
        id
    }

    fn write_request(&mut self, id: RequestId, record: NodeRequest) {
        self.world.put_request(id, &record, self.now);
        self.requests.insert(id, record);
    }

    fn write_node(&mut self, id: NodeId, record: Node) {
        self.world.put_node(id, &record);
        self.nodes.insert(id, record);
    }

    fn remove_node(&mut self, id: NodeId) {
        self.world.remove_node(id);
        self.nodes.remove(&id);
    }

    /// Looks at the pools that need it, until none does. Patience may have ended anywhere.
    pub(crate) fn decide(&mut self) {
        self.put_back();
        let mut stale = self.world.take_stale();
        stale.extend(self.pools.keys().cloned());
        for _ in 0..100 {
            if stale.is_empty() {
                for id in self.held() {
                    let labels = &self.requests[&id].labels;
                    let key = self.world.taken_by(id).unwrap();
                    let drained = labels.iter().any(|of| self.drains.labels.contains_key(of));
                    assert!(!drained && !self.drains.pools.contains_key(key), "{id}");
                }
                return;
            }
            for key in std::mem::take(&mut stale) {
                let pass = self.world.assign(&key, self.at());
                for eviction in &pass.evictions {
                    self.log.push(format!("{key} evicts {}", eviction.node));
                    let seen = node::Seen::ready(eviction.since);
                    let record =
                        node::retire(self.nodes.get(&eviction.node), seen, self.now).unwrap();
                    self.write_node(eviction.node, record);
                }
                for decision in pass.decisions {
                    let takes = !matches!(decision.verdict, Verdict::Decline(_));
                    assert!(!takes || !self.drains.pools.contains_key(&key), "{key}");
                    self.log
                        .push(format!("{key} {} {}", decision.request, decision.verdict));
                    self.backlog.push_back((key.clone(), decision));
                }
            }
            stale = self.world.take_stale();
        }
        panic!("the pools do not come to rest: {}", self.log.join("; "));
    }

    pub(crate) fn carry_out_all(&mut self) {
        while self.carry_out_one() {}
    }

    pub(crate) fn carry_out_one(&mut self) -> bool {
        let Some((key, decision)) = self.backlog.pop_front() else {
            return false;
        };
        let Decision {
            request: id,
            verdict,
        } = decision;
        let record = self.requests.get(&id);
        match verdict {
            Verdict::Accept(acceptance) => {
                let own = self.pools[&acceptance.pool].id.clone();
                let held = record.is_some_and(|r| r.state == RequestState::Pending);
                if !held {
                    match request::take(record, &own, self.now) {
                        Ok(record) => self.write_request(id, record),
                        Err(_) => {
                            self.world.release(&key, id);
                            return true;
                        }
                    }
                }
                let nodes = vec![None; acceptance.steps.len()];
                let job = Job {
                    acceptance,
                    own,
                    nodes,
                };
                self.jobs.insert(id, job);
                self.start(id);
            }
            Verdict::Reserve(_) => {
                let own = self.pools[&key].id.clone();
                match request::take(record, &own, self.now) {
                    Ok(record) => self.write_request(id, record),
                    Err(_) => self.world.release(&key, id),
                }
            }
            Verdict::Decline(_) => self.decline(&key, id),
            other => panic!("nothing to do about {other}"),
        }
        true
    }

    fn decline(&mut self, key: &PoolKey, id: RequestId) {
        let own = self.pools[key].id.clone();
        let registered: Vec<LauncherId> = self.world.registered().cloned().collect();
        if let Ok(record) = request::decline(self.requests.get(&id), &own, &registered, self.now) {
            self.write_request(id, record);
        } else {
            self.world.release(key, id);
        }
    }

    /// Gets the nodes of every place that has none.
    fn start(&mut self, id: RequestId) {
        let record = self.requests[&id].clone();
        let job = &self.jobs[&id];
        let (acceptance, own) = (job.acceptance.clone(), job.own.clone());
        let places: Vec<usize> = (0..job.nodes.len())
            .filter(|place| job.nodes[*place].is_none())
            .collect();
        for (place, step) in places.into_iter().zip(&acceptance.steps) {
            let node = match step {
                Step::Reuse { node, .. } => {
                    let record = node::allocate(self.nodes.get(node), id, &record).unwrap();
                    self.write_node(*node, record);
                    *node
                }
                Step::Launch { label, cost } => {
                    let node = node_id(self.next_node);
                    self.next_node += 1;
                    let planned = node::Planned {
                        request: id,
                        record: &record,
                        pool: &acceptance.pool,
                        launcher: &own,
                        label,
                        cost,
                        zone: acceptance.zone.as_ref(),
                    };
                    let planned = node::planned(&planned, self.now);
                    self.write_node(node, planned);
                    assert_eq!(self.world.excess(node), None, "alone, nothing exceeds");
                    self.world.set_node_locked(node, true);
                    let building = node::begin(self.nodes.get(&node), id, self.now).unwrap();
                    self.write_node(node, building);
                    node
                }
            };
            self.jobs.get_mut(&id).unwrap().nodes[place] = Some(node);
        }
        self.complete(id);
    }

    pub(crate) fn building(&self) -> Vec<NodeId> {
        let building = self.nodes.iter();
        let building = building.filter(|(_, node)| node.state == NodeState::Building);
        building.map(|(id, _)| *id).collect()
    }

    pub(crate) fn finish_launch(&mut self, id: NodeId) {
        let request = self.nodes[&id].request().unwrap();
        let record = node::launched(self.nodes.get(&id), request, self.now).unwrap();
        self.write_node(id, record);
        self.world.set_node_locked(id, false);
        self.complete(request);
    }

    /// The launch fails; for lack of quota the request may get another node.
    pub(crate) fn fail_launch(&mut self, id: NodeId, quota: bool) {
        let request = self.nodes[&id].request().unwrap();
        let record = node::launch_failed(self.nodes.get(&id), request, quota, self.now).unwrap();
        self.write_node(id, record);
        self.complete(request);
    }

    fn complete(&mut self, id: RequestId) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let nodes: Vec<NodeId> = job.nodes.iter().copied().flatten().collect();
        let in_state = |state| nodes.iter().any(|node| self.nodes[node].state == state);
        if in_state(NodeState::Building) {
            return;
        }
        let (failed, aborted) = (in_state(NodeState::Failed), in_state(NodeState::Aborted));
        if failed || !self.requests.contains_key(&id) {
            let job = self.jobs.remove(&id).unwrap();
            self.give_back(id, &nodes);
            self.world.release(&job.acceptance.pool, id);
            if self.requests.contains_key(&id) {
                let own = &job.own;
                let registered: Vec<LauncherId> = self.world.registered().cloned().collect();
                let record = request::decline(self.requests.get(&id), own, &registered, self.now);
                self.write_request(id, record.unwrap());
            }
        } else if aborted {
            self.retry(id);
        } else {
            let job = self.jobs.remove(&id).unwrap();
            let record = &self.requests[&id];
            let given = record.labels.iter().cloned().zip(nodes.iter().copied());
            let record = request::fulfil(Some(record), given.collect(), self.now).unwrap();
            for node in &record.nodes {
                let key = &job.acceptance.pool;
                assert_eq!(self.nodes[node].pool.as_ref(), Some(&key.pool), "I2");
                assert_eq!(
                    self.nodes[node].provider.as_ref(),
                    Some(&key.provider),
                    "I2"
                );
            }
            self.write_request(id, record);
        }
    }

    fn retry(&mut self, id: RequestId) {
        let job = self.jobs.get_mut(&id).unwrap();
        let mut missing = Vec::new();
        for (place, label) in self.requests[&id].labels.iter().enumerate() {
            let node = job.nodes[place].unwrap();
            if self.nodes[&node].state == NodeState::Aborted {
                job.nodes[place] = None;
                missing.push(label.clone());
            }
        }
        let zone = job.acceptance.zone.clone();
        let at = Moment {
            now: self.now,
            seed: self.seed,
        };
        match self.world.retry(id, &missing, zone.as_ref(), at) {
            Retry::Accept(acceptance) => {
                self.log.push(format!("retry {id} {acceptance}"));
                self.jobs.get_mut(&id).unwrap().acceptance.steps = acceptance.steps;
                self.start(id);
            }
            Retry::GiveBack(verdict) => {
                self.log.push(format!("give back {id} {verdict}"));
                let job = self.jobs.remove(&id).unwrap();
                let nodes: Vec<NodeId> = job.nodes.into_iter().flatten().collect();
                self.give_back(id, &nodes);
            }
            Retry::PutBack => {
                self.log.push(format!("put back {id}"));
                let job = self.jobs.remove(&id).unwrap();
                let nodes: Vec<NodeId> = job.nodes.into_iter().flatten().collect();
                self.give_back(id, &nodes);
                let back = request::put_back(self.requests.get(&id), self.now).unwrap();
                self.write_request(id, back);
                self.world.release(&job.acceptance.pool, id);
            }
        }
    }

    /// Lets go of what pools hold and are not to hold any longer.
    fn put_back(&mut self) {
        for (key, id) in self.world.let_go() {
            self.log.push(format!("put back {id}"));
            self.backlog.retain(|(_, decision)| decision.request != id);
            if let Ok(back) = request::put_back(self.requests.get(&id), self.now) {
                self.write_request(id, back);
            }
            self.world.release(&key, id);
        }
    }

    fn give_back(&mut self, id: RequestId, nodes: &[NodeId]) {
        for node in nodes {
            if let Ok(record) = node::free(self.nodes.get(node), id) {
                self.write_node(*node, record);
            }
        }
    }

    pub(crate) fn cancel(&mut self, id: RequestId) {
        self.requests.remove(&id);
        self.world.remove_request(id);
        if !self.jobs.contains_key(&id) {
            let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
            self.give_back(id, &nodes);
        }
    }

    pub(crate) fn fulfilled(&self) -> Vec<RequestId> {
        let done = self.requests.iter();
        let done = done.filter(|(_, record)| record.state == RequestState::Fulfilled);
        done.map(|(id, _)| *id).collect()
    }

    pub(crate) fn waiting(&self) -> Vec<RequestId> {
        let open = self.requests.iter();
        let open = open.filter(|(_, record)| !record.state.is_final());
        open.map(|(id, _)| *id).collect()
    }

    /// The requestor uses the nodes of a fulfilled request and returns them.
    pub(crate) fn use_and_return(&mut self, id: RequestId) {
        let Some(record) = self.requests.remove(&id) else {
            return;
        };
        self.world.remove_request(id);
        for node in record.nodes {
            let mut record = self.nodes[&node].clone();
            record.set_state(NodeState::Used, self.now);
            self.write_node(node, record);
        }
    }

    /// Deletes what is to be deleted and is not locked by a job.
    pub(crate) fn clean(&mut self) {
        use NodeState::{Aborted, Deleting, Failed, Used};
        let leaving: Vec<NodeId> = self
            .nodes
            .iter()
            .filter(|(_, node)| matches!(node.state, Used | Failed | Aborted | Deleting))
            .map(|(id, _)| *id)
            .filter(|id| !self.jobs.values().any(|job| job.nodes.contains(&Some(*id))))
            .collect();
        for id in leaving {
            self.remove_node(id);
        }
    }

    /// I1, I2 and I6, from the records alone.
    pub(crate) fn check(&self) {
        let mut given: BTreeMap<NodeId, RequestId> = BTreeMap::new();
        for (id, record) in &self.requests {
            if record.state != RequestState::Fulfilled {
                continue;
            }
            assert_eq!(record.nodes.len(), record.labels.len(), "I2: {id}");
            for (node, label) in record.nodes.iter().zip(&record.labels) {
                assert_eq!(given.insert(*node, *id), None, "I1: {node} given twice");
                let node = &self.nodes[node];
                assert!(node.labels.contains(label), "I2: {id}");
                assert_eq!(node.request(), Some(*id), "I1: {id}");
            }
        }
        let sum = |of: &dyn Fn(&Node) -> bool| -> Resources {
            let nodes = self.nodes.values().filter(|node| of(node));
            nodes.filter_map(|node| node.resources.as_ref()).sum()
        };
        for (key, setup) in &self.pools {
            let used = sum(&|node| {
                node.pool.as_ref() == Some(&key.pool)
                    && node.provider.as_ref() == Some(&key.provider)
            });
            assert!(setup.limits.allows(&used), "I6: pool {key} uses {used:?}");
        }
        for (name, limits) in &self.provider_limits {
            let used = sum(&|node| node.provider.as_ref() == Some(name));
            assert!(limits.allows(&used), "I6: provider {name} uses {used:?}");
        }
        for (name, limits) in &self.tenant_limits {
            let used = sum(&|node| node.tenant_name.as_ref() == Some(name));
            assert!(limits.allows(&used), "I6: tenant {name} uses {used:?}");
        }
    }
}
