//! What one event costs the plan, with more and more nodes and waiting requests.
//!
//! `cargo run --release -p nodeyard-plan --example simulate` keeps all nodes busy: a request ends, its nodes
//! go, the pool selects the next request, its nodes are recorded and become ready, a new request arrives. Other
//! launchers work on as many requests as wait. The cost per event should stay the same from top to bottom, and that of a
//! large fleet with ready nodes and managed images, which are the last rows, should be below 20 µs.
//!
//! Periodically a launcher puts in all records again. What that costs for each node, when nothing has changed, is
//! the last column.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout
)]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use nodeyard_model::{
    Label, LauncherId, Limits, Node, NodeId, NodeRequest, NodeState, PoolComponent, ProviderName,
    RequestId, RequestState, ResourceName, Resources, Timestamp,
};
use nodeyard_plan::assign::DecisionInputs;
use nodeyard_plan::protocol::{node, request};
use nodeyard_plan::verdict::{Acceptance, NodeStep};
use nodeyard_plan::{
    LabelPolicy, LabelReadiness, LabelSetup, Policy, PoolKey, PoolSetup, ProviderSetup,
    RequestScheduler, RequestVerdict, orphans,
};

const TENANTS: usize = 4;
const ROUNDS: usize = 5_000;
/// Between two changes of images.
const IMAGE_ROUNDS: usize = 50;

/// Pools, each of a provider of its own, and the labels that all of them have.
#[derive(Clone, Copy)]
struct Shape {
    pools: usize,
    labels: usize,
    /// Of each label.
    min_ready: usize,
    images: bool,
}

const SMALL: Shape = Shape {
    pools: 5,
    labels: 20,
    min_ready: 0,
    images: false,
};

const LARGE: Shape = Shape {
    pools: 50,
    labels: 500,
    min_ready: 2,
    images: true,
};

struct Simulation {
    shape: Shape,
    scheduler: RequestScheduler,
    pools: Vec<PoolSetup>,
    labels: Vec<Label>,
    now: f64,
    requests: u64,
    nodes: u64,
    random: u64,
    events: u64,
    /// How often ready nodes were missing for which there was room.
    wanted: u64,
    /// Requests whose nodes are in use, with the nodes.
    running: VecDeque<Vec<(NodeId, Node)>>,
    waiting: HashMap<RequestId, NodeRequest>,
}

impl Simulation {
    fn new(shape: Shape, servers: usize) -> Self {
        let labels: Vec<Label> = (0..shape.labels)
            .map(|n| Label::new(format!("label-{n}")))
            .collect();
        let mut scheduler = RequestScheduler::new(Policy::default());
        let mut pools = Vec::new();
        for number in 0..shape.pools {
            let provider = ProviderName::new(format!("cloud-{number}")).unwrap();
            scheduler.set_provider(&provider, ProviderSetup::default());
            let key = PoolKey::new(provider.clone(), "main".into());
            let mut limits = Limits::unlimited();
            limits.set(ResourceName::INSTANCES, (servers / shape.pools) as i64);
            let setup = PoolSetup {
                id: LauncherId::new(format!("host-PoolWorker.{number}")),
                key: key.clone(),
                limits,
                labels: labels
                    .iter()
                    .map(|l| (l.clone(), LabelSetup::launched(Resources::new(2, 1, 4096))))
                    .collect(),
                zones: Vec::new(),
            };
            let mut component =
                PoolComponent::new("host".into(), setup.id.clone(), key.pool.clone(), provider);
            component.supported_labels = labels.clone();
            scheduler.set_own_pool(setup.clone());
            scheduler.put_pool(&format!("host{number}"), &component);
            pools.push(setup);
        }
        let policy = LabelPolicy {
            min_ready: shape.min_ready,
            max_ready_age: None,
        };
        let policies: BTreeMap<_, _> = labels.iter().map(|l| (l.clone(), policy)).collect();
        scheduler.set_ready_nodes(&policies);
        Self {
            shape,
            scheduler,
            pools,
            labels,
            now: 1.0,
            requests: 0,
            nodes: 0,
            random: 7,
            events: 0,
            wanted: 0,
            running: VecDeque::new(),
            waiting: HashMap::new(),
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_secs(self.now).unwrap()
    }

    fn random(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % below as u64) as usize
    }

    /// A request for one node, sometimes for two or three.
    fn submit(&mut self) {
        let count = [1, 1, 1, 1, 1, 1, 1, 2, 2, 3][self.random(10)];
        let label = self.random(self.shape.labels);
        let label = self.labels[label].clone();
        let mut record = NodeRequest::new(RequestState::Requested, self.now());
        record.labels = vec![label; count];
        record.tenant_name = Some(format!("tenant-{}", self.random(TENANTS)).as_str().into());
        let id = format!("200-{:010}", self.requests).parse().unwrap();
        self.requests += 1;
        self.put_request(id, record);
    }

    fn put_request(&mut self, id: RequestId, record: NodeRequest) {
        self.scheduler.put_request(id, &record, self.now());
        self.events += 1;
        self.waiting.insert(id, record);
    }

    fn put_node(&mut self, id: NodeId, record: &Node) {
        self.scheduler.put_node(id, record);
        self.events += 1;
    }

    fn set_locked(&mut self, id: NodeId, locked: bool) {
        self.scheduler.set_node_locked(id, locked);
        self.events += 1;
    }

    /// The oldest job ends: its nodes are used, deleted, gone.
    fn end_one(&mut self) {
        let Some(nodes) = self.running.pop_front() else {
            return;
        };
        for (id, mut record) in nodes {
            for state in [NodeState::Used, NodeState::Deleting] {
                record.set_state(state, self.now());
                self.put_node(id, &record);
                self.set_locked(id, state == NodeState::Deleting);
            }
            self.scheduler.remove_node(id);
            self.events += 1;
        }
    }

    /// An image of a label was uploaded once more, or the only upload to one provider is gone for a while.
    fn change_image(&mut self, round: usize) {
        if !self.shape.images || !round.is_multiple_of(IMAGE_ROUNDS) {
            return;
        }
        let change = round / IMAGE_ROUNDS;
        let label = self.labels[change / 2 % self.labels.len()].clone();
        let gone = change / 2 % self.pools.len();
        for (number, pool) in self.pools.iter().enumerate() {
            let readiness = if number == gone && change.is_multiple_of(2) {
                LabelReadiness::ImageMissing {
                    image: label.as_str().into(),
                    reason: None,
                    pending: None,
                }
            } else {
                LabelReadiness::Ready
            };
            self.scheduler.set_readiness(&pool.key, &label, readiness);
        }
        self.events += 1;
    }

    /// As a launcher does after every event.
    fn decide(&mut self) {
        let left = orphans::take(&mut self.scheduler);
        assert!(left.nodes.is_empty(), "every node is in use");
        self.scheduler.take_abandoned();
        for key in self.scheduler.take_stale() {
            let at = DecisionInputs {
                now: self.now(),
                seed: self.random,
            };
            let pass = self.scheduler.assign(&key, at);
            for decision in pass.decisions {
                if let RequestVerdict::Accept(acceptance) = decision.verdict {
                    self.serve(decision.request, &acceptance);
                }
            }
        }
        // A launcher would request them. Here all room is for requests that wait already.
        self.wanted += u64::from(self.scheduler.ready_nodes_wanted());
    }

    fn serve(&mut self, id: RequestId, acceptance: &Acceptance) {
        let now = self.now();
        let own = self.pools.iter().find(|pool| pool.key == acceptance.pool);
        let launcher = own.unwrap().id.clone();
        let record = self.waiting.remove(&id).unwrap();
        let record = request::take(Some(&record), &launcher, now).unwrap();
        self.put_request(id, record.clone());
        let mut given = Vec::new();
        let mut nodes = Vec::new();
        for step in &acceptance.steps {
            let NodeStep::Launch { label, cost } = step else {
                continue;
            };
            let node_id: NodeId = format!("{:010}", self.nodes).parse().unwrap();
            self.nodes += 1;
            let plan = node::Planned {
                request: id,
                record: &record,
                pool: &acceptance.pool,
                launcher: &launcher,
                label,
                cost,
                zone: None,
            };
            let init = node::planned(&plan, now);
            self.put_node(node_id, &init);
            let building = node::begin(Some(&init), id, now).unwrap();
            self.put_node(node_id, &building);
            let ready = node::launched(Some(&building), id, now).unwrap();
            self.put_node(node_id, &ready);
            given.push((label.clone(), node_id));
            nodes.push((node_id, ready));
        }
        let record = request::fulfil(Some(&record), given, now).unwrap();
        self.put_request(id, record);
        self.scheduler.remove_request(id);
        self.waiting.remove(&id);
        self.events += 1;
        for (node_id, node) in &mut nodes {
            self.set_locked(*node_id, true);
            node.set_state(NodeState::InUse, now);
            self.put_node(*node_id, node);
        }
        self.running.push_back(nodes);
    }

    fn fill(&mut self, servers: usize, waiting: usize) {
        // Each pool may be left with room that is too small for what comes next.
        while self.scheduler.node_count() + 3 * self.shape.pools < servers {
            for _ in 0..20 {
                self.submit();
            }
            self.decide();
        }
        while self.scheduler.request_count() < waiting {
            self.submit();
        }
        for number in 0..waiting {
            let mut pending = NodeRequest::new(RequestState::Pending, self.now());
            pending.labels = vec![self.labels[0].clone()];
            let id = format!("100-{number:010}").parse().unwrap();
            self.scheduler.put_request(id, &pending, self.now());
        }
        // The patience of all requests has expired.
        self.now += 1000.0;
        self.decide();
    }

    /// Sees every node that is in use once more; what that takes for each.
    fn check_everything(&mut self) -> Duration {
        let nodes: Vec<_> = self.running.iter().flatten().collect();
        let start = Instant::now();
        for (id, record) in &nodes {
            self.scheduler.put_node(*id, record);
            self.scheduler.set_node_locked(*id, true);
        }
        start.elapsed() / nodes.len() as u32
    }
}

fn main() {
    println!(
        "{:>6} {:>6} {:>8} {:>8} {:>6} {:>9} {:>12} {:>12} {:>10} {:>12} {:>7} {:>12}",
        "pools",
        "labels",
        "nodes",
        "waiting",
        "lines",
        "events",
        "events/s",
        "per event",
        "served",
        "per round",
        "wanted",
        "unchanged"
    );
    for (shape, servers, waiting) in [
        (SMALL, 1_000, 100),
        (SMALL, 1_000, 10_000),
        (SMALL, 10_000, 1_000),
        (SMALL, 10_000, 10_000),
        (SMALL, 100_000, 1_000),
        (SMALL, 100_000, 10_000),
        (LARGE, 10_000, 10_000),
        (LARGE, 100_000, 10_000),
    ] {
        let mut simulation = Simulation::new(shape, servers);
        simulation.fill(servers, waiting);
        let (nodes, requests) = (
            simulation.scheduler.node_count(),
            simulation.scheduler.request_count(),
        );
        let lines = simulation.scheduler.line_count();
        let (events, served) = (simulation.events, simulation.requests);
        let wanted = simulation.wanted;
        let start = Instant::now();
        for round in 0..ROUNDS {
            simulation.now += 1.0;
            simulation.change_image(round);
            simulation.end_one();
            simulation.decide();
            while simulation.scheduler.request_count() < requests {
                simulation.submit();
                simulation.decide();
            }
        }
        let spent = start.elapsed();
        let events = simulation.events - events;
        let per = |count: u64| {
            spent
                .checked_div(count.max(1) as u32)
                .unwrap_or(Duration::ZERO)
        };
        println!(
            "{:>6} {:>6} {nodes:>8} {waiting:>8} {lines:>6} {events:>9} {:>12.0} {:>12?} {:>10} {:>12?} {:>7} {:>12?}",
            shape.pools,
            shape.labels,
            events as f64 / spent.as_secs_f64(),
            per(events),
            simulation.requests - served,
            per(ROUNDS as u64),
            simulation.wanted - wanted,
            simulation.check_everything(),
        );
    }
}
