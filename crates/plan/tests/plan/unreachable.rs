//! Pools whose provider did not start.

use nodeyard_model::{LauncherId, NodeState, RequestState};
use nodeyard_plan::{LabelReadiness, LabelSetup, MIN_READY_REQUESTOR, Policy, PoolSetup};

use crate::common::{Launcher, ask, limits, setup};

/// Of two providers the first did not start.
fn launcher() -> Launcher {
    let mut launcher = Launcher::new(Policy::default());
    let servers = limits(&[("instances", 2)]);
    let unreachable = |label: LabelSetup| LabelSetup {
        readiness: LabelReadiness::Unreachable {
            reason: "no route to host".into(),
        },
        ..label
    };
    let broken = setup("broken", "main", &["small", "large"], servers.clone());
    let labels = broken.labels.into_iter();
    let broken = PoolSetup {
        labels: labels.map(|(name, of)| (name, unreachable(of))).collect(),
        ..broken
    };
    launcher.pool(broken, 1);
    launcher.provider("cloud", limits(&[("cores", 100)]), None);
    launcher.pool(setup("cloud", "main", &["small"], servers), 2);
    launcher
}

fn declined_by(launcher: &Launcher, id: nodeyard_model::RequestId) -> &[LauncherId] {
    &launcher.requests[&id].declined_by
}

#[test]
fn a_request_waits_for_a_provider_that_did_not_start() {
    let mut launcher = launcher();
    let id = launcher.submit(200, ask(&["large"], launcher.now));
    launcher.decide();
    launcher.carry_out_all();
    launcher.decide();
    assert_eq!(launcher.requests[&id].state, RequestState::Requested);
    assert!(declined_by(&launcher, id).len() <= 1);
}

#[test]
fn another_pool_does_not_wait_for_a_provider_that_did_not_start() {
    let mut launcher = launcher();
    let id = launcher.submit(200, ask(&["small"], launcher.now));
    launcher.decide();
    launcher.carry_out_all();
    let node = launcher.building();
    let [node] = node.as_slice() else {
        panic!("{id} gets one node")
    };
    let provider = launcher.nodes[node].provider.as_ref();
    assert_eq!(provider.unwrap().as_str(), "cloud");
    assert_eq!(launcher.nodes[node].state, NodeState::Building);
}

#[test]
fn what_it_does_not_offer_a_provider_that_did_not_start_declines() {
    let mut launcher = launcher();
    let id = launcher.submit(200, ask(&["unknown"], launcher.now));
    launcher.decide();
    launcher.carry_out_all();
    launcher.decide();
    assert_eq!(launcher.requests[&id].state, RequestState::Failed);
}

#[test]
fn ready_nodes_are_made_elsewhere() {
    let mut launcher = launcher();
    let mut idle = ask(&["large"], launcher.now);
    idle.requestor = Some(MIN_READY_REQUESTOR.into());
    let id = launcher.submit(900, idle);
    launcher.decide();
    launcher.carry_out_all();
    launcher.decide();
    assert_eq!(launcher.requests[&id].state, RequestState::Failed);
}
