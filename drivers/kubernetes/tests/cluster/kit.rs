//! The driver kit on the real cluster. What the cluster tells by itself passes by the faults, for the driver has to do
//! without it anyway. Each run takes the cluster some seconds, so few points are tried; the emulation sees them all.

use crate::bed::survive;
use crate::common::cluster;
use crate::service::config;

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_survives_faults_of_every_kind() {
    let Some(cluster) = cluster() else { return };
    let label = "type: namespace, cpu: 2";
    let report = survive(cluster, config(cluster).await, 37, "kubernetes", label).await;
    assert!(report.runs > 5, "{} runs", report.runs);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_behind_a_tunnel_survives_faults_of_every_kind() {
    let Some(cluster) = cluster() else { return };
    let label = format!(
        "type: pod, image: '{}', ssh: {{expose: forward}}",
        cluster.image()
    );
    let report = survive(cluster, config(cluster).await, 131, "kubernetes", &label).await;
    assert!(report.runs > 3, "{} runs", report.runs);
}
