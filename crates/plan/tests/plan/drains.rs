//! Pools that are to accept nothing, and pools that are no more: what they hold goes on elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{Launcher, ask, limits, node_id, pool_key, setup};
use nodeyard_model::{Label, Node, NodeState, RequestId, RequestState};
use nodeyard_plan::assign::{DecisionInputs, Retry};
use nodeyard_plan::explain::{AssignmentExplanation, Next};
use nodeyard_plan::{
    LabelPolicy, LabelReadiness, MIN_READY_REQUESTOR, Policy, PoolKey, min_ready, orphans,
};

/// One pool for each of these, with room for so many servers; the first ones come first.
fn launcher(pools: &[(&str, i64)]) -> Launcher {
    let mut launcher = Launcher::new(Policy::default());
    for (place, (provider, servers)) in (1..).zip(pools) {
        launcher.provider(provider, limits(&[]), None);
        let servers = limits(&[("instances", *servers)]);
        let pool = setup(provider, "main", &["small", "large"], servers);
        launcher.pool(pool, 10 * place);
    }
    launcher
}

fn main_of(provider: &str) -> PoolKey {
    pool_key(provider, "main")
}

fn submit(launcher: &mut Launcher, labels: &[&str]) -> RequestId {
    let id = launcher.submit(200, ask(labels, launcher.now));
    run(launcher);
    id
}

/// Everything that is decided is done, and every launch succeeds.
fn run(launcher: &mut Launcher) {
    launcher.decide();
    launcher.carry_out_all();
    for node in launcher.building() {
        launcher.finish_launch(node);
    }
    launcher.decide();
}

fn explain(launcher: &Launcher, id: RequestId) -> AssignmentExplanation {
    let at = DecisionInputs {
        now: launcher.now,
        seed: 0,
    };
    launcher.scheduler.explain(id, at).unwrap()
}

fn state(launcher: &Launcher, id: RequestId) -> RequestState {
    launcher.requests[&id].state
}

/// A pool that is full, and a request that it holds.
fn full_pool() -> (Launcher, RequestId, RequestId) {
    let mut launcher = launcher(&[("cloud", 1)]);
    let first = submit(&mut launcher, &["small"]);
    let held = submit(&mut launcher, &["small"]);
    assert_eq!(launcher.held(), [held]);
    (launcher, first, held)
}

#[test]
fn a_full_pool_that_is_drained_lets_go_of_the_request_it_holds() {
    for label in [None, Some("small")] {
        let (mut launcher, first, held) = full_pool();
        let drain = |launcher: &mut Launcher, on| match label {
            Some(label) => launcher.drain_label(label, on),
            None => launcher.drain_pool(&main_of("cloud"), on),
        };
        drain(&mut launcher, true);
        run(&mut launcher);
        assert_eq!(state(&launcher, held), RequestState::Requested);
        launcher.use_and_return(first);
        launcher.clean();
        run(&mut launcher);
        assert_eq!(state(&launcher, held), RequestState::Requested);
        drain(&mut launcher, false);
        run(&mut launcher);
        assert_eq!(state(&launcher, held), RequestState::Fulfilled);
    }
}

#[test]
fn no_pool_takes_a_revoked_request_before_it_is_requeued() {
    let (mut launcher, first, held) = full_pool();
    launcher.drain_pool(&main_of("cloud"), true);
    assert_eq!(
        launcher.scheduler.revoke_reservations(),
        [(main_of("cloud"), held)]
    );
    assert_eq!(launcher.scheduler.revoke_reservations(), []);
    // The drain ends before the record says that the request waits.
    launcher.undrain_all();
    launcher.use_and_return(first);
    launcher.clean();
    launcher.decide();
    assert!(launcher.backlog.is_empty(), "{:?}", launcher.log);
}

#[test]
fn what_a_provider_held_is_served_by_the_one_that_comes_after_it() {
    let (mut launcher, _, held) = full_pool();
    launcher.remove_provider("cloud");
    assert_eq!(state(&launcher, held), RequestState::Requested);
    launcher.provider("cloud", limits(&[]), None);
    // Renamed, from the point of view of the request.
    let two = limits(&[("instances", 2)]);
    launcher.pool(setup("cloud", "other", &["small"], two), 10);
    run(&mut launcher);
    assert_eq!(state(&launcher, held), RequestState::Fulfilled);
}

#[test]
fn a_request_that_lacks_nodes_is_requeued_if_its_pool_is_drained_or_removed() {
    let retry = |change: &dyn Fn(&mut Launcher)| {
        let mut launcher = launcher(&[("cloud", 2), ("spare", 2)]);
        let id = launcher.submit(200, ask(&["small"], launcher.now));
        launcher.decide();
        assert_eq!(launcher.scheduler.taken_by(id), Some(&main_of("cloud")));
        change(&mut launcher);
        let at = DecisionInputs {
            now: launcher.now,
            seed: 0,
        };
        launcher.scheduler.retry(id, &["small".into()], None, at)
    };
    assert!(matches!(retry(&|_| {}), Retry::Accept(_)));
    let drained = retry(&|launcher| launcher.drain_pool(&main_of("cloud"), true));
    assert_eq!(drained, Retry::Requeue);
    let drained = retry(&|launcher| launcher.drain_label("small", true));
    assert_eq!(drained, Retry::Requeue);
    let gone = retry(&|launcher| launcher.remove_provider("cloud"));
    assert_eq!(gone, Retry::Requeue);
}

#[test]
fn no_pool_waits_for_a_drained_one_that_would_come_first() {
    let mut launcher = launcher(&[("first", 2), ("second", 2)]);
    launcher.drain_pool(&main_of("first"), true);
    let id = submit(&mut launcher, &["small"]);
    assert_eq!(state(&launcher, id), RequestState::Fulfilled);
    let node = &launcher.nodes[&launcher.requests[&id].nodes[0]];
    assert_eq!(node.provider, Some(main_of("second").provider));

    launcher.undrain_all();
    let id = submit(&mut launcher, &["small"]);
    let node = &launcher.nodes[&launcher.requests[&id].nodes[0]];
    assert_eq!(node.provider, Some(main_of("first").provider));
}

#[test]
fn an_unservable_request_fails_although_a_pool_is_drained() {
    let mut launcher = launcher(&[("cloud", 2), ("spare", 1)]);
    launcher.drain_pool(&main_of("cloud"), true);
    let unknown = submit(&mut launcher, &["unknown"]);
    let too_large = submit(&mut launcher, &["small"; 3]);
    for id in [unknown, too_large] {
        assert_eq!(state(&launcher, id), RequestState::Failed);
    }
    // The drained pool could serve it, if it were not drained.
    let possible = submit(&mut launcher, &["small"; 2]);
    assert_eq!(state(&launcher, possible), RequestState::Requested);
    assert_eq!(
        explain(&launcher, possible).to_string(),
        "\
request 200-0000000002 for small, small is requested, known for 0 s, 0 before it
  cloud/main: does not take it, pool cloud/main is drained
  spare/main: has declined it: 2 instances needed, pool spare/main allows 1 in all
next: the drain has to end: nodeyard undrain pool cloud/main
"
    );
    launcher.undrain_all();
    run(&mut launcher);
    assert_eq!(state(&launcher, possible), RequestState::Fulfilled);
}

#[test]
fn a_drained_pool_does_not_decline_what_the_drain_may_mend() {
    let missing = LabelReadiness::ImageMissing {
        image: "noble".into(),
        reason: None,
        pending: None,
    };
    let broken = LabelReadiness::Broken {
        reason: "there is no flavor m9".into(),
    };
    for readiness in [missing, broken] {
        let mut launcher = launcher(&[("cloud", 2)]);
        let key = main_of("cloud");
        let set = |launcher: &mut Launcher, to| {
            launcher
                .scheduler
                .set_readiness(&main_of("cloud"), &"small".into(), to);
        };
        launcher.drain_pool(&key, true);
        set(&mut launcher, readiness);
        let id = submit(&mut launcher, &["small"]);
        assert_eq!(state(&launcher, id), RequestState::Requested);
        set(&mut launcher, LabelReadiness::Ready);
        launcher.undrain_all();
        run(&mut launcher);
        assert_eq!(state(&launcher, id), RequestState::Fulfilled);
    }
}

#[test]
fn a_drained_label_is_what_its_requests_wait_for() {
    let mut launcher = launcher(&[("cloud", 2)]);
    launcher.drain_label("small", true);
    let id = submit(&mut launcher, &["large", "small"]);
    let other = submit(&mut launcher, &["large"]);
    assert_eq!(state(&launcher, other), RequestState::Fulfilled);
    let explanation = explain(&launcher, id);
    let scope = "label small".to_owned();
    assert_eq!(explanation.next, Next::Undrain { scope });
    let text = explanation.pools[0].verdict.to_string();
    assert_eq!(text, "does not take it, label small is drained");

    // A launcher that declined it left a node behind that is still the request's.
    let mut node = Node::new(NodeState::Ready, launcher.now);
    let key = main_of("cloud");
    node.provider = Some(key.provider);
    node.pool = Some(key.pool);
    node.labels = vec!["small".into()];
    node.allocated_to = Some(id.into());
    launcher.scheduler.put_node(node_id(77), &node);
    assert_eq!(orphans::find(&launcher.scheduler).dangling, []);
    launcher.cancel(id);
    let dangling = orphans::find(&launcher.scheduler).dangling;
    assert_eq!(dangling, [(node_id(77), id.into())]);
}

#[test]
fn ready_nodes_are_not_asked_of_a_drained_pool() {
    let mut launcher = launcher(&[("cloud", 2), ("spare", 1)]);
    let policy = LabelPolicy {
        min_ready: 3,
        max_ready_age: None,
    };
    let labels = BTreeMap::from([(Label::from("small"), policy)]);
    let asked_for = |launcher: &Launcher| {
        let plan = min_ready::plan(&launcher.scheduler, &labels, &BTreeSet::new());
        plan.submit[0].count
    };
    assert_eq!(asked_for(&launcher), 3);
    launcher.drain_pool(&main_of("cloud"), true);
    assert_eq!(asked_for(&launcher), 1);

    // Should one be asked for all the same, it does not stay for as long as the drain.
    submit(&mut launcher, &["small"]);
    let mut record = ask(&["small"], launcher.now);
    record.requestor = Some(MIN_READY_REQUESTOR.into());
    let id = launcher.submit(900, record);
    run(&mut launcher);
    assert_eq!(state(&launcher, id), RequestState::Failed);
}

#[test]
fn launches_under_way_count_when_their_provider_is_replaced() {
    let mut launcher = Launcher::new(Policy::default());
    launcher.provider("cloud", limits(&[]), Some(1));
    launcher.pool(setup("cloud", "main", &["small"], limits(&[])), 10);
    let [first, second] = [(); 2].map(|()| {
        let id = launcher.submit(200, ask(&["small"], launcher.now));
        launcher.decide();
        launcher.carry_out_all();
        id
    });
    let [node] = launcher.building()[..] else {
        panic!("{:?}", launcher.nodes);
    };
    launcher.reload("cloud");
    // The launch writes what it gets to know.
    let record = launcher.nodes[&node].clone();
    launcher.scheduler.put_node(node, &record);
    run_decisions(&mut launcher);
    assert_eq!(launcher.building(), [node], "{:?}", launcher.log);

    launcher.finish_launch(node);
    run_decisions(&mut launcher);
    assert_eq!(launcher.fulfilled(), [first]);
    assert_eq!(launcher.scheduler.taken_by(second), Some(&main_of("cloud")));
}

fn run_decisions(launcher: &mut Launcher) {
    launcher.decide();
    launcher.carry_out_all();
}
