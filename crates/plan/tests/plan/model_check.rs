//! An exhaustive search of the protocol: two launchers, Zuul with two requests, and a crash at any point.
//!
//! Every access to the store is a step of its own, and the steps of all actors are interleaved in every
//! possible way. A crash is the loss of a session: its locks go, its task is forgotten. What is written is
//! decided by `nodeyard_plan::protocol` alone. In every state that can be reached:
//!
//! - I1: a node of Zuul is allocated to no other request;
//! - I2: what a fulfilled request names is ready and allocated to it;
//! - I5: from fulfilment to return only Zuul writes a node;
//! - no node is lost, no request is stuck: from everywhere there is a way to the end, where all requests are
//!   done and every node that is left is free.
//!
//! Zuul's scheduler does not delete a request while an executor locks its nodes: Zuul checks the copy it
//! read before it had the lock, and nothing that a launcher does could make that safe.

use std::sync::LazyLock;

use indexmap::IndexSet;
use nodeyard_model::{
    Label, LauncherId, Node, NodeId, NodeRequest, NodeState, ProviderName, RequestId, RequestState,
    Timestamp,
};
use nodeyard_plan::protocol::node::Clean;
use nodeyard_plan::protocol::{node, request};

const LAUNCHERS: usize = 2;
const REQUESTS: usize = 2;
const NODES: usize = 2;

static NOW: LazyLock<Timestamp> = LazyLock::new(|| Timestamp::from_secs(1.0).unwrap());
static PROVIDER: LazyLock<ProviderName> = LazyLock::new(|| ProviderName::new("p").unwrap());
static LABEL: LazyLock<Label> = LazyLock::new(|| Label::from("a"));
static POOLS: LazyLock<[LauncherId; LAUNCHERS]> =
    LazyLock::new(|| ["one", "two"].map(LauncherId::from));
static REQUEST_IDS: LazyLock<[RequestId; REQUESTS]> =
    LazyLock::new(|| ["200-0000000000", "200-0000000001"].map(|id| id.parse().unwrap()));
static NODE_IDS: LazyLock<[NodeId; NODES]> =
    LazyLock::new(|| ["0000000000", "0000000001"].map(|id| id.parse().unwrap()));

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Actor {
    Launcher(usize),
    /// The executor that works on this request.
    Executor(usize),
}

/// The parts of a request record that the protocol reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Request {
    state: RequestState,
    declined: [bool; LAUNCHERS],
    node: Option<usize>,
}

impl Request {
    fn record(self) -> NodeRequest {
        let mut record = NodeRequest::new(self.state, *NOW);
        record.labels = vec![LABEL.clone()];
        let declined = (0..LAUNCHERS).filter(|launcher| self.declined[*launcher]);
        record.declined_by = declined.map(|launcher| POOLS[launcher].clone()).collect();
        record.nodes = self.node.map(|node| NODE_IDS[node]).into_iter().collect();
        record
    }

    fn of(record: &NodeRequest) -> Self {
        let node = record.nodes.first();
        Self {
            state: record.state,
            declined: [0, 1].map(|launcher: usize| record.declined_by.contains(&POOLS[launcher])),
            node: node.map(|id| NODE_IDS.iter().position(|n| n == id).unwrap()),
        }
    }
}

/// The parts of a node record that the protocol reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Machine {
    state: NodeState,
    allocated: Option<usize>,
}

impl Machine {
    fn record(self) -> Node {
        let mut record = Node::new(self.state, *NOW);
        record.provider = Some(PROVIDER.clone());
        record.labels = vec![LABEL.clone()];
        record.allocated_to = self.allocated.map(|request| REQUEST_IDS[request].into());
        record
    }

    fn of(record: &Node) -> Self {
        let id = record.request();
        Self {
            state: record.state,
            allocated: id.map(|id| REQUEST_IDS.iter().position(|r| *r == id).unwrap()),
        }
    }
}

/// Where a launcher is. `r` is a request whose lock it holds, `n` a node whose lock it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Task {
    Idle,
    Locked { r: usize },
    Working { r: usize },
    Created { r: usize, unlocked: usize },
    Began { r: usize, n: usize },
    Launching { r: usize, n: usize },
    Reusing { r: usize, n: usize },
    Has { r: usize, n: usize },
    HandingOver { r: usize, unlocked: usize },
    Failed { r: usize, n: usize },
    Declining { r: usize },
    Recovering { r: usize },
    Resetting { r: usize, n: usize },
    Done { r: usize },
    Cleaning { n: usize },
    Deleting { n: usize },
    Gone { n: usize },
    Unlocking { n: usize },
}

/// Where Zuul is with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Job {
    Waiting,
    Locking {
        n: usize,
    },
    Accepting {
        n: usize,
    },
    Accepted {
        n: usize,
    },
    Using {
        n: usize,
    },
    Returning {
        n: usize,
    },
    /// The executor died; the scheduler deletes the request if it is still there.
    Died,
    Over,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    requests: [Option<Request>; REQUESTS],
    request_locks: [Option<Actor>; REQUESTS],
    nodes: [Option<Machine>; NODES],
    node_locks: [Option<Actor>; NODES],
    tasks: [Task; LAUNCHERS],
    jobs: [Job; REQUESTS],
    crashes_left: u8,
}

/// Adds the state that follows when a launcher goes on to a task and changes something.
type Step<'a> = &'a mut dyn FnMut(Task, &dyn Fn(&mut State));

impl State {
    fn first(crashes_left: u8) -> Self {
        let request = Request {
            state: RequestState::Requested,
            declined: [false; LAUNCHERS],
            node: None,
        };
        Self {
            requests: [Some(request); REQUESTS],
            request_locks: [None; REQUESTS],
            nodes: [None; NODES],
            node_locks: [None; NODES],
            tasks: [Task::Idle; LAUNCHERS],
            jobs: [Job::Waiting; REQUESTS],
            crashes_left,
        }
    }

    fn is_quiet(&self) -> bool {
        let is_free = |node: &Option<Machine>| {
            node.is_none_or(|n| n.state == NodeState::Ready && n.allocated.is_none())
        };
        self.requests.iter().all(Option::is_none)
            && self.jobs.iter().all(|job| *job == Job::Over)
            && self.tasks.iter().all(|task| *task == Task::Idle)
            && self.nodes.iter().all(is_free)
            && self.node_locks.iter().all(Option::is_none)
    }

    fn read_request(&self, r: usize) -> Option<NodeRequest> {
        self.requests[r].map(Request::record)
    }

    fn read_node(&self, n: usize) -> Option<Node> {
        self.nodes[n].map(Machine::record)
    }

    fn write_request(&mut self, r: usize, record: &NodeRequest) {
        let old = self.requests[r].expect("only what was read is written");
        assert!(
            !old.state.is_final(),
            "a request that is done is not written again"
        );
        self.requests[r] = Some(Request::of(record));
    }

    /// A write by a launcher.
    fn write_node(&mut self, launcher: usize, n: usize, record: &Node) {
        assert_eq!(
            self.node_locks[n],
            Some(Actor::Launcher(launcher)),
            "writes need the lock"
        );
        assert!(!self.belongs_to_zuul(n), "I5: {self:#?}");
        self.nodes[n] = Some(Machine::of(record));
    }

    /// From fulfilment to return.
    fn belongs_to_zuul(&self, n: usize) -> bool {
        (0..REQUESTS).any(|r| match self.jobs[r] {
            Job::Waiting => self.requests[r]
                .is_some_and(|it| it.state == RequestState::Fulfilled && it.node == Some(n)),
            Job::Locking { n: its } | Job::Accepting { n: its } | Job::Accepted { n: its } => {
                its == n
            }
            Job::Using { n: its } => its == n,
            Job::Returning { .. } | Job::Died | Job::Over => false,
        })
    }

    fn check(&self) {
        for r in 0..REQUESTS {
            let (n, state) = match (self.jobs[r], self.requests[r]) {
                (Job::Waiting, Some(request)) if request.state == RequestState::Fulfilled => {
                    (request.node.expect("I2"), NodeState::Ready)
                }
                (Job::Locking { n } | Job::Accepting { n } | Job::Accepted { n }, _) => {
                    (n, NodeState::Ready)
                }
                (Job::Using { n }, _) => (n, NodeState::InUse),
                _ => continue,
            };
            let expected = Machine {
                state,
                allocated: Some(r),
            };
            assert_eq!(self.nodes[n], Some(expected), "I1, I2, I5: {self:#?}");
        }
    }

    /// No state refers to the node any more: its place can be reused.
    fn is_forgotten(&self, n: usize) -> bool {
        let by_task = |task: &Task| match *task {
            Task::Created { unlocked, .. } | Task::HandingOver { unlocked, .. } => unlocked == n,
            Task::Began { n: its, .. }
            | Task::Launching { n: its, .. }
            | Task::Reusing { n: its, .. }
            | Task::Has { n: its, .. }
            | Task::Failed { n: its, .. }
            | Task::Resetting { n: its, .. }
            | Task::Cleaning { n: its }
            | Task::Deleting { n: its }
            | Task::Gone { n: its }
            | Task::Unlocking { n: its } => its == n,
            Task::Idle
            | Task::Locked { .. }
            | Task::Working { .. }
            | Task::Declining { .. }
            | Task::Recovering { .. }
            | Task::Done { .. } => false,
        };
        self.nodes[n].is_none() && !self.tasks.iter().any(by_task)
    }

    fn successors(&self) -> Vec<State> {
        let mut next = Vec::new();
        for launcher in 0..LAUNCHERS {
            self.launcher_steps(launcher, &mut next);
            if self.crashes_left > 0 && self.tasks[launcher] != Task::Idle {
                let mut state = self.clone();
                state.tasks[launcher] = Task::Idle;
                state.lose_session(Actor::Launcher(launcher));
                next.push(state);
            }
        }
        for r in 0..REQUESTS {
            self.zuul_steps(r, &mut next);
        }
        next
    }

    fn lose_session(&mut self, actor: Actor) {
        self.crashes_left -= 1;
        for lock in self.request_locks.iter_mut().chain(&mut self.node_locks) {
            if *lock == Some(actor) {
                *lock = None;
            }
        }
    }

    fn launcher_steps(&self, launcher: usize, next: &mut Vec<State>) {
        let me = Some(Actor::Launcher(launcher));
        let mut step = |task: Task, change: &dyn Fn(&mut State)| {
            let mut state = self.clone();
            state.tasks[launcher] = task;
            change(&mut state);
            next.push(state);
        };
        let unlock_request = |r: usize| move |s: &mut State| s.request_locks[r] = None;
        let unlock_node = |n: usize| move |s: &mut State| s.node_locks[n] = None;
        match self.tasks[launcher] {
            Task::Idle => self.begin_something(launcher, &mut step),
            Task::Locked { r } => {
                match request::take(self.read_request(r).as_ref(), &POOLS[launcher], *NOW) {
                    Ok(record) => step(Task::Working { r }, &|s| s.write_request(r, &record)),
                    Err(_) => step(Task::Idle, &unlock_request(r)),
                }
            }
            Task::Working { r } => {
                for n in 0..NODES {
                    if self.is_forgotten(n) {
                        // As `node::planned` makes it.
                        let init = Machine {
                            state: NodeState::Init,
                            allocated: Some(r),
                        };
                        let unlocked = n;
                        step(Task::Created { r, unlocked }, &|s| s.nodes[n] = Some(init));
                    }
                    if self.nodes[n].is_some() && self.node_locks[n].is_none() {
                        step(Task::Reusing { r, n }, &|s| s.node_locks[n] = me);
                    }
                }
                step(Task::Declining { r }, &|_| {});
                // Its pool is drained.
                if let Ok(back) = request::requeue(self.read_request(r).as_ref(), *NOW) {
                    step(Task::Done { r }, &|s| s.write_request(r, &back));
                }
            }
            Task::Created { r, unlocked: n } => {
                if self.nodes[n].is_some() && self.node_locks[n].is_none() {
                    step(Task::Began { r, n }, &|s| s.node_locks[n] = me);
                } else {
                    step(Task::Declining { r }, &|_| {});
                }
            }
            Task::Began { r, n } => {
                match node::begin(self.read_node(n).as_ref(), REQUEST_IDS[r], *NOW) {
                    Ok(record) => step(Task::Launching { r, n }, &|s| {
                        s.write_node(launcher, n, &record);
                    }),
                    Err(_) => step(Task::Declining { r }, &unlock_node(n)),
                }
            }
            Task::Launching { r, n } => {
                let record = self.read_node(n);
                let ready = node::launched(record.as_ref(), REQUEST_IDS[r], *NOW).unwrap();
                step(Task::Has { r, n }, &|s| s.write_node(launcher, n, &ready));
                let failed =
                    node::launch_failed(record.as_ref(), REQUEST_IDS[r], false, *NOW).unwrap();
                step(Task::Failed { r, n }, &|s| {
                    s.write_node(launcher, n, &failed);
                });
            }
            Task::Reusing { r, n } => {
                let Some(request) = self.read_request(r) else {
                    return step(Task::Done { r }, &unlock_node(n));
                };
                match node::allocate(self.read_node(n).as_ref(), REQUEST_IDS[r], &request) {
                    Ok(record) => step(Task::Has { r, n }, &|s| s.write_node(launcher, n, &record)),
                    Err(_) => step(Task::Working { r }, &unlock_node(n)),
                }
            }
            Task::Has { r, n } => {
                if self.requests[r].is_some() {
                    let unlocked = n;
                    step(Task::HandingOver { r, unlocked }, &unlock_node(n));
                } else {
                    let record = node::free(self.read_node(n).as_ref(), REQUEST_IDS[r]).unwrap();
                    step(Task::Failed { r, n }, &|s| {
                        s.write_node(launcher, n, &record);
                    });
                }
            }
            Task::HandingOver { r, unlocked: n } => {
                let given = vec![(LABEL.clone(), NODE_IDS[n])];
                match request::fulfil(self.read_request(r).as_ref(), given, *NOW) {
                    Ok(record) => step(Task::Done { r }, &|s| s.write_request(r, &record)),
                    Err(_) => step(Task::Done { r }, &|_| {}),
                }
            }
            Task::Failed { r, n } => step(Task::Declining { r }, &unlock_node(n)),
            Task::Declining { r } => {
                let own = &POOLS[launcher];
                match request::decline(self.read_request(r).as_ref(), own, &*POOLS, *NOW) {
                    Ok(record) => step(Task::Done { r }, &|s| s.write_request(r, &record)),
                    Err(_) => step(Task::Done { r }, &|_| {}),
                }
            }
            Task::Recovering { r } => {
                let record = self.read_request(r);
                let Ok(back) = request::requeue(record.as_ref(), *NOW) else {
                    return step(Task::Done { r }, &|_| {});
                };
                let its = |n: &usize| self.nodes[*n].is_some_and(|m| m.allocated == Some(r));
                match (0..NODES).find(its) {
                    Some(n) if self.node_locks[n].is_none() => {
                        step(Task::Resetting { r, n }, &|s| s.node_locks[n] = me);
                    }
                    // Another launcher cleans it up; continue later.
                    Some(_) => step(Task::Done { r }, &|_| {}),
                    None => step(Task::Done { r }, &|s| s.write_request(r, &back)),
                }
            }
            Task::Resetting { r, n } => {
                match node::reset(self.read_node(n).as_ref(), REQUEST_IDS[r], *NOW) {
                    Ok(record) => step(Task::Recovering { r }, &|s| {
                        s.write_node(launcher, n, &record);
                        s.node_locks[n] = None;
                    }),
                    Err(_) => step(Task::Recovering { r }, &unlock_node(n)),
                }
            }
            Task::Done { r } => step(Task::Idle, &unlock_request(r)),
            Task::Cleaning { n } => self.clean(launcher, n, &mut step),
            Task::Deleting { n } => {
                let record = node::deleted(self.read_node(n).as_ref(), *NOW).unwrap();
                step(Task::Gone { n }, &|s| s.write_node(launcher, n, &record));
            }
            Task::Gone { n } => step(Task::Idle, &|s| {
                s.nodes[n] = None;
                s.node_locks[n] = None;
            }),
            Task::Unlocking { n } => step(Task::Idle, &unlock_node(n)),
        }
    }

    /// A node that looked abandoned is locked: check again, then act.
    fn clean(&self, launcher: usize, n: usize, step: Step<'_>) {
        let record = self.read_node(n);
        let allocated = self.nodes[n].and_then(|machine| machine.allocated);
        let request_exists = allocated.is_some_and(|r| self.requests[r].is_some());
        match node::clean(record.as_ref(), request_exists, *NOW) {
            Clean::Delete(record) => {
                step(Task::Deleting { n }, &|s| {
                    s.write_node(launcher, n, &record);
                });
            }
            Clean::RemoveRecord => step(Task::Gone { n }, &|_| {}),
            Clean::Leave => match allocated {
                Some(r) if !request_exists => match node::free(record.as_ref(), REQUEST_IDS[r]) {
                    Ok(record) => {
                        step(Task::Unlocking { n }, &|s| {
                            s.write_node(launcher, n, &record);
                        });
                    }
                    Err(_) => step(Task::Unlocking { n }, &|_| {}),
                },
                _ => step(Task::Unlocking { n }, &|_| {}),
            },
        }
    }

    /// What a launcher knows may be old, so it may try anything; what it reads under the lock decides.
    fn begin_something(&self, launcher: usize, step: Step<'_>) {
        let me = Some(Actor::Launcher(launcher));
        for r in 0..REQUESTS {
            if self.requests[r].is_some() && self.request_locks[r].is_none() {
                step(Task::Locked { r }, &|s| s.request_locks[r] = me);
                step(Task::Recovering { r }, &|s| s.request_locks[r] = me);
            }
        }
        for n in 0..NODES {
            if self.nodes[n].is_some() && self.node_locks[n].is_none() {
                step(Task::Cleaning { n }, &|s| s.node_locks[n] = me);
            }
        }
    }

    fn zuul_steps(&self, r: usize, next: &mut Vec<State>) {
        let me = Some(Actor::Executor(r));
        let mut step = |job: Job, change: &dyn Fn(&mut State)| {
            let mut state = self.clone();
            state.jobs[r] = job;
            change(&mut state);
            next.push(state);
        };
        let set = |n: usize, state: NodeState| {
            move |s: &mut State| s.nodes[n] = s.nodes[n].map(|m| Machine { state, ..m })
        };
        match self.jobs[r] {
            Job::Waiting => {
                let state = self.requests[r].map(|request| request.state);
                step(Job::Over, &|s| s.requests[r] = None);
                if state == Some(RequestState::Fulfilled) {
                    let n = self.requests[r].and_then(|request| request.node).unwrap();
                    step(Job::Locking { n }, &|_| {});
                }
            }
            Job::Locking { n } => {
                if self.node_locks[n].is_none() {
                    step(Job::Accepting { n }, &|s| s.node_locks[n] = me);
                }
                // It waits no longer than thirty seconds for the lock.
                step(Job::Over, &|s| s.requests[r] = None);
            }
            Job::Accepting { n } => step(Job::Accepted { n }, &|s| s.requests[r] = None),
            Job::Accepted { n } => {
                step(Job::Using { n }, &set(n, NodeState::InUse));
                // The build was aborted before it began.
                step(Job::Over, &|s| s.node_locks[n] = None);
            }
            Job::Using { n } => step(Job::Returning { n }, &set(n, NodeState::Used)),
            Job::Returning { n } => step(Job::Over, &|s| s.node_locks[n] = None),
            Job::Died => step(Job::Over, &|s| s.requests[r] = None),
            Job::Over => {}
        }
        let at_work = !matches!(self.jobs[r], Job::Waiting | Job::Died | Job::Over);
        if self.crashes_left > 0 && at_work {
            let mut state = self.clone();
            state.jobs[r] = Job::Died;
            state.lose_session(Actor::Executor(r));
            next.push(state);
        }
    }
}

/// Visits every state that can be reached, and checks that the end can be reached from each.
fn search(crashes: u8) -> usize {
    let mut states = IndexSet::from([State::first(crashes)]);
    let mut steps: Vec<(u32, u32)> = Vec::new();
    let mut from = 0;
    while let Some(state) = states.get_index(from) {
        for next in state.successors() {
            let (to, new) = states.insert_full(next);
            if new {
                states[to].check();
            }
            steps.push((to as u32, from as u32));
        }
        from += 1;
    }
    steps.sort_unstable();
    let mut ends: Vec<usize> = (0..states.len())
        .filter(|number| states[*number].is_quiet())
        .collect();
    let mut can_end = vec![false; states.len()];
    while let Some(number) = ends.pop() {
        if !std::mem::replace(&mut can_end[number], true) {
            let first = steps.partition_point(|(to, _)| (*to as usize) < number);
            let before = steps[first..].iter();
            let before = before.take_while(|(to, _)| *to as usize == number);
            ends.extend(before.map(|(_, from)| *from as usize));
        }
    }
    if let Some(stuck) = can_end.iter().position(|can| !can) {
        panic!("something is lost for ever: {:#?}", states[stuck]);
    }
    states.len()
}

#[test]
fn no_interleaving_breaks_an_invariant() {
    eprintln!("{} states", search(1));
}
