//! What can go wrong, and what is said about it.

use std::sync::Arc;
use std::time::Duration;

use nodeyard_driver::{ErrorClass, Machines as _, Progress, Target};
use nodeyard_driver_kubernetes::{Kubeconfig, Options};
use serde_json::json;

use crate::cluster::{EmulatedCluster, waiting};
use crate::common::{
    create, create_reporting, delete, delete_node, driver, driver_through, options, order,
};

const SPACE: &str = "/api/v1/namespaces/main-0000000001";

/// Far longer than a test waits: what fails, fails for another reason than the time.
fn patient(label: &str) -> Options {
    Options {
        pod_limit: Duration::from_secs(3600),
        scheduling_timeout: Duration::ZERO,
        image_pull_timeout: Duration::ZERO,
        ..options("trouble", "kubernetes", label)
    }
}

#[tokio::test]
async fn a_pod_that_can_never_run_fails_with_the_reason() {
    let unschedulable = json!({"phase": "Pending", "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: Insufficient cpu",
    }]});
    for (status, class, words) in [
        (
            waiting("ErrImagePull", "registry says no"),
            ErrorClass::Failed,
            "registry says no",
        ),
        (
            waiting("InvalidImageName", "odd name"),
            ErrorClass::Permanent,
            "odd name",
        ),
        (
            waiting("CreateContainerConfigError", "no secret s"),
            ErrorClass::Failed,
            "no secret s",
        ),
        (
            json!({"phase": "Failed", "message": "evicted"}),
            ErrorClass::Failed,
            "evicted",
        ),
        (unschedulable, ErrorClass::Quota, "Insufficient cpu"),
    ] {
        let cluster = Arc::new(EmulatedCluster::default());
        cluster.behave(|behaviour| {
            behaviour.pod_status = status;
            behaviour.events = vec![json!({
                "metadata": {"name": "e"}, "involvedObject": {}, "type": "Warning", "message": "an event tells more",
            })];
        });
        let driver = driver(&cluster, patient("type: pod, image: i"));
        let order = order("trouble", 1);
        let (error, id) = create(&driver, &order).await.unwrap_err();
        let text = error.to_string();
        assert_eq!(error.class(), class, "{text}");
        assert!(text.contains(words), "{text}");
        assert!(
            class == ErrorClass::Quota || text.contains("an event tells more"),
            "{text}"
        );
        let evidence = driver
            .evidence(&order.pool, &order.label, &id.unwrap())
            .await
            .unwrap();
        assert!(evidence.unwrap().contains("an event tells more"));
        delete_node(&driver, &order).await;
        assert!(cluster.exists().is_empty());
    }
}

#[tokio::test]
async fn a_pod_that_takes_too_long_is_given_up() {
    let cluster = Arc::new(EmulatedCluster::default());
    cluster.behave(|behaviour| behaviour.pod_status = waiting("ContainerCreating", ""));
    let options = Options {
        pod_limit: Duration::ZERO,
        ..options("slow", "kubernetes", "type: pod, image: i")
    };
    let driver = driver(&cluster, options);
    let (error, _) = create(&driver, &order("slow", 1)).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Failed);
    assert!(error.to_string().contains("Pending"), "{error}");
}

#[tokio::test]
async fn what_somebody_deletes_during_a_launch_is_missed() {
    let cluster = Arc::new(EmulatedCluster::default());
    cluster.behave(|behaviour| behaviour.pod_status = waiting("ContainerCreating", ""));
    let driver = driver(&cluster, patient("type: pod, image: i"));
    let order = order("trouble", 1);
    let progress = Progress::default();
    let mut reported = progress.subscribe();
    let sabotage = async {
        let waiting = reported.wait_for(|state| state.stage.is_some());
        waiting.await.unwrap();
        cluster.remove(&format!("{SPACE}/pods/small"));
    };
    let creation = create_reporting(&driver, &order, &progress);
    let (created, ()) = tokio::join!(creation, sabotage);
    let (error, _) = created.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Failed);
    assert!(error.to_string().contains("deleted"), "{error}");
    delete_node(&driver, &order).await;
}

#[tokio::test]
async fn a_namespace_that_never_goes_is_reported_with_the_reason() {
    let cluster = Arc::new(EmulatedCluster::default());
    cluster.behave(|behaviour| behaviour.hindrance = Some("example.com/hold remains"));
    let options = Options {
        delete_limit: Duration::from_millis(50),
        ..options("hangs", "kubernetes", "type: namespace")
    };
    let driver = driver(&cluster, options);
    let order = order("hangs", 1);
    create(&driver, &order).await.unwrap();
    let target = Target::Node {
        node: order.node,
        external_id: Some("main-0000000001".into()),
    };
    let error = delete(&driver, &target).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Retry);
    assert!(error.to_string().contains("example.com/hold"), "{error}");
    cluster.behave(|behaviour| behaviour.hindrance = None);
    delete(&driver, &target).await.unwrap();
    assert!(cluster.exists().is_empty());
}

#[tokio::test]
async fn a_cluster_that_refuses_everything_once_is_asked_again() {
    for (code, reason) in [
        (401, "Unauthorized"),
        (409, "Conflict"),
        (410, "Gone"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
    ] {
        let cluster = Arc::new(EmulatedCluster::default());
        cluster.behave(|behaviour| behaviour.reluctance = Some((code, reason)));
        let driver = driver(
            &cluster,
            options("reluctant", "kubernetes", "type: pod, image: i"),
        );
        let order = order("reluctant", 1);
        let mut tries = 0;
        while let Err((error, _)) = create(&driver, &order).await {
            tries += 1;
            assert!(tries < 20, "{code}: {error}");
        }
        let target = Target::Node {
            node: order.node,
            external_id: None,
        };
        while let Err(error) = delete(&driver, &target).await {
            tries += 1;
            assert!(tries < 30, "{code}: {error}");
        }
        assert!(cluster.exists().is_empty());
    }
}

#[tokio::test]
async fn a_cluster_that_cannot_be_used_is_said_with_the_remedy() {
    let order = order("nowhere", 1);
    let make = || options("nowhere", "kubernetes", "type: namespace");
    let missing = Kubeconfig {
        file: Some("/no/such/kubeconfig".into()),
        context: None,
    };
    let (error, _) = create(&driver_through(make(), missing), &order)
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Credentials);
    assert!(error.to_string().contains("KUBECONFIG"), "{error}");

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubeconfig");
    let nobody = json!({"apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "x", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]});
    std::fs::write(&file, nobody.to_string()).unwrap();
    let through = |context: Option<&str>| Kubeconfig {
        file: Some(file.clone()),
        context: context.map(ToOwned::to_owned),
    };
    let (error, _) = create(&driver_through(make(), through(None)), &order)
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Retry);
    let (error, _) = create(&driver_through(make(), through(Some("other"))), &order)
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Credentials);
    assert!(error.to_string().contains("other"), "{error}");
}
