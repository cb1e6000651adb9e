//! One cluster for all tests, and looks at it from outside.

use std::sync::LazyLock;

use nodeyard_driver_kubernetes::{Kubeconfig, KubernetesDriver, Options};
use nodeyard_testbeds::{Cluster, skipped};
use serde_json::Value;

pub(crate) use crate::caller::*;

/// None where there can be none, which is said.
pub(crate) fn cluster() -> Option<&'static Cluster> {
    static CLUSTER: LazyLock<Option<Cluster>> =
        LazyLock::new(|| Cluster::start_if_possible().unwrap());
    CLUSTER.as_ref()
}

/// One whose pods and services can be reached from here.
pub(crate) fn own_cluster() -> Option<&'static Cluster> {
    let cluster = cluster()?;
    if !cluster.is_own() {
        skipped(
            "the way to pods of the cluster of KUBECONFIG",
            "without KUBECONFIG a cluster is made whose pods can be reached",
        );
        return None;
    }
    Some(cluster)
}

pub(crate) fn kubeconfig(cluster: &Cluster) -> Kubeconfig {
    Kubeconfig {
        file: Some(cluster.kubeconfig().to_owned()),
        context: None,
    }
}

pub(crate) fn driver(cluster: &Cluster, options: Options) -> KubernetesDriver {
    driver_through(options, kubeconfig(cluster))
}

/// The names of namespaces with a tag of this system.
pub(crate) fn namespaces(cluster: &Cluster, system: &str) -> Vec<String> {
    let selector = format!("nodeyard_system_id={system}");
    let listed = cluster.kubectl(&["get", "namespaces", "-l", &selector, "-o", "name"]);
    listed.unwrap().lines().map(ToOwned::to_owned).collect()
}

pub(crate) fn json(cluster: &Cluster, arguments: &[&str]) -> Value {
    let arguments = [arguments, &["-o", "json"]].concat();
    serde_json::from_str(&cluster.kubectl(&arguments).unwrap()).unwrap()
}
