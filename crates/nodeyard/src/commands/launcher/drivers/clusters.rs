//! Drivers of Kubernetes and OpenShift clusters, in a module that can be excluded from the build.

use std::sync::Arc;

use nodeyard_config::{Kubernetes, OpenShift, OpenShiftPods};
use nodeyard_driver::{Driver, Owner};
use nodeyard_driver_kubernetes::{Kubeconfig, KubernetesDriver, Options};
use nodeyard_nodescan::Scanner;

pub(super) fn kubernetes(
    section: &Kubernetes,
    owner: Owner,
    scanner: Arc<dyn Scanner>,
) -> Arc<dyn Driver> {
    connected(Options::kubernetes(section, owner), scanner)
}

pub(super) fn openshift(
    section: &OpenShift,
    owner: Owner,
    scanner: Arc<dyn Scanner>,
) -> Arc<dyn Driver> {
    connected(Options::openshift(section, owner), scanner)
}

pub(super) fn openshiftpods(
    section: &OpenShiftPods,
    owner: Owner,
    scanner: Arc<dyn Scanner>,
) -> Arc<dyn Driver> {
    connected(Options::openshiftpods(section, owner), scanner)
}

fn connected(options: Options, scanner: Arc<dyn Scanner>) -> Arc<dyn Driver> {
    let connect = Kubeconfig {
        file: None,
        context: options.context.as_deref().map(Into::into),
    };
    Arc::new(KubernetesDriver::new(options, Arc::new(connect), scanner))
}
