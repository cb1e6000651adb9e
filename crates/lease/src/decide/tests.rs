//! A small world in which keepers with old pictures, owners who change their minds and things that break take
//! turns in any order. Nothing may be left when all is over.

use nodeyard_model::{Label, ProviderName};
use proptest::prelude::*;

use super::*;
use crate::ask::Ask;
use crate::lease::{End, Part};

const KEEP: Duration = Duration::from_secs(1000);
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
    /// Who stands in line for its lock; true is the lease.
    line: Vec<bool>,
}

#[derive(Debug, Clone)]
struct World {
    now: f64,
    /// None when it was forgotten.
    lease: Option<Lease>,
    version: usize,
    request: Option<(RequestId, NodeRequest)>,
    requests: usize,
    nodes: Vec<WorldNode>,
}

/// What a keeper has read.
type Picture = World;

/// What happens next.
#[derive(Debug, Clone)]
enum Event {
    /// A keeper reads everything.
    Look {
        keeper: usize,
    },
    /// A keeper does what its picture asks for; of several writes only the first so many.
    Act {
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
    StrangerLocks {
        index: usize,
    },
    StrangerUnlocks {
        index: usize,
    },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let keeper = 0..2_usize;
    let index = 0..6_usize;
    let event = prop_oneof![
        6 => keeper.clone().prop_map(|keeper| Event::Look { keeper }),
        9 => (keeper, 0..4_usize).prop_map(|(keeper, writes)| Event::Act { keeper, writes }),
        4 => Just(Event::Launch),
        1 => Just(Event::RequestFails),
        1 => Just(Event::RequestDeleted),
        2 => (1..60_u32).prop_map(|seconds| Event::Pass { seconds }),
        2 => Just(Event::Renew),
        1 => Just(Event::Release),
        1 => index.clone().prop_map(|index| Event::NodeGone { index }),
        1 => index.clone().prop_map(|index| Event::ForceUnlock { index }),
        2 => index.clone().prop_map(|index| Event::StrangerLocks { index }),
        2 => index.prop_map(|index| Event::StrangerUnlocks { index }),
    ];
    prop::collection::vec(event, 0..80)
}

impl World {
    fn new() -> Self {
        let labels: Vec<Label> = vec!["small".into(), "large".into()];
        let lease = Lease {
            phase: Phase::Waiting,
            ask: Ask::new(labels, Duration::from_secs(DURATION)),
            tenant: None,
            requestor: "test".into(),
            scope: None,
            created: at(0.0),
            expires: at(DURATION as f64),
            request: None,
            placement: Placement::Anywhere,
            parts: Vec::new(),
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
        world.ask();
        world
    }

    fn ask(&mut self) {
        self.requests += 1;
        let request = NodeRequest::new(RequestState::Requested, at(self.now));
        self.request = Some((request_id(self.requests), request));
    }

    fn sight(&self) -> Sight<'_> {
        let parts = self.lease.iter().flat_map(|lease| &lease.parts);
        let nodes = parts.map(|part| {
            let found = self.nodes.iter().find(|node| node.id == part.node).unwrap();
            NodeSight {
                node: found.node.as_ref(),
                lock: match found.line.iter().position(|ours| *ours) {
                    None => LockSight::Absent,
                    Some(0) => LockSight::Held,
                    Some(_) => LockSight::Queued,
                },
            }
        });
        Sight {
            request: self.request.as_ref().map(|(id, record)| (*id, record)),
            nodes: nodes.collect(),
            scope: ScopeSight::None,
        }
    }

    fn step(&self) -> Option<Step> {
        let lease = self.lease.as_ref()?;
        Some(next(lease, &self.sight(), KEEP, CONTINUOUS, at(self.now)))
    }

    fn node(&mut self, id: NodeId) -> &mut WorldNode {
        self.nodes.iter_mut().find(|node| node.id == id).unwrap()
    }

    fn write(&mut self, change: impl FnOnce(&mut Lease)) {
        change(self.lease.as_mut().unwrap());
        self.version += 1;
    }

    /// True if the nodes, locks and request that a picture shows are still as it shows them: the versions that a
    /// step names.
    fn is_as_in(&self, picture: &Picture) -> bool {
        let nodes = |world: &World| -> Vec<_> {
            world.nodes.iter().map(|node| node.node.clone()).collect()
        };
        let requests = |world: &World| world.request.clone();
        nodes(self) == nodes(picture) && requests(self) == requests(picture)
    }

    /// Does what `picture` asks for, as the store would let it.
    fn act(&mut self, picture: &Picture, writes: usize) {
        let Some(step) = picture.step() else { return };
        if self.version != picture.version || self.lease.is_none() {
            return;
        }
        let now = at(self.now);
        match step {
            Step::Wait { .. } => {}
            Step::Note(request) => self.write(|lease| lease.request = Some(request)),
            Step::Take { request, nodes } => self.write(|lease| {
                lease.phase = Phase::Taking;
                lease.request = Some(request);
                let part = |node| Part {
                    node,
                    label: "small".into(),
                    state: PartState::Leased,
                };
                lease.parts = nodes.into_iter().map(part).collect();
            }),
            Step::Lock => {
                let absent = picture
                    .nodes
                    .iter()
                    .filter(|node| !node.line.contains(&true));
                let absent: Vec<NodeId> = absent.map(|node| node.id).collect();
                let parts = self.lease.clone().unwrap().parts;
                let wanted = parts.iter().filter(|part| absent.contains(&part.node));
                for part in wanted.take(writes) {
                    let node = self.node(part.node);
                    if node.node.is_some() {
                        node.line.push(true);
                    }
                }
            }
            Step::Accept if self.is_as_in(picture) => {
                for part in self.lease.clone().unwrap().parts {
                    let node = self.node(part.node).node.as_mut().unwrap();
                    node.set_state(NodeState::InUse, now);
                }
                self.request = None;
                self.write(|lease| {
                    lease.phase = Phase::Active;
                    lease.expires = at(now.as_secs() + DURATION as f64);
                });
            }
            Step::Accept => {}
            Step::GiveUp => self.write(|lease| lease.phase = Phase::Dropping),
            Step::Undo => {
                self.unlock_all();
                self.ask();
                self.write(|lease| {
                    lease.phase = Phase::Waiting;
                    lease.request = None;
                    lease.parts.clear();
                });
            }
            Step::End(cause) => self.write(|lease| end(lease, cause, now)),
            Step::Finish => {
                for part in self.lease.clone().unwrap().parts {
                    let node = self.node(part.node);
                    let held = node.line.first() == Some(&true);
                    if let (Some(node), true) = (&mut node.node, held)
                        && node.state == NodeState::InUse
                    {
                        node.set_state(NodeState::Used, now);
                    }
                }
                self.unlock_all();
                self.request = None;
                self.write(|lease| {
                    lease.phase = Phase::Ended;
                    for part in &mut lease.parts {
                        part.state = PartState::Returned;
                    }
                });
            }
            Step::Mark(marks) => {
                for (id, _) in &marks {
                    self.node(*id).line.retain(|ours| !ours);
                }
                self.write(|lease| {
                    for (id, state) in marks {
                        lease.set_part(id, state);
                    }
                });
            }
            Step::Forget => self.lease = None,
        }
    }

    fn unlock_all(&mut self) {
        for part in self.lease.clone().unwrap().parts {
            self.node(part.node).line.retain(|ours| !ours);
        }
    }

    fn happen(&mut self, event: &Event, pictures: &mut [Option<Picture>; 2]) {
        match *event {
            Event::Look { keeper } => pictures[keeper] = Some(self.clone()),
            Event::Act { keeper, writes } => {
                if let Some(picture) = pictures[keeper].clone() {
                    self.act(&picture, writes);
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
                    self.write(|lease| end(lease, Cause::Released, now));
                }
            }
            Event::NodeGone { index } => {
                if let Some(node) = self.nodes.get_mut(index) {
                    node.node = None;
                    node.line.clear();
                }
            }
            Event::ForceUnlock { index } => {
                if let Some(node) = self.nodes.get_mut(index)
                    && !node.line.is_empty()
                {
                    node.line.remove(0);
                }
            }
            Event::StrangerLocks { index } => {
                if let Some(node) = self.nodes.get_mut(index)
                    && node.node.is_some()
                {
                    node.line.push(false);
                }
            }
            Event::StrangerUnlocks { index } => {
                if let Some(node) = self.nodes.get_mut(index) {
                    node.line.retain(|ours| *ours);
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
                    line: Vec::new(),
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
            (Step::Wait { until: Some(until) }, _) => {
                assert!(*until > at(self.now), "waits for what has passed");
            }
            (Step::Accept, phase) => {
                assert_eq!(phase, Phase::Taking);
                let held = self
                    .sight()
                    .nodes
                    .iter()
                    .all(|node| node.lock == LockSight::Held);
                assert!(held, "takes what is not locked");
            }
            (Step::Forget, phase) => assert_eq!(phase, Phase::Ended),
            _ => {}
        }
        let alive = matches!(lease.phase, Phase::Waiting | Phase::Taking | Phase::Active);
        if alive && overdue {
            assert_eq!(step, Step::End(Cause::Expired));
        }
        let known = |id: NodeId| lease.parts.iter().any(|part| part.node == id);
        for node in self.nodes.iter().filter(|node| node.line.contains(&true)) {
            assert!(known(node.id), "a contender that nobody knows of");
            assert_ne!(lease.phase, Phase::Ended, "a contender of what is over");
        }
    }
}

fn end(lease: &mut Lease, cause: Cause, now: Timestamp) {
    lease.phase = Phase::Ending;
    lease.end = Some(End {
        at: now,
        cause,
        text: None,
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever happens in between, a lease that is left alone comes to its end, and nothing is left of it.
    #[test]
    fn every_lease_ends_and_leaves_nothing(events in events()) {
        let mut world = World::new();
        let mut pictures = [None, None];
        for event in &events {
            world.happen(event, &mut pictures);
            world.check();
        }
        for node in &mut world.nodes {
            node.line.retain(|ours| *ours);
        }
        let mut steps = 0;
        while let Some(step) = world.step() {
            world.check();
            match step {
                Step::Wait { until } => {
                    // With nothing more to wait for it would never end.
                    world.now = until.unwrap().as_secs();
                }
                _ => {
                    let picture = world.clone();
                    world.act(&picture, usize::MAX);
                }
            }
            steps += 1;
            prop_assert!(steps < 100, "goes round in circles: {world:?}");
        }
        prop_assert!(world.request.is_none());
        for node in &world.nodes {
            prop_assert!(node.line.is_empty());
        }
    }
}

fn lease(placement: Placement, affinity: Affinity) -> Lease {
    let mut lease = World::new().lease.unwrap();
    lease.placement = placement;
    lease.ask.affinity = affinity;
    lease
}

#[test]
fn another_provider_will_do_where_that_was_said() {
    let [east, west] = ["east", "west"].map(|name| ProviderName::new(name).unwrap());
    let mut node = Node::new(NodeState::Ready, at(0.0));
    node.provider = Some(east.clone());
    let scope = || Placement::Scope {
        provider: west.clone(),
    };
    let asked = Placement::Asked {
        provider: west.clone(),
    };
    let fallback = Placement::Fallback {
        instead_of: west.clone(),
    };
    for (lease, expected) in [
        (lease(Placement::Anywhere, Affinity::Strict), Place::AsAsked),
        (lease(scope(), Affinity::Strict), Place::Elsewhere),
        (lease(scope(), Affinity::Prefer), Place::Instead(fallback)),
        (lease(asked, Affinity::Prefer), Place::Elsewhere),
    ] {
        assert_eq!(place(&lease, [&node]), expected, "{lease:?}");
    }
    node.provider = Some(west.clone());
    assert_eq!(
        place(&lease(scope(), Affinity::Strict), [&node]),
        Place::AsAsked
    );
}

#[test]
fn a_scope_goes_after_its_leases() {
    let mut scope = Scope {
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
    let next = |scope: &Scope, leases, now| next_for_scope(scope, leases, CONTINUOUS, at(now));
    assert_eq!(next(&scope, 0, 9.0), wait(Some(10.0)));
    assert_eq!(next(&scope, 1, 10.0), ScopeStep::Close);
    assert_eq!(next(&scope, 0, 10.0), ScopeStep::Forget);
    let restarted = Renewal {
        possible_for: Duration::from_secs(4),
        ..CONTINUOUS
    };
    let after_restart = next_for_scope(&scope, 0, restarted, at(50.0));
    assert_eq!(after_restart, wait(Some(56.0)));
    scope.closing = true;
    assert_eq!(next(&scope, 1, 1.0), wait(None));
    assert_eq!(next(&scope, 0, 1.0), ScopeStep::Forget);
    // One that nobody opened lives as long as its leases.
    scope.closing = false;
    scope.expires = None;
    assert_eq!(next(&scope, 1, 99.0), wait(None));
    assert_eq!(next(&scope, 0, 1.0), ScopeStep::Forget);
}

#[test]
fn an_overdue_lease_can_be_renewed_after_an_interruption() {
    let lease = World::new().lease.unwrap();
    let end = |window, possible_for, now| {
        let renewal = Renewal {
            window: Duration::from_secs(window),
            possible_for: Duration::from_secs(possible_for),
        };
        renewal.end_of(lease.expires, lease.ask.duration, at(now))
    };
    for (window, possible_for, now, expected) in [
        (30, 0, 10.0, 100.0),
        (30, 0, 90.0, 120.0),
        (30, 0, 5000.0, 5030.0),
        (30, 20, 5000.0, 5010.0),
        (30, 40, 5000.0, 5000.0),
        // No longer than it lasts anyway.
        (600, 0, 5000.0, 5100.0),
    ] {
        assert_eq!(end(window, possible_for, now), at(expected), "{now}");
    }
    assert!(Renewal::OPEN.end_of(lease.expires, 1, at(5000.0)) > at(5000.0));
}
