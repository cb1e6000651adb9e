//! What a launch waits for, and for how long.

use std::sync::Arc;
use std::time::Duration;

use nodeyard_driver::{Error, ErrorClass, Instance, Machines as _, Progress};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::cluster::{EmulatedCluster, waiting};
use crate::common::{driver, options, order};

const FULL: &str = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption \
                    victims found for incoming pod.";
const TOO_SMALL: &str = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 Preemption \
                         is not helpful for scheduling.";
const MISSING: &str = "Failed to pull image \"i\": i: not found";

fn unschedulable(message: &str) -> Value {
    json!({"phase": "Pending", "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
    }]})
}

fn event(reason: &str, message: &str, count: u32) -> Value {
    json!({"metadata": {"name": "e"}, "involvedObject": {}, "reason": reason, "message": message, "count": count})
}

/// Launches a pod whose status is as `steps` say, each with the events of the cluster, and the seconds until the next.
async fn launch(steps: &[(Value, Vec<Value>, u64)]) -> Result<Instance, Error> {
    let cluster = Arc::new(EmulatedCluster::default());
    let change = |status: &Value, events: &[Value]| {
        cluster.behave(|behaviour| {
            behaviour.pod_status = status.clone();
            behaviour.events = events.to_vec();
        });
    };
    let (status, events, _) = &steps[0];
    change(status, events);
    let script = async {
        for (status, events, seconds) in steps {
            change(status, events);
            sleep(Duration::from_secs(*seconds)).await;
        }
        change(&Value::Null, &[]);
        std::future::pending::<()>().await;
    };
    let driver = driver(
        &cluster,
        options("patience", "kubernetes", "type: pod, image: i"),
    );
    let (order, progress) = (order("patience", 1), Progress::default());
    tokio::select! {
        created = driver.create(&order, &progress) => created,
        () = script => unreachable!(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_cluster_is_a_quota_and_no_failure() {
    let error = launch(&[(unschedulable(FULL), vec![], 60)]).await;
    let error = error.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Quota);
    assert!(error.to_string().contains("Insufficient cpu"), "{error}");
    // The class of a pod for which waiting is of no use.
    let error = launch(&[(unschedulable(TOO_SMALL), vec![], 60)]).await;
    let error = error.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Capacity);
    assert!(error.to_string().contains("node-selector"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_unschedulable_for_some_seconds_is_waited_for() {
    let steps = [(unschedulable(FULL), vec![], 20)];
    launch(&steps).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn autoscalers_are_given_their_time() {
    for reason in ["TriggeredScaleUp", "Nominated"] {
        let scales_up = vec![event(reason, "adds a node", 1)];
        let steps = [
            (unschedulable(TOO_SMALL), vec![], 15),
            (unschedulable(TOO_SMALL), scales_up.clone(), 250),
            // The start of the pod has its own time.
            (waiting("ContainerCreating", ""), scales_up.clone(), 250),
        ];
        launch(&steps).await.unwrap();
        let steps = [(unschedulable(FULL), scales_up, 400)];
        let error = launch(&steps).await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Quota, "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pull_that_fails_is_repeated_by_the_cluster() {
    let steps = [
        (
            waiting("ErrImagePull", "503 Service Unavailable"),
            vec![],
            15,
        ),
        (waiting("ImagePullBackOff", "back-off"), vec![], 60),
        (waiting("ErrImagePull", "429 Too Many Requests"), vec![], 30),
    ];
    launch(&steps).await.unwrap();
    let steps = [(
        waiting("ErrImagePull", "503 Service Unavailable"),
        vec![],
        300,
    )];
    let error = launch(&steps).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Failed);
    assert!(error.to_string().contains("503"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_image_that_does_not_exist_is_given_up_after_the_second_pull() {
    let refused = |times| vec![event("Failed", MISSING, times)];
    let steps = [
        (waiting("ErrImagePull", "not found"), refused(1), 15),
        (waiting("ImagePullBackOff", "not found"), refused(1), 30),
    ];
    launch(&steps).await.unwrap();
    let steps = [
        (waiting("ErrImagePull", "not found"), refused(1), 15),
        (waiting("ErrImagePull", "not found"), refused(2), 60),
    ];
    let error = launch(&steps).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Permanent);
    assert!(error.to_string().contains(MISSING), "{error}");
}
