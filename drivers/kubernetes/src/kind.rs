//! `driver: kubernetes`, `openshift` and `openshiftpods` as the launcher sees them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_config::{
    Affinity, ClusterLabel, ClusterPool, Kubernetes, Limit, OpenShift, OpenShiftPods,
};
use nodeyard_driver::{Driver, Error};
use nodeyard_driver_common::{
    AccessSettings, DriverContext, DriverKind, LabelSettings, PoolSettings, ProviderSettings,
};
use nodeyard_model::{ConnectionPort, Label, ResourceName};
use nodeyard_nodescan::Scanner;

use crate::{Kubeconfig, KubernetesDriver, Options};

/// A safety net: the driver gives up earlier, with the reason. Half of it is for an autoscaler, the other for the start of
/// the pod.
const LAUNCH_LIMIT: Duration = Duration::from_secs(660);

/// Declares the kind of one driver of clusters, which differ in their section and in the options made of it.
macro_rules! cluster_kind {
    ($kind:ident, $section:ident, $name:literal, $options:path) => {
        pub struct $kind {
            scanner: Arc<dyn Scanner>,
        }

        impl $kind {
            pub fn new(scanner: Arc<dyn Scanner>) -> Self {
                Self { scanner }
            }
        }

        impl fmt::Debug for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($kind))
            }
        }

        impl DriverKind for $kind {
            type Section = $section;

            fn name(&self) -> &'static str {
                $name
            }

            fn settings(&self, section: &$section) -> Result<ProviderSettings, Error> {
                let patience =
                    (section.scheduling_timeout).saturating_add(*section.image_pull_timeout);
                let settings = settings(&section.pools, section.launch_retries, patience);
                Ok(ProviderSettings {
                    keeps_to_cluster: section.affinity == Affinity::Require,
                    ..settings
                })
            }

            fn make(
                &self,
                section: &$section,
                context: DriverContext<'_>,
            ) -> Result<Arc<dyn Driver>, Error> {
                let options = $options(section, context.owner);
                Ok(connected(options, Arc::clone(&self.scanner)))
            }
        }
    };
}

cluster_kind!(
    KubernetesKind,
    Kubernetes,
    "kubernetes",
    Options::kubernetes
);
cluster_kind!(OpenShiftKind, OpenShift, "openshift", Options::openshift);
cluster_kind!(
    OpenShiftPodsKind,
    OpenShiftPods,
    "openshiftpods",
    Options::openshiftpods
);

/// `patience` is how long a pod may wait for room and for its image.
fn settings(pools: &[ClusterPool], launch_retries: u64, patience: Duration) -> ProviderSettings {
    // How long a server in a pod, and an address for it, may take after the pod runs.
    let ssh = pools.iter().flat_map(|pool| &pool.labels);
    let ssh = ssh.filter_map(|label| label.ssh.as_ref());
    let longest = ssh
        .map(|ssh| ssh.boot_timeout.saturating_add(*ssh.lb_timeout))
        .max();
    let pools = pools.iter().map(|pool| {
        let labels = pool.labels.iter().map(|label| {
            let settings = LabelSettings {
                // The driver waits for pods that are reached by SSH.
                host_key_checking: false,
                access: access(label),
                ..LabelSettings::without_image()
            };
            (Label::new(label.name.as_str()), settings)
        });
        let others = pool.max_resources.iter();
        let others = others.map(|(name, most)| (name.as_str().into(), Limit(Some(*most))));
        let limits = [
            (ResourceName::CORES, pool.max_cores),
            (ResourceName::RAM, pool.max_ram),
        ];
        let limits = limits.into_iter().chain(others);
        PoolSettings::of(&pool.common, limits, labels.collect())
    });
    ProviderSettings {
        launch_timeout: LAUNCH_LIMIT
            .saturating_add(patience)
            .saturating_add(longest.unwrap_or_default()),
        boot_timeout: Duration::ZERO,
        launch_attempts: launch_retries.max(1),
        ignore_quota: true,
        keeps_to_cluster: false,
        pools: pools.collect(),
    }
}

/// The driver provides the address.
fn access(label: &ClusterLabel) -> AccessSettings {
    let connection_type = match label.ssh {
        Some(_) => "ssh",
        None => "kubectl",
    };
    AccessSettings {
        connection_type: connection_type.into(),
        connection_port: ConnectionPort::Null,
        username: None,
        python_path: label.python_path.as_str().into(),
        shell_type: label.shell_type.as_deref().map(Into::into),
    }
}

fn connected(options: Options, scanner: Arc<dyn Scanner>) -> Arc<dyn Driver> {
    let connect = Kubeconfig {
        file: None,
        context: options.context.as_deref().map(Into::into),
    };
    Arc::new(KubernetesDriver::new(options, Arc::new(connect), scanner))
}
