//! The driver kit on OpenShift. Each run takes some seconds, so few points are tried; the emulation sees them all.

use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::bed::survive;
use crate::common::bed;

#[tokio::test(flavor = "multi_thread")]
async fn a_project_survives_faults_of_every_kind() {
    let Some(bed) = bed() else { return };
    let kubeconfig = Kubeconfig::read_from(&bed.provider).unwrap();
    let current = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &current);
    let config = config.await.unwrap();
    let label = "type: project, registry-access: none";
    let report = survive(bed.cluster(), config, 97, "openshift", label).await;
    assert!(report.runs > 5, "{} runs", report.runs);
}
