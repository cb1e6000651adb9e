//! What people and programs read about a request that waits.

use std::time::Duration;

use crate::common::{Launcher, ask, component, cost, limits, setup};
use nodeyard_model::{RequestId, Resources};
use nodeyard_plan::assign::DecisionInputs;
use nodeyard_plan::explain::AssignmentExplanation;
use nodeyard_plan::{LabelReadiness, LabelSetup, Policy, Supply};

/// Two providers of ours, and a pool of another launcher with a label of its own.
fn launcher() -> Launcher {
    let mut launcher = Launcher::new(Policy {
        patience: Duration::ZERO,
    });
    launcher.provider("cloud", limits(&[("cores", 8)]), None);
    launcher.provider("spare", limits(&[]), None);
    let servers = |count| limits(&[("instances", count)]);
    launcher.pool(setup("cloud", "main", &["small", "large"], servers(4)), 10);
    launcher.pool(setup("spare", "main", &["small"], servers(2)), 20);
    let theirs = setup("other", "main", &["arm"], servers(1));
    launcher
        .scheduler
        .put_pool("other0", &component(&theirs, 10));
    launcher
}

fn explain(launcher: &Launcher, id: RequestId) -> AssignmentExplanation {
    let at = DecisionInputs {
        now: launcher.now,
        seed: 0,
    };
    launcher.scheduler.explain(id, at).unwrap()
}

fn submit(launcher: &mut Launcher, labels: &[&str]) -> RequestId {
    let id = launcher.submit(200, ask(labels, launcher.now));
    launcher.decide();
    id
}

/// Writes the decisions and finishes the launches.
fn settle(launcher: &mut Launcher) {
    launcher.carry_out_all();
    for node in launcher.building() {
        launcher.finish_launch(node);
    }
    launcher.decide();
}

#[test]
fn a_request_that_waits_for_room() {
    let mut launcher = launcher();
    submit(&mut launcher, &["large"]);
    submit(&mut launcher, &["large"]);
    settle(&mut launcher);
    let large = submit(&mut launcher, &["large", "small"]);
    let small = submit(&mut launcher, &["small"]);
    launcher.advance(75.0);
    launcher.decide();
    assert_eq!(
        explain(&launcher, large).to_string(),
        "\
request 200-0000000002 for large, small is requested, known for 75 s, 0 before it
  cloud/main: keeps room for it: 5 cores needed, provider cloud has 8 of 8 in use
  other/main: another launcher's, does not offer large, small
  spare/main: nothing to do, cloud/main has taken it
next: 5 cores have to come free in provider cloud, then cloud/main serves it
"
    );
    // The pool waits for room, so the request is not left to it any more.
    assert_eq!(
        explain(&launcher, small).to_string(),
        "\
request 200-0000000003 for small is requested
  cloud/main: nothing to do, spare/main has taken it
  other/main: another launcher's, does not offer small
  spare/main: nothing to do, spare/main has taken it
next: spare/main is preparing its nodes
"
    );
}

#[test]
fn what_is_kept_for_others_is_part_of_the_sum() {
    let mut launcher = launcher();
    launcher.tenants(&[("t", limits(&[("instances", 3)]))]);
    let mut of_tenant = |labels: &[&str]| {
        let mut record = ask(labels, launcher.now);
        record.tenant_name = Some("t".into());
        let id = launcher.submit(200, record);
        launcher.decide();
        settle(&mut launcher);
        id
    };
    of_tenant(&["small"]);
    of_tenant(&["small"]);
    let large = of_tenant(&["small", "small"]);
    let small = of_tenant(&["small"]);
    let explanation = explain(&launcher, large).to_string();
    assert!(explanation.contains(
        "cloud/main: cannot serve it yet: 2 instances needed, tenant t has 2 of 3 in use\n"
    ));
    let explanation = explain(&launcher, small).to_string();
    assert!(explanation.contains(
        "cloud/main: cannot serve it yet: 1 instances needed, tenant t has 2 of 3 in use, 2 kept for requests before it\n"
    ), "{explanation}");
}

#[test]
fn a_request_that_no_pool_can_serve() {
    let mut launcher = launcher();
    let id = submit(&mut launcher, &["huge"]);
    launcher.carry_out_all();
    assert_eq!(
        explain(&launcher, id).to_string(),
        "\
request 200-0000000000 for huge is requested, known for 0 s, 0 before it
  cloud/main: has declined it: it does not offer huge
  other/main: another launcher's, does not offer huge
  spare/main: has declined it: it does not offer huge
next: no pool can serve it; it fails when these have declined: host-PoolWorker.other-main-0
"
    );
    let id = submit(&mut launcher, &["arm"]);
    assert_eq!(
        explain(&launcher, id).to_string(),
        "\
request 200-0000000001 for arm is requested, known for 0 s, 1 before it
  cloud/main: leaves it to another pool: it lacks arm, host-PoolWorker.other-main-0 has them all
  other/main: another launcher's, can serve it
  spare/main: leaves it to another pool: host-PoolWorker.other-main-0 has priority 10, this pool 20
next: one of these takes it: host-PoolWorker.other-main-0
"
    );
}

#[test]
fn every_reason_to_decline_is_named() {
    let declined = |labels: &[&str], change: &dyn Fn(&mut LabelSetup), servers: i64| {
        let mut launcher = Launcher::new(Policy::default());
        launcher.provider("cloud", limits(&[("cores", 6)]), None);
        let mut pool = setup(
            "cloud",
            "main",
            &["large"],
            limits(&[("instances", servers)]),
        );
        change(pool.labels.get_mut("large").unwrap());
        launcher.pool(pool, 10);
        submit(&mut launcher, labels);
        launcher.log.join("\n")
    };
    let unchanged = |_: &mut LabelSetup| {};
    let missing = |label: &mut LabelSetup| {
        label.readiness = LabelReadiness::ImageMissing {
            image: "noble".into(),
            reason: None,
            pending: None,
        };
    };
    let not_found = |label: &mut LabelSetup| {
        label.readiness = LabelReadiness::ImageMissing {
            image: "noble".into(),
            reason: Some("there is no active image with os \"noble\"".into()),
            pending: None,
        };
    };
    let broken = |label: &mut LabelSetup| {
        label.readiness = LabelReadiness::Broken {
            reason: "there is no flavor m9".into(),
        };
    };
    let fixed = |label: &mut LabelSetup| label.supply = Supply::Fixed(1);
    for (log, expected) in [
        (declined(&["large"], &unchanged, 0), "max-servers is 0"),
        (declined(&["x"], &unchanged, 5), "it does not offer x"),
        (
            declined(&["large"], &missing, 5),
            "image noble of label large is not available",
        ),
        (
            declined(&["large"], &not_found, 5),
            "image noble of label large is not available: there is no active image with os \"noble\"",
        ),
        (
            declined(&["large"], &broken, 5),
            "label large cannot work: there is no flavor m9",
        ),
        (
            declined(&["large", "large"], &unchanged, 1),
            "2 instances needed, pool cloud/main allows 1 in all",
        ),
        (
            declined(&["large", "large"], &unchanged, 5),
            "8 cores needed, provider cloud allows 6 in all",
        ),
        (
            declined(&["large", "large"], &fixed, 5),
            "2 machines with label large needed, 1 exist",
        ),
    ] {
        let expected = format!("cloud/main 200-0000000000 declines: {expected}");
        assert_eq!(log, expected);
    }
}

#[test]
fn an_explanation_survives_storage() {
    let mut launcher = launcher();
    submit(&mut launcher, &["large"]);
    submit(&mut launcher, &["large"]);
    settle(&mut launcher);
    for labels in [&["large", "small"][..], &["arm"], &["huge"], &["small"]] {
        let id = submit(&mut launcher, labels);
        let explanation = explain(&launcher, id);
        let json = serde_json::to_string(&explanation).unwrap();
        let read: AssignmentExplanation = serde_json::from_str(&json).unwrap();
        assert_eq!(read, explanation);
    }
    let waiting = explain(&launcher, "200-0000000002".parse().unwrap());
    let json = serde_json::to_value(&waiting.pools[0].verdict).unwrap();
    assert_eq!(
        json,
        serde_json::json!({"ours": {"reserve": {"quota": {
            "ledger": {"provider": "cloud"},
            "resource": "cores",
            "limit": 8, "foreign": 0, "used": 8, "launching": 0, "kept": 0, "needed": 5,
        }}}})
    );
    assert_eq!(cost("large"), Resources::new(4, 1, 8000));
}
