//! A launcher without a store: carries out what the plan decides, on records in memory.

mod make;
mod work;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use nodeyard_model::{
    LauncherId, Limits, Node, NodeId, NodeRequest, NodeState, ProviderName, RequestId,
    RequestState, Resources, TenantName, Timestamp,
};
use nodeyard_plan::assign::{Decision, DecisionInputs};
use nodeyard_plan::protocol::{node, request};
use nodeyard_plan::{
    Drains, Policy, PoolKey, PoolSetup, ProviderSetup, RequestScheduler, RequestVerdict,
};

pub(crate) use make::*;
use work::Job;

pub(crate) struct Launcher {
    pub(crate) scheduler: RequestScheduler,
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
    /// When passes are due without a change.
    again_at: BTreeMap<PoolKey, Timestamp>,
    next_node: u64,
    next_request: u64,
    next_entry: u64,
    /// Everything that was decided, for comparison.
    pub(crate) log: Vec<String>,
}

impl Launcher {
    pub(crate) fn new(policy: Policy) -> Self {
        Self {
            scheduler: RequestScheduler::new(policy),
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
            again_at: BTreeMap::new(),
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
        self.scheduler.set_provider(&name, setup);
        self.provider_limits.insert(name, limits);
        self.max_launches = max_launches;
    }

    pub(crate) fn pool(&mut self, setup: PoolSetup, priority: i64) {
        let entry = format!("host{}", self.next_entry);
        self.next_entry += 1;
        self.scheduler.set_own_pool(setup.clone());
        self.scheduler
            .put_pool(&entry, &component(&setup, priority));
        self.entries.insert(setup.key.clone(), (entry, priority));
        self.pools.insert(setup.key.clone(), setup);
    }

    /// The provider leaves the configuration, with its pools.
    pub(crate) fn remove_provider(&mut self, name: &str) {
        let name = ProviderName::new(name).unwrap();
        self.scheduler.remove_provider(&name);
        self.requeue();
        self.pools.retain(|key, _| key.provider != name);
        for (key, (entry, _)) in &self.entries {
            if key.provider == name {
                self.scheduler.remove_pool(entry);
            }
        }
        self.provider_limits.remove(&name);
    }

    /// Replaces a provider by one with the same settings, whose pools have new ids.
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
        self.scheduler.set_drains(self.drains.clone());
    }

    pub(crate) fn drain_pool(&mut self, key: &PoolKey, drained: bool) {
        let scope = format!("pool {key}").into();
        if drained {
            self.drains.pools.insert(key.clone(), scope);
        } else {
            self.drains.pools.remove(key);
        }
        self.scheduler.set_drains(self.drains.clone());
    }

    pub(crate) fn drain_label(&mut self, label: &str, drained: bool) {
        let scope = format!("label {label}").into();
        if drained {
            self.drains.labels.insert(label.into(), scope);
        } else {
            self.drains.labels.remove(label);
        }
        self.scheduler.set_drains(self.drains.clone());
    }

    pub(crate) fn undrain_all(&mut self) {
        self.drains = Drains::default();
        self.scheduler.set_drains(Drains::default());
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
        self.scheduler.set_tenant_limits(self.tenant_limits.clone());
    }

    pub(crate) fn advance(&mut self, seconds: f64) {
        self.now = time(self.now.as_secs() + seconds);
    }

    fn at(&self) -> DecisionInputs {
        DecisionInputs {
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
        self.scheduler.put_request(id, &record, self.now);
        self.requests.insert(id, record);
    }

    fn write_node(&mut self, id: NodeId, record: Node) {
        self.scheduler.put_node(id, &record);
        self.nodes.insert(id, record);
    }

    fn remove_node(&mut self, id: NodeId) {
        self.scheduler.remove_node(id);
        self.nodes.remove(&id);
    }

    /// Runs passes until no pool is stale.
    pub(crate) fn decide(&mut self) {
        self.requeue();
        let mut stale = self.scheduler.take_stale();
        let due = self.again_at.iter().filter(|(_, at)| **at <= self.now);
        stale.extend(due.map(|(key, _)| key.clone()));
        for _ in 0..100 {
            if stale.is_empty() {
                for id in self.held() {
                    let labels = &self.requests[&id].labels;
                    let key = self.scheduler.taken_by(id).unwrap();
                    let drained = labels.iter().any(|of| self.drains.labels.contains_key(of));
                    assert!(!drained && !self.drains.pools.contains_key(key), "{id}");
                }
                return;
            }
            for key in std::mem::take(&mut stale) {
                let pass = self.scheduler.assign(&key, self.at());
                if self.again_at.get(&key).is_some_and(|at| *at <= self.now) {
                    self.again_at.remove(&key);
                }
                if let Some(at) = pass.again_at {
                    let again = self.again_at.entry(key.clone()).or_insert(at);
                    *again = at.min(*again);
                }
                for eviction in &pass.evictions {
                    self.log.push(format!("{key} evicts {}", eviction.node));
                    let seen = node::ObservedState::ready(eviction.since);
                    let record =
                        node::retire(self.nodes.get(&eviction.node), seen, self.now).unwrap();
                    self.write_node(eviction.node, record);
                }
                for decision in pass.decisions {
                    let takes = !matches!(decision.verdict, RequestVerdict::Decline(_));
                    assert!(!takes || !self.drains.pools.contains_key(&key), "{key}");
                    self.log
                        .push(format!("{key} {} {}", decision.request, decision.verdict));
                    self.backlog.push_back((key.clone(), decision));
                }
            }
            stale = self.scheduler.take_stale();
        }
        panic!("the pools do not come to rest: {}", self.log.join("; "));
    }

    /// Requeues the requests whose reservations were revoked.
    fn requeue(&mut self) {
        for (key, id) in self.scheduler.revoke_reservations() {
            self.log.push(format!("put back {id}"));
            self.backlog.retain(|(_, decision)| decision.request != id);
            if let Ok(back) = request::requeue(self.requests.get(&id), self.now) {
                self.write_request(id, back);
            }
            self.scheduler.release(&key, id);
        }
    }

    fn unassign(&mut self, id: RequestId, nodes: &[NodeId]) {
        for node in nodes {
            if let Ok(record) = node::free(self.nodes.get(node), id) {
                self.write_node(*node, record);
            }
        }
    }

    pub(crate) fn cancel(&mut self, id: RequestId) {
        self.requests.remove(&id);
        self.scheduler.remove_request(id);
        if !self.jobs.contains_key(&id) {
            let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
            self.unassign(id, &nodes);
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
        self.scheduler.remove_request(id);
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
