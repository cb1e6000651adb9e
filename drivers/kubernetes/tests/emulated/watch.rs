//! Watches that look alive and report nothing.

use std::sync::Arc;
use std::time::Duration;

use nodeyard_driver::{CreateOrder, Machines as _, Progress};
use nodeyard_driver_kubernetes::KubernetesDriver;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::cluster::EmulatedCluster;
use crate::common::{create_reporting, delete_node, driver, options, order};

/// A driver with half-open watches that have listed the node of the order and its pod, which does not run yet.
async fn half_open() -> (Arc<EmulatedCluster>, KubernetesDriver, CreateOrder) {
    let cluster = Arc::new(EmulatedCluster::default());
    cluster.behave(|behaviour| {
        behaviour.pod_status = json!({"phase": "Pending"});
        behaviour.half_open_watches = true;
    });
    let make = || {
        let options = options("half-open", "kubernetes", "type: pod, image: i");
        driver(&cluster, options)
    };
    let mut order = order("half-open", 1);
    let (first, progress) = (make(), Progress::default());
    let mut reported = progress.subscribe();
    tokio::select! {
        created = create_reporting(&first, &order, &progress) => panic!("{created:?}"),
        waits = reported.wait_for(|state| state.stage.is_some()) => drop(waits.unwrap()),
    }
    order.first_attempt = false;
    let second = make();
    second.list().await.unwrap();
    // Time passes only when nothing else is to be done, so the watches have their lists.
    sleep(Duration::from_millis(1)).await;
    (cluster, second, order)
}

#[tokio::test(start_paused = true)]
async fn a_half_open_watch_does_not_fail_a_running_pod() {
    let (cluster, driver, order) = half_open().await;
    let watches = cluster.watches();
    let progress = Progress::default();
    let mut reported = progress.subscribe();
    let start = async {
        let waiting = reported.wait_for(|state| state.stage.is_some());
        waiting.await.unwrap();
        cluster.behave(|behaviour| behaviour.pod_status = Value::Null);
    };
    let creation = create_reporting(&driver, &order, &progress);
    let (created, ()) = tokio::join!(creation, start);
    created.unwrap();
    assert!(cluster.watches() > watches, "no watch was restarted");
}

#[tokio::test(start_paused = true)]
async fn a_half_open_watch_does_not_delay_a_deletion() {
    let (cluster, driver, order) = half_open().await;
    let watches = cluster.watches();
    delete_node(&driver, &order).await;
    assert!(cluster.exists().is_empty());
    sleep(Duration::from_millis(1)).await;
    assert!(cluster.watches() > watches, "no watch was restarted");
}
