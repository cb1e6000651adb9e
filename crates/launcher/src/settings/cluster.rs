//! Nodes in clusters, of all three drivers.

use std::time::Duration;

use nodeyard_config::{Affinity, ClusterLabel, ClusterPool, Driver, Limit};
use nodeyard_model::{ConnectionPort, Label, ResourceName};

use super::{Access, ImageSettings, LabelSettings, Settings, common};

/// The driver gives up earlier and says why; this is for one that does not come back. Half of it is for an autoscaler, the
/// other for the start of the pod.
const LAUNCH_LIMIT: Duration = Duration::from_secs(660);

/// `patience` is how long a pod may wait for room and for its image.
pub(super) fn settings(pools: &[ClusterPool], launch_retries: u64, patience: Duration) -> Settings {
    // What a server in a pod, and an address for it, may take after the pod runs.
    let ssh = pools.iter().flat_map(|pool| &pool.labels);
    let ssh = ssh.filter_map(|label| label.ssh.as_ref());
    let longest = ssh
        .map(|ssh| ssh.boot_timeout.saturating_add(*ssh.lb_timeout))
        .max();
    let pools = pools.iter().map(|pool| {
        let labels = pool.labels.iter().map(|label| {
            let settings = LabelSettings {
                image: ImageSettings::None,
                // The driver waits for those that are reached by SSH.
                host_key_checking: false,
                access: access(label),
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
        common(&pool.common, limits, labels.collect())
    });
    Settings {
        launch_timeout: (LAUNCH_LIMIT.saturating_add(patience))
            .saturating_add(longest.unwrap_or_default()),
        boot_timeout: Duration::ZERO,
        launch_attempts: launch_retries.max(1),
        max_launches: None,
        ignore_quota: true,
        pools: pools.collect(),
    }
}

/// Whether a request that names a provider of another cluster is never taken in its place.
pub(crate) fn keeps_to_cluster(driver: &Driver) -> bool {
    let affinity = match driver {
        Driver::Kubernetes(section) => section.affinity,
        Driver::OpenShift(section) => section.affinity,
        Driver::OpenShiftPods(section) => section.affinity,
        _ => return false,
    };
    affinity == Affinity::Require
}

/// The driver adds where it is.
fn access(label: &ClusterLabel) -> Access {
    Access {
        connection_type: if label.ssh.is_some() {
            "ssh"
        } else {
            "kubectl"
        }
        .into(),
        connection_port: ConnectionPort::Null,
        username: None,
        python_path: label.python_path.as_str().into(),
        shell_type: label.shell_type.as_deref().map(Into::into),
    }
}
