//! A model of a store in which keepers with stale snapshots, lessees and faults take turns in any order. In the end
//! nothing may be left.

use nodeyard_model::{Label, ProviderName};
use proptest::prelude::*;

use super::*;
use crate::lease::{LeaseEnding, LeasedNode};
use crate::spec::LeaseSpec;

const RETENTION: Duration = Duration::from_secs(1000);
const DURATION: u64 = 100;

/// Renewals have been possible all the time.
const CONTINUOUS: Renewal = Renewal {
    window: Duration::from_secs(600),
    possible_for: Duration::MAX,
};

fn at(seconds: f64) -> Timestamp {
    Timestamp::from_secs(seconds).unwrap()
}

fn node_id(number: usize) -> NodeId {
    format!("{number:010}").parse().unwrap()
}

fn request_id(number: usize) -> RequestId {
    format!("200-{number:010}").parse().unwrap()
}

#[derive(Debug, Clone)]
struct WorldNode {
    id: NodeId,
    /// None when the record is gone, and its lock with it.
    node: Option<Node>,
    /// The contenders for its lock; true for the lease.
    queue: Vec<bool>,
}

#[derive(Debug, Clone)]
struct World {
    now: f64,
    /// None when the record was deleted.
    lease: Option<Lease>,
    version: usize,
    request: Option<(RequestId, NodeRequest)>,
    requests: usize,
    nodes: Vec<WorldNode>,
}

/// What a keeper has read.
type Snapshot = World;

#[derive(Debug, Clone)]
enum Event {
    /// A keeper reads everything.
    Read {
        keeper: usize,
    },
    /// A keeper executes the step for its snapshot; of several writes only the first so many.
    Execute {
        keeper: usize,
        writes: usize,
    },
    Launch,
    RequestFails,
    RequestDeleted,
    Pass {
        seconds: u32,
    },
    Renew,
    Release,
    NodeGone {
        index: usize,
    },
    ForceUnlock {
        index: usize,
    },
    OtherLocks {
        index: usize,
    },
    OtherUnlocks {
        index: usize,
    },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let keeper = 0..2_usize;
    let index = 0..6_usize;
    let event = prop_oneof![
        6 => keeper.clone().prop_map(|keeper| Event::Read { keeper }),
        9 => (keeper, 0..4_usize).prop_map(|(keeper, writes)| Event::Execute { keeper, writes }),
        4 => Just(Event::Launch),
        1 => Just(Event::RequestFails),
        1 => Just(Event::RequestDeleted),
        2 => (1..60_u32).prop_map(|seconds| Event::Pass { seconds }),
        2 => Just(Event::Renew),
        1 => Just(Event::Release),
        1 => index.clone().prop_map(|index| Event::NodeGone { index }),
        1 => index.clone().prop_map(|index| Event::ForceUnlock { index }),
        2 => index.clone().prop_map(|index| Event::OtherLocks { index }),
        2 => index.prop_map(|index| Event::OtherUnlocks { index }),
    ];
    prop::collection::vec(event, 0..80)
}

impl World {
    fn new() -> Self {
        let labels: Vec<Label> = vec!["small".into(), "large".into()];
        let lease = Lease {
            phase: LeasePhase::Waiting,
            spec: LeaseSpec::new(labels, Duration::from_secs(DURATION)),
            tenant: None,
            requestor: "test".into(),
            scope: None,
            created: at(0.0),
            expires: at(DURATION as f64),
            request: None,
            placement: LeasePlacement::Anywhere,
            nodes: Vec::new(),
            end: None,
        };
        let mut world = Self {
            now: 0.0,
            lease: Some(lease),
            version: 0,
            request: None,
            requests: 0,
            nodes: Vec::new(),
        };
        world.new_request();
        world
    }

    fn new_request(&mut self) {
        self.requests += 1;
        let request = NodeRequest::new(RequestState::Requested, at(self.now));
        self.request = Some((request_id(self.requests), request));
    }

    fn observed(&self) -> Observed<'_> {
        let nodes = self.lease.iter().flat_map(|lease| &lease.nodes);
        let nodes = nodes.map(|leased| {
            let found = self
                .nodes
                .iter()
                .find(|node| node.id == leased.node)
                .unwrap();
            ObservedNode {
                node: found.node.as_ref(),
                lock: match found.queue.iter().position(|ours| *ours) {
                    None => LeaseLock::Absent,
                    Some(0) => LeaseLock::Held,
                    Some(_) => LeaseLock::Queued,
                },
            }
        });
        Observed {
            request: self.request.as_ref().map(|(id, record)| (*id, record)),
            nodes: nodes.collect(),
            scope: ObservedScope::None,
        }
    }

    fn step(&self) -> Option<LeaseStep> {
        let lease = self.lease.as_ref()?;
        Some(next_step(
            lease,
            &self.observed(),
            RETENTION,
            CONTINUOUS,
            at(self.now),
        ))
    }

    fn node(&mut self, id: NodeId) -> &mut WorldNode {
        self.nodes.iter_mut().find(|node| node.id == id).unwrap()
    }

    fn write(&mut self, change: impl FnOnce(&mut Lease)) {
        change(self.lease.as_mut().unwrap());
        self.version += 1;
    }

    /// Returns true if nodes and request have the versions of a snapshot.
    fn has_versions_of(&self, snapshot: &Snapshot) -> bool {
        let nodes = |world: &World| -> Vec<_> {
            world.nodes.iter().map(|node| node.node.clone()).collect()
        };
        let requests = |world: &World| world.request.clone();
        nodes(self) == nodes(snapshot) && requests(self) == requests(snapshot)
    }

    /// Executes the step for a snapshot, as far as the store would allow it.
    fn execute(&mut self, snapshot: &Snapshot, writes: usize) {
        let Some(step) = snapshot.step() else { return };
        if self.version != snapshot.version || self.lease.is_none() {
            return;
        }
        let now = at(self.now);
        match step {
            LeaseStep::Wait { .. } => {}
            LeaseStep::RecordRequest(request) => self.write(|lease| lease.request = Some(request)),
            LeaseStep::RecordNodes { request, nodes } => self.write(|lease| {
                lease.phase = LeasePhase::Taking;
                lease.request = Some(request);
                let leased = |node| LeasedNode {
                    node,
                    label: "small".into(),
                    state: LeasedNodeState::Leased,
                };
                lease.nodes = nodes.into_iter().map(leased).collect();
            }),
            LeaseStep::JoinLockQueues => {
                let absent = snapshot
                    .nodes
                    .iter()
                    .filter(|node| !node.queue.contains(&true));
                let absent: Vec<NodeId> = absent.map(|node| node.id).collect();
                let nodes = self.lease.clone().unwrap().nodes;
                let wanted = nodes.iter().filter(|leased| absent.contains(&leased.node));
                for leased in wanted.take(writes) {
                    let node = self.node(leased.node);
                    if node.node.is_some() {
                        node.queue.push(true);
                    }
                }
            }
            LeaseStep::Activate if self.has_versions_of(snapshot) => {
                for leased in self.lease.clone().unwrap().nodes {
                    let node = self.node(leased.node).node.as_mut().unwrap();
                    node.set_state(NodeState::InUse, now);
                }
                self.request = None;
                self.write(|lease| {
                    lease.phase = LeasePhase::Active;
                    lease.expires = at(now.as_secs() + DURATION as f64);
                });
            }
            LeaseStep::Activate => {}
            LeaseStep::Abandon => self.write(|lease| lease.phase = LeasePhase::Dropping),
            LeaseStep::RequestAgain => {
                self.unlock_all();
                self.new_request();
                self.write(|lease| {
                    lease.phase = LeasePhase::Waiting;
                    lease.request = None;
                    lease.nodes.clear();
                });
            }
            LeaseStep::End(cause) => self.write(|lease| end(lease, cause, now)),
            LeaseStep::Release => {
                for leased in self.lease.clone().unwrap().nodes {
                    let node = self.node(leased.node);
                    let held = node.queue.first() == Some(&true);
                    if let (Some(node), true) = (&mut node.node, held)
                        && node.state == NodeState::InUse
                    {
                        node.set_state(NodeState::Used, now);
                    }
                }
                self.unlock_all();
                self.request = None;
                self.write(|lease| {
                    lease.phase = LeasePhase::Ended;
                    for leased in &mut lease.nodes {
                        leased.state = LeasedNodeState::Returned;
                    }
                });
            }
            LeaseStep::RecordStates(marks) => {
                for (id, _) in &marks {
                    self.node(*id).queue.retain(|ours| !ours);
                }
                self.write(|lease| {
                    for (id, state) in marks {
                        lease.set_node_state(id, state);
                    }
                });
            }
            LeaseStep::Delete => self.lease = None,
        }
    }

    fn unlock_all(&mut self) {
        for leased in self.lease.clone().unwrap().nodes {
            self.node(leased.node).queue.retain(|ours| !ours);
        }
    }

    fn happen(&mut self, event: &Event, snapshots: &mut [Option<Snapshot>; 2]) {
        match *event {
            Event::Read { keeper } => snapshots[keeper] = Some(self.clone()),
            Event::Execute { keeper, writes } => {
                if let Some(snapshot) = snapshots[keeper].clone() {
                    self.execute(&snapshot, writes);
                }
            }
            Event::Launch => self.launch(),
            Event::RequestFails => {
                let now = at(self.now);
                if let Some((_, request)) = &mut self.request
                    && !request.state.is_final()
                {
                    request.set_state(RequestState::Failed, now);
                }
            }
            Event::RequestDeleted => self.request = None,
            Event::Pass { seconds } => self.now += f64::from(seconds),
            Event::Renew => {
                let expires = at(self.now + DURATION as f64);
                if self
                    .lease
                    .as_ref()
                    .is_some_and(|lease| lease.phase.is_alive())
                {
                    self.write(|lease| lease.expires = expires);
                }
            }
            Event::Release => {
                let now = at(self.now);
                if self
                    .lease
                    .as_ref()
                    .is_some_and(|lease| lease.phase.is_alive())
                {
                    self.write(|lease| end(lease, EndCause::Released, now));
                }
            }
            Event::NodeGone { index } => {
                if let Some(node) = self.nodes.get_mut(index) {
                    node.node = None;
                    node.queue.clear();
                }
            }
            Event::ForceUnlock { index } => {
                if let Some(node) = self.nodes.get_mut(index)
                    && !node.queue.is_empty()
                {
                    node.queue.remove(0);
                }
            }
            Event::OtherLocks { index } => {
                if let Some(node) = self.nodes.get_mut(index)
                    && node.node.is_some()
                {
                    node.queue.push(false);
                }
            }
            Event::OtherUnlocks { index } => {
                if let Some(node) = self.nodes.get_mut(index) {
                    node.queue.retain(|ours| *ours);
                }
            }
        }
    }

    fn launch(&mut self) {
        let now = at(self.now);
        let first = self.nodes.len();
        if let Some((id, request)) = &mut self.request
            && !request.state.is_final()
        {
            for number in first..first + 2 {
                let mut node = Node::new(NodeState::Ready, now);
                node.allocated_to = Some((*id).into());
                let id = node_id(number);
                request.nodes.push(id);
                self.nodes.push(WorldNode {
                    id,
                    node: Some(node),
                    queue: Vec::new(),
                });
            }
            request.set_state(RequestState::Fulfilled, now);
        }
    }

    fn check(&self) {
        let Some(lease) = &self.lease else { return };
        let step = self.step().unwrap();
        let overdue = at(self.now) >= lease.expires;
        match (&step, lease.phase) {
            (LeaseStep::Wait { until: Some(until) }, _) => {
                assert!(*until > at(self.now), "waits for a time in the past");
            }
            (LeaseStep::Activate, phase) => {
                assert_eq!(phase, LeasePhase::Taking);
                let held = self
                    .observed()
                    .nodes
                    .iter()
                    .all(|node| node.lock == LeaseLock::Held);
                assert!(held, "uses unlocked nodes");
            }
            (LeaseStep::Delete, phase) => assert_eq!(phase, LeasePhase::Ended),
            _ => {}
        }
        let alive = matches!(
            lease.phase,
            LeasePhase::Waiting | LeasePhase::Taking | LeasePhase::Active
        );
        if alive && overdue {
            assert_eq!(step, LeaseStep::End(EndCause::Expired));
        }
        let known = |id: NodeId| lease.nodes.iter().any(|leased| leased.node == id);
        for node in self.nodes.iter().filter(|node| node.queue.contains(&true)) {
            assert!(known(node.id), "no record leads to this contender");
            assert_ne!(
                lease.phase,
                LeasePhase::Ended,
                "a contender of an ended lease"
            );
        }
    }
}

fn end(lease: &mut Lease, cause: EndCause, now: Timestamp) {
    lease.phase = LeasePhase::Ending;
    lease.end = Some(LeaseEnding {
        at: now,
        cause,
        text: None,
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// A lease that is not renewed ends after any events, and leaves nothing.
    #[test]
    fn every_lease_ends_and_leaves_nothing(events in events()) {
        let mut world = World::new();
        let mut snapshots = [None, None];
        for event in &events {
            world.happen(event, &mut snapshots);
            world.check();
        }
        for node in &mut world.nodes {
            node.queue.retain(|ours| *ours);
        }
        let mut steps = 0;
        while let Some(step) = world.step() {
            world.check();
            match step {
                LeaseStep::Wait { until } => {
                    // Without a time it would never end.
                    world.now = until.unwrap().as_secs();
                }
                _ => {
                    let snapshot = world.clone();
                    world.execute(&snapshot, usize::MAX);
                }
            }
            steps += 1;
            prop_assert!(steps < 100, "does not end: {world:?}");
        }
        prop_assert!(world.request.is_none());
        for node in &world.nodes {
            prop_assert!(node.queue.is_empty());
        }
    }
}

fn lease(placement: LeasePlacement, affinity: ScopeAffinity) -> Lease {
    let mut lease = World::new().lease.unwrap();
    lease.placement = placement;
    lease.spec.affinity = affinity;
    lease
}

#[test]
fn another_provider_will_do_where_that_was_said() {
    let [east, west] = ["east", "west"].map(|name| ProviderName::new(name).unwrap());
    let mut node = Node::new(NodeState::Ready, at(0.0));
    node.provider = Some(east.clone());
    let scope = || LeasePlacement::Scope {
        provider: west.clone(),
    };
    let asked = LeasePlacement::Asked {
        provider: west.clone(),
    };
    let fallback = LeasePlacement::Fallback {
        instead_of: west.clone(),
    };
    for (lease, expected) in [
        (
            lease(LeasePlacement::Anywhere, ScopeAffinity::Strict),
            PlacementMatch::Matches,
        ),
        (
            lease(scope(), ScopeAffinity::Strict),
            PlacementMatch::Mismatch,
        ),
        (
            lease(scope(), ScopeAffinity::Prefer),
            PlacementMatch::Fallback(fallback),
        ),
        (
            lease(asked, ScopeAffinity::Prefer),
            PlacementMatch::Mismatch,
        ),
    ] {
        assert_eq!(match_placement(&lease, [&node]), expected, "{lease:?}");
    }
    node.provider = Some(west.clone());
    assert_eq!(
        match_placement(&lease(scope(), ScopeAffinity::Strict), [&node]),
        PlacementMatch::Matches
    );
}

#[test]
fn a_scope_goes_after_its_leases() {
    let mut scope = LeaseScope {
        name: "s".parse().unwrap(),
        tenant: None,
        owner: "test".into(),
        created: at(0.0),
        expires: Some(at(10.0)),
        duration: Some(10),
        provider: None,
        closing: false,
    };
    let wait = |until: Option<f64>| ScopeStep::Wait {
        until: until.map(at),
    };
    let next =
        |scope: &LeaseScope, leases, now| next_scope_step(scope, leases, CONTINUOUS, at(now));
    assert_eq!(next(&scope, 0, 9.0), wait(Some(10.0)));
    assert_eq!(next(&scope, 1, 10.0), ScopeStep::Close);
    assert_eq!(next(&scope, 0, 10.0), ScopeStep::Delete);
    let restarted = Renewal {
        possible_for: Duration::from_secs(4),
        ..CONTINUOUS
    };
    let after_restart = next_scope_step(&scope, 0, restarted, at(50.0));
    assert_eq!(after_restart, wait(Some(56.0)));
    scope.closing = true;
    assert_eq!(next(&scope, 1, 1.0), wait(None));
    assert_eq!(next(&scope, 0, 1.0), ScopeStep::Delete);
    // Without an expiry it exists as long as its leases.
    scope.closing = false;
    scope.expires = None;
    assert_eq!(next(&scope, 1, 99.0), wait(None));
    assert_eq!(next(&scope, 0, 1.0), ScopeStep::Delete);
}

#[test]
fn an_overdue_lease_can_be_renewed_after_an_interruption() {
    let lease = World::new().lease.unwrap();
    let end = |window, possible_for, now| {
        let renewal = Renewal {
            window: Duration::from_secs(window),
            possible_for: Duration::from_secs(possible_for),
        };
        renewal.end_of(lease.expires, lease.spec.duration, at(now))
    };
    for (window, possible_for, now, expected) in [
        (30, 0, 10.0, 100.0),
        (30, 0, 90.0, 120.0),
        (30, 0, 5000.0, 5030.0),
        (30, 20, 5000.0, 5010.0),
        (30, 40, 5000.0, 5000.0),
        // At most for its duration.
        (600, 0, 5000.0, 5100.0),
    ] {
        assert_eq!(end(window, possible_for, now), at(expected), "{now}");
    }
    assert!(Renewal::OPEN.end_of(lease.expires, 1, at(5000.0)) > at(5000.0));
}
