use serde_json::{Value, json};

use super::*;

fn pod(status: &Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap()
}

fn waiting(reason: &str, message: &str) -> Value {
    json!({"phase": "Pending", "containerStatuses": [{
        "name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": reason, "message": message}},
        "lastState": {"terminated": {"exitCode": 3, "reason": "Error"}},
    }]})
}

fn running(ready: &str) -> Value {
    json!({"phase": "Running",
        "conditions": [{"type": "Ready", "status": ready}],
        "containerStatuses": [{
            "name": "main", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {}},
        }],
    })
}

fn failure(status: &Value) -> (ErrorClass, String) {
    match judge(&pod(status)) {
        PodState::Failed(error) => (error.class(), error.to_string()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_can_never_run_fails_with_the_clusters_own_words() {
    let (class, text) = failure(&waiting("InvalidImageName", "no such name"));
    assert_eq!(class, ErrorClass::Permanent);
    assert!(
        text.contains("no such name") && text.contains("main"),
        "{text}"
    );
    assert_eq!(
        failure(&waiting("ErrImageNeverPull", "")).0,
        ErrorClass::Permanent
    );
    let (_, text) = failure(&waiting("CrashLoopBackOff", "back-off 10s"));
    assert!(text.contains("exit code 3"), "{text}");
}

#[test]
fn an_image_that_cannot_be_pulled_yet_is_waited_for() {
    for reason in ["ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"] {
        match judge(&pod(&waiting(reason, "503"))) {
            PodState::PullFails(text) => {
                assert!(text.contains("503") && text.contains("main"), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
    let mut status = waiting("ErrImagePull", "503");
    let broken = waiting("InvalidImageName", "")["containerStatuses"][0].clone();
    let containers = status["containerStatuses"].as_array_mut().unwrap();
    containers.push(broken);
    assert_eq!(failure(&status).0, ErrorClass::Permanent);
}

#[test]
fn a_container_that_is_on_its_way_is_waited_for() {
    for status in [
        json!({}),
        json!({"phase": "Pending"}),
        waiting("ContainerCreating", ""),
        waiting("ErrImagePull", "pull QPS exceeded"),
    ] {
        assert!(matches!(judge(&pod(&status)), PodState::Waiting(_)));
    }
    let no_status: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}})).unwrap();
    assert!(matches!(judge(&no_status), PodState::Waiting(_)));
}

#[test]
fn a_pod_that_runs_may_not_be_ready() {
    assert!(matches!(
        judge(&pod(&running("True"))),
        PodState::Running { ready: true }
    ));
    assert!(matches!(
        judge(&pod(&running("False"))),
        PodState::Running { ready: false }
    ));
    // Between two tries of a container that ends each time.
    let mut status = running("False");
    status["containerStatuses"][0]["state"] = json!({"terminated": {"exitCode": 1}});
    match judge(&pod(&status)) {
        PodState::Waiting(text) => assert!(text.contains("exit code 1"), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pod_that_has_ended_is_not_waited_for() {
    let (class, text) =
        failure(&json!({"phase": "Failed", "reason": "Evicted", "message": "disk"}));
    assert_eq!(class, ErrorClass::Failed);
    assert!(text.contains("Evicted") && text.contains("disk"), "{text}");
    assert_eq!(
        failure(&json!({"phase": "Succeeded"})).0,
        ErrorClass::Failed
    );
    assert_eq!(
        failure(&json!({"phase": "Failed", "reason": "OutOfcpu"})).0,
        ErrorClass::Capacity
    );
    let gone = json!({"metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "status": running("True")});
    let gone: Pod = serde_json::from_value(gone).unwrap();
    assert!(matches!(judge(&gone), PodState::Failed(_)));
}

#[test]
fn what_the_scheduler_says_is_told_unless_it_makes_room() {
    let status = json!({"phase": "Pending", "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 Insufficient cpu.",
    }]});
    match judge(&pod(&status)) {
        PodState::Unschedulable {
            message,
            fits_no_node: false,
        } => assert!(message.contains("Insufficient cpu")),
        other => panic!("{other:?}"),
    }
    let mut promised = status;
    promised["nominatedNodeName"] = "n1".into();
    assert!(matches!(judge(&pod(&promised)), PodState::Waiting(_)));
}
