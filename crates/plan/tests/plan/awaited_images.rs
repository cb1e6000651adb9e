//! Requests that wait for an image that is being made, and those that do not.

use std::time::Duration;

use crate::common::{Launcher, ask, limits, pool_key, setup, time};
use nodeyard_model::{Opaque, RequestId, RequestState};
use nodeyard_plan::assign::DecisionInputs;
use nodeyard_plan::explain::{AssignmentExplanation, Next};
use nodeyard_plan::images::availability::{ImageStage, PendingImage};
use nodeyard_plan::{LabelReadiness, MIN_READY_REQUESTOR, Policy};

/// A pool whose images come from here, and a second choice.
fn launcher(providers: &[&str]) -> Launcher {
    let mut launcher = Launcher::new(Policy::default());
    for (name, priority) in providers.iter().zip(10..) {
        launcher.provider(name, limits(&[("cores", 8)]), None);
        let servers = limits(&[("instances", 2)]);
        launcher.pool(setup(name, "main", &["small", "large"], servers), priority);
    }
    launcher
}

fn set(launcher: &mut Launcher, provider: &str, readiness: LabelReadiness) {
    let key = pool_key(provider, "main");
    launcher
        .scheduler
        .set_readiness(&key, &"small".into(), readiness);
}

/// An image that is being built since a while.
fn pending() -> LabelReadiness {
    missing(Some(PendingImage {
        stage: ImageStage::Build {
            build: Some("0123456789abcdef0123456789abcdef".parse().unwrap()),
            since: Some(time(940.0)),
        },
        usual: Some(Duration::from_secs(300)),
        then: Some(Duration::from_secs(30)),
    }))
}

fn missing(pending: Option<PendingImage>) -> LabelReadiness {
    let reason = pending.is_none().then(|| "it is paused".into());
    LabelReadiness::ImageMissing {
        image: "debian".into(),
        reason,
        pending: pending.map(Box::new),
    }
}

fn submit_lease(launcher: &mut Launcher, labels: &[&str]) -> RequestId {
    let mut request = ask(labels, launcher.now);
    let data = serde_json::json!({"nodeyard_wait_for_image": true});
    request.requestor_data = Opaque::encode(&data).unwrap();
    launcher.submit(200, request)
}

fn settle(launcher: &mut Launcher) {
    launcher.decide();
    launcher.carry_out_all();
    for node in launcher.building() {
        launcher.finish_launch(node);
    }
    launcher.decide();
}

fn state(launcher: &Launcher, id: RequestId) -> RequestState {
    launcher.requests[&id].state
}

fn explain(launcher: &Launcher, id: RequestId) -> AssignmentExplanation {
    let at = DecisionInputs {
        now: launcher.now,
        seed: 0,
    };
    launcher.scheduler.explain(id, at).unwrap()
}

#[test]
fn a_lease_waits_and_other_requests_do_not() {
    let mut launcher = launcher(&["cloud"]);
    set(&mut launcher, "cloud", pending());
    let zuul = launcher.submit(200, ask(&["small"], launcher.now));
    let lease = submit_lease(&mut launcher, &["large", "small"]);
    settle(&mut launcher);
    assert_eq!(state(&launcher, zuul), RequestState::Failed);
    assert_eq!(state(&launcher, lease), RequestState::Requested);
    set(&mut launcher, "cloud", LabelReadiness::Ready);
    settle(&mut launcher);
    assert_eq!(launcher.fulfilled(), [lease]);
}

#[test]
fn with_a_waiting_label_all_but_min_ready_requests_wait() {
    let mut launcher = launcher(&["cloud"]);
    launcher
        .scheduler
        .set_labels_that_wait(["small".into()].into());
    set(&mut launcher, "cloud", pending());
    let zuul = launcher.submit(200, ask(&["small"], launcher.now));
    let mut idle = ask(&["small"], launcher.now);
    idle.requestor = Some(MIN_READY_REQUESTOR.into());
    let idle = launcher.submit(900, idle);
    settle(&mut launcher);
    assert_eq!(state(&launcher, idle), RequestState::Failed);
    assert_eq!(state(&launcher, zuul), RequestState::Requested);
    // The label is changed back.
    launcher.scheduler.set_labels_that_wait([].into());
    settle(&mut launcher);
    assert_eq!(state(&launcher, zuul), RequestState::Failed);
}

#[test]
fn it_fails_with_the_reason_when_the_image_does_not_come() {
    let mut launcher = launcher(&["cloud"]);
    set(&mut launcher, "cloud", pending());
    let lease = submit_lease(&mut launcher, &["small"]);
    settle(&mut launcher);
    set(&mut launcher, "cloud", missing(None));
    settle(&mut launcher);
    assert_eq!(state(&launcher, lease), RequestState::Failed);
    let last = launcher.log.last().unwrap();
    let expected = "declines: image debian of label small is not available: it is paused";
    assert!(last.ends_with(expected), "{last}");
}

#[test]
fn what_can_never_be_served_is_not_waited_for() {
    let mut launcher = launcher(&["cloud"]);
    set(&mut launcher, "cloud", pending());
    let lease = submit_lease(&mut launcher, &["small", "small", "small"]);
    settle(&mut launcher);
    assert_eq!(state(&launcher, lease), RequestState::Failed);
}

#[test]
fn it_keeps_no_room_and_delays_no_other() {
    let mut launcher = launcher(&["cloud"]);
    set(&mut launcher, "cloud", pending());
    let lease = submit_lease(&mut launcher, &["small"]);
    settle(&mut launcher);
    launcher.advance(1000.0);
    let others = [(); 2].map(|()| launcher.submit(200, ask(&["large"], launcher.now)));
    settle(&mut launcher);
    assert_eq!(launcher.fulfilled(), others);
    assert_eq!(state(&launcher, lease), RequestState::Requested);
}

#[test]
fn a_pool_that_has_the_image_does_not_leave_the_request_to_one_that_has_not() {
    let mut launcher = launcher(&["first", "second"]);
    set(&mut launcher, "first", pending());
    let lease = submit_lease(&mut launcher, &["small"]);
    settle(&mut launcher);
    assert_eq!(launcher.fulfilled(), [lease]);
    let node = launcher.requests[&lease].nodes[0];
    let provider = launcher.nodes[&node].provider.as_ref();
    assert_eq!(provider.unwrap().as_str(), "second");
}

#[test]
fn the_first_image_that_comes_serves() {
    let mut launcher = launcher(&["first", "second"]);
    set(&mut launcher, "first", pending());
    set(&mut launcher, "second", pending());
    let lease = submit_lease(&mut launcher, &["small"]);
    settle(&mut launcher);
    assert_eq!(state(&launcher, lease), RequestState::Requested);
    // One of them will never have it, which is no reason to fail.
    set(&mut launcher, "first", missing(None));
    settle(&mut launcher);
    assert_eq!(state(&launcher, lease), RequestState::Requested);
    set(&mut launcher, "second", LabelReadiness::Ready);
    settle(&mut launcher);
    assert_eq!(launcher.fulfilled(), [lease]);
}

#[test]
fn the_explanation_names_the_build_and_when_it_should_be_done() {
    let mut launcher = launcher(&["cloud"]);
    set(&mut launcher, "cloud", pending());
    let lease = submit_lease(&mut launcher, &["small"]);
    settle(&mut launcher);
    let mut explained = explain(&launcher, lease);
    assert!(matches!(&explained.next, Next::Room { .. }));
    assert_eq!(
        explained.to_string(),
        "request 200-0000000000 for small is requested, known for 0 s, 0 before it\n  \
         cloud/main: cannot serve it yet: image debian of label small is being built \
         (build 0123456789abcdef0123456789abcdef), should be ready in 4 min 30 s\n\
         next: image debian has to be built and uploaded to cloud, then cloud/main serves it\n"
    );
    let json = serde_json::to_string(&explained).unwrap();
    assert_eq!(
        serde_json::from_str::<AssignmentExplanation>(&json).unwrap(),
        explained
    );
    launcher.advance(400.0);
    explained = explain(&launcher, lease);
    let text = explained.to_string();
    assert!(
        text.contains("should have been ready 2 min 10 s ago"),
        "{text}"
    );

    let stage = ImageStage::UploadRetry {
        build: None,
        failures: 1,
        until: time(1460.0),
        reason: "the cloud is down".to_owned(),
    };
    let pending = PendingImage {
        stage,
        usual: None,
        then: None,
    };
    set(&mut launcher, "cloud", missing(Some(pending)));
    let text = explain(&launcher, lease).to_string();
    let expected = "image debian of label small failed to upload to cloud once, is tried again in 1 min: the cloud \
                    is down\nnext: image debian has to be uploaded to cloud, then";
    assert!(text.contains(expected), "{text}");
}
