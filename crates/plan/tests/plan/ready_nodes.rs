//! Ready nodes are never asked for twice, in whichever order requests and nodes are seen, by any launcher.
//!
//! Several launchers follow one store. Each has two views, one of requests and one of nodes, which fall behind the
//! store and each other by any amount; a schedule of small steps decides who does what when. Every step that a real
//! launcher takes is a step of its own here: the lock, the two looks, the requests one by one, the launch, the
//! hand-over, and the clearing of the allocation before the request goes.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{ask, component, cost, limits, node_id, pool_key, request_id, setup, time};
use nodeyard_model::{
    Label, LauncherId, Node, NodeId, NodeRequest, NodeState, ProviderName, RequestId, RequestState,
};
use nodeyard_plan::{
    LabelPolicy, MIN_READY_REQUESTOR, Policy, ProviderSetup, RequestScheduler, min_ready, protocol,
};
use proptest::prelude::*;

const WANTED: usize = 2;

/// What was written, in the order of writing.
#[derive(Debug, Clone)]
enum Write {
    Request(RequestId, Option<Box<NodeRequest>>),
    Node(NodeId, Box<Node>),
    Lock(NodeId, bool),
}

/// Where a launcher is in asking for ready nodes.
#[derive(Debug, Clone, PartialEq)]
enum Asking {
    No,
    /// It has the lock.
    Locked,
    /// It has seen the requests, of which these are gone.
    Noted(BTreeSet<RequestId>),
    /// It has seen the nodes since. More requests may have been seen to go meanwhile.
    Synced(BTreeSet<RequestId>),
    /// Still to be asked for.
    Making(usize),
}

struct Launcher {
    scheduler: RequestScheduler,
    /// How much of the store's history each view has seen.
    requests_seen: usize,
    nodes_seen: usize,
    asking: Asking,
    own: BTreeSet<RequestId>,
    /// Requests that are fulfilled: first their nodes are freed, then they go.
    collecting: Vec<(RequestId, Option<NodeId>)>,
}

struct Store {
    history: Vec<Write>,
    requests: BTreeMap<RequestId, NodeRequest>,
    nodes: BTreeMap<NodeId, Node>,
    lock: Option<usize>,
    launchers: Vec<Launcher>,
    count: u64,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// So many writes more.
    SeeRequests(usize, usize),
    SeeNodes(usize, usize),
    Ask(usize),
    Collect(usize),
    /// Some launcher records a node for a request, finishes it, hands it over.
    Record(usize),
    Finish(usize),
    Fulfil(usize),
    /// Locks and unlocks a node without changing it.
    Touch(usize),
}

fn policies() -> BTreeMap<Label, LabelPolicy> {
    let policy = LabelPolicy {
        min_ready: WANTED,
        max_ready_age: None,
    };
    BTreeMap::from([("small".into(), policy)])
}

impl Store {
    fn new(launchers: usize) -> Self {
        let launcher = |_| {
            let mut scheduler = RequestScheduler::new(Policy::default());
            let provider = ProviderName::new("cloud").unwrap();
            scheduler.set_provider(&provider, ProviderSetup::default());
            let pool = setup("cloud", "main", &["small"], limits(&[]));
            scheduler.put_pool("pool", &component(&pool, 100));
            scheduler.set_own_pool(pool);
            Launcher {
                scheduler,
                requests_seen: 0,
                nodes_seen: 0,
                asking: Asking::No,
                own: BTreeSet::new(),
                collecting: Vec::new(),
            }
        };
        Self {
            history: Vec::new(),
            requests: BTreeMap::new(),
            nodes: BTreeMap::new(),
            lock: None,
            launchers: (0..launchers).map(launcher).collect(),
            count: 0,
        }
    }

    fn set_request(&mut self, id: RequestId, record: Option<NodeRequest>) {
        match &record {
            Some(record) => self.requests.insert(id, record.clone()),
            None => self.requests.remove(&id),
        };
        self.history.push(Write::Request(id, record.map(Box::new)));
    }

    fn set_node(&mut self, id: NodeId, node: Node) {
        self.nodes.insert(id, node.clone());
        self.history.push(Write::Node(id, Box::new(node)));
    }

    /// One write further; false at the end.
    fn see_requests(&mut self, who: usize) -> bool {
        let launcher = &mut self.launchers[who];
        let Some(write) = self.history.get(launcher.requests_seen) else {
            return false;
        };
        launcher.requests_seen += 1;
        if let Write::Request(id, record) = write {
            match record {
                Some(record) => launcher.scheduler.put_request(*id, record, time(1.0)),
                None => launcher.scheduler.remove_request(*id),
            }
        }
        true
    }

    fn see_nodes(&mut self, who: usize) -> bool {
        let launcher = &mut self.launchers[who];
        let Some(write) = self.history.get(launcher.nodes_seen) else {
            return false;
        };
        launcher.nodes_seen += 1;
        match write {
            Write::Node(id, node) => launcher.scheduler.put_node(*id, node),
            Write::Lock(id, locked) => launcher.scheduler.set_node_locked(*id, *locked),
            Write::Request(..) => {}
        }
        true
    }

    fn ask(&mut self, who: usize) {
        let asking = match self.launchers[who].asking.clone() {
            Asking::No => {
                let scheduler = &self.launchers[who].scheduler;
                if (missing(scheduler) == 0 && scheduler.removed_min_ready().is_empty())
                    || self.lock.is_some()
                {
                    return;
                }
                self.lock = Some(who);
                Asking::Locked
            }
            Asking::Locked => {
                while self.see_requests(who) {}
                Asking::Noted(self.launchers[who].scheduler.removed_min_ready())
            }
            Asking::Noted(removed_min_ready) => {
                while self.see_nodes(who) {}
                Asking::Synced(removed_min_ready)
            }
            Asking::Synced(removed_min_ready) => {
                let scheduler = &mut self.launchers[who].scheduler;
                scheduler.nodes_seen(&removed_min_ready);
                Asking::Making(missing(scheduler))
            }
            Asking::Making(0) => {
                self.lock = None;
                Asking::No
            }
            Asking::Making(left) => {
                let mut record = ask(&["small"], time(1.0));
                record.requestor = Some(MIN_READY_REQUESTOR.into());
                record.reuse = false;
                self.count += 1;
                let id = request_id(900, self.count);
                self.launchers[who].own.insert(id);
                self.set_request(id, Some(record));
                Asking::Making(left - 1)
            }
        };
        self.launchers[who].asking = asking;
    }

    /// Ends the launcher's own requests that it sees fulfilled, in two writes.
    fn collect(&mut self, who: usize) {
        let launcher = &mut self.launchers[who];
        if let Some((request, node)) = launcher.collecting.pop() {
            let Some(node) = node else {
                self.set_request(request, None);
                return;
            };
            launcher.collecting.push((request, None));
            let freed = protocol::node::free(self.nodes.get(&node), request).unwrap();
            self.set_node(node, freed);
            return;
        }
        let plan = min_ready::plan(&launcher.scheduler, &policies(), &launcher.own);
        for (request, nodes) in plan.finished.collect {
            launcher.own.remove(&request);
            launcher.collecting.push((request, nodes.first().copied()));
        }
    }

    /// Records a node for the `nth` request that waits.
    fn record(&mut self, nth: usize) {
        let waiting = |request: &NodeRequest| request.state == RequestState::Requested;
        let Some((id, mut request)) = pick(&self.requests, waiting, nth) else {
            return;
        };
        request.set_state(RequestState::Pending, time(1.0));
        let pool = pool_key("cloud", "main");
        let planned = protocol::node::Planned {
            request: id,
            record: &request,
            pool: &pool,
            launcher: &LauncherId::new("somebody"),
            label: &"small".into(),
            cost: &cost("small"),
            zone: None,
        };
        self.count += 1;
        let node = node_id(self.count);
        self.set_node(node, protocol::node::planned(&planned, time(1.0)));
        self.history.push(Write::Lock(node, true));
        self.set_request(id, Some(request));
    }

    fn finish(&mut self, nth: usize) {
        let launching = |node: &Node| node.state == NodeState::Init;
        if let Some((id, mut node)) = pick(&self.nodes, launching, nth) {
            node.set_state(NodeState::Ready, time(1.0));
            self.set_node(id, node);
        }
    }

    fn fulfil(&mut self, nth: usize) {
        let pending = |request: &NodeRequest| request.state == RequestState::Pending;
        let Some((id, mut request)) = pick(&self.requests, pending, nth) else {
            return;
        };
        let of_request = |node: &Node| node.request() == Some(id);
        let ready = |node: &Node| of_request(node) && node.state == NodeState::Ready;
        if let Some((node, _)) = pick(&self.nodes, ready, 0) {
            self.history.push(Write::Lock(node, false));
            request.nodes = vec![node];
            request.set_state(RequestState::Fulfilled, time(1.0));
            self.set_request(id, Some(request));
        }
    }

    fn touch(&mut self, nth: usize) {
        if let Some((id, _)) = pick(&self.nodes, |node| node.state == NodeState::Ready, nth) {
            self.history.push(Write::Lock(id, true));
            self.history.push(Write::Lock(id, false));
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::SeeRequests(who, count) => {
                let _ = (0..count).all(|_| self.see_requests(who));
            }
            Step::SeeNodes(who, count) => {
                let _ = (0..count).all(|_| self.see_nodes(who));
            }
            Step::Ask(who) => self.ask(who),
            Step::Collect(who) => self.collect(who),
            Step::Record(nth) => self.record(nth),
            Step::Finish(nth) => self.finish(nth),
            Step::Fulfil(nth) => self.fulfil(nth),
            Step::Touch(nth) => self.touch(nth),
        }
        let without_node = self
            .requests
            .values()
            .filter(|request| matches!(request.state, RequestState::Requested));
        let total = self.nodes.len() + without_node.count();
        assert!(total <= WANTED, "{total} nodes are there or on their way");
    }

    /// Runs all launchers until nothing changes.
    fn rest(&mut self) {
        let everything = |who| {
            [
                Step::SeeRequests(who, 1),
                Step::SeeNodes(who, 1),
                Step::Ask(who),
                Step::Collect(who),
                Step::Record(0),
                Step::Finish(0),
                Step::Fulfil(0),
            ]
        };
        for _ in 0..60 {
            for who in 0..self.launchers.len() {
                for step in everything(who) {
                    self.step(step);
                }
            }
        }
    }
}

fn missing(scheduler: &RequestScheduler) -> usize {
    let plan = min_ready::plan(scheduler, &policies(), &BTreeSet::new());
    plan.submit.iter().map(|submit| submit.count).sum()
}

/// The `nth` record of those that fit, counted around.
fn pick<I: Copy, T: Clone>(
    records: &BTreeMap<I, T>,
    fits: impl Fn(&T) -> bool,
    nth: usize,
) -> Option<(I, T)> {
    let fitting: Vec<_> = records.iter().filter(|(_, record)| fits(record)).collect();
    let (id, record) = fitting.get(nth % fitting.len().max(1))?;
    Some((**id, (*record).clone()))
}

fn steps(launchers: usize) -> impl Strategy<Value = Vec<Step>> {
    let who = 0..launchers;
    let step = prop_oneof![
        3 => (who.clone(), 1..9_usize).prop_map(|(who, count)| Step::SeeRequests(who, count)),
        1 => (who.clone(), 1..9_usize).prop_map(|(who, count)| Step::SeeNodes(who, count)),
        3 => who.clone().prop_map(Step::Ask),
        3 => who.prop_map(Step::Collect),
        2 => (0..3_usize).prop_map(Step::Record),
        2 => (0..3_usize).prop_map(Step::Finish),
        2 => (0..3_usize).prop_map(Step::Fulfil),
        1 => (0..3_usize).prop_map(Step::Touch),
    ];
    proptest::collection::vec(step, 0..250)
}

#[test]
fn a_request_that_goes_after_the_look_at_nodes_still_counts() {
    let mut store = Store::new(1);
    let all = 100;
    let serve = [
        Step::Record(0),
        Step::Finish(0),
        Step::Fulfil(0),
        Step::SeeRequests(0, all),
        Step::Collect(0),
        Step::Collect(0),
        Step::Collect(0),
        Step::SeeRequests(0, all),
    ];
    let until_synced = [Step::Ask(0); 3];
    let until_asked = [Step::Ask(0); 1 + WANTED + 1];
    let steps = until_synced.into_iter().chain(until_asked);
    // The first is served, so there is something to look for; the second is served after the look.
    let steps = steps.chain(serve).chain(until_synced).chain(serve);
    steps.for_each(|step| store.step(step));
    assert!(matches!(store.launchers[0].asking, Asking::Synced(_)));
    assert_eq!(store.requests.len(), 0, "both were served");
    until_asked.into_iter().for_each(|step| store.step(step));
    assert_eq!(store.requests.len(), 0, "nothing is missing");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn one_launcher_asks_for_what_is_missing_and_no_more(steps in steps(1)) {
        let mut store = Store::new(1);
        steps.into_iter().for_each(|step| store.step(step));
        store.rest();
        prop_assert_eq!(store.nodes.len(), WANTED);
        prop_assert!(store.requests.is_empty());
    }

    #[test]
    fn launchers_that_share_a_label_ask_for_no_more_together(steps in steps(3)) {
        let mut store = Store::new(3);
        steps.into_iter().for_each(|step| store.step(step));
        store.rest();
        prop_assert_eq!(store.nodes.len(), WANTED);
        prop_assert!(store.requests.is_empty());
    }
}
