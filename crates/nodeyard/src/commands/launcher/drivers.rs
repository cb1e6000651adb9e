//! The table of the drivers of this program.

use std::sync::Arc;

use nodeyard_config::Config;
use nodeyard_driver_common::DriverKinds;
use nodeyard_driver_container::ContainerKind;
use nodeyard_driver_fake::{FakeKind, SimulatedClouds};
#[cfg(feature = "kubernetes")]
use nodeyard_driver_kubernetes::{KubernetesKind, OpenShiftKind, OpenShiftPodsKind};
use nodeyard_driver_metastatic::MetastaticKind;
#[cfg(feature = "openstack")]
use nodeyard_driver_openstack::OpenStackKind;
use nodeyard_driver_qemu::QemuKind;
use nodeyard_driver_static::StaticKind;
use nodeyard_nodescan::Scanner;
use tokio::sync::watch;

use crate::store_access;

/// Returns the drivers. There is one table per process, so that all users see the same simulated clouds; `cloud_url` is
/// that of simulated clouds in another process. Some drivers need more of the configuration than their own section.
pub(super) fn kinds(
    cloud_url: Option<String>,
    scanner: &Arc<dyn Scanner>,
    config: watch::Receiver<Arc<Config>>,
) -> DriverKinds {
    let kinds = DriverKinds::default()
        .with(StaticKind::new(Arc::clone(scanner)))
        .with(MetastaticKind)
        .with(ContainerKind::new(config.clone(), Arc::clone(scanner)))
        .with(QemuKind::new(config, |config| {
            Ok(store_access::state_dir(Some(config))?)
        }))
        .with(FakeKind::new(Arc::new(SimulatedClouds::new(cloud_url))));
    #[cfg(feature = "openstack")]
    let kinds = kinds.with(OpenStackKind);
    #[cfg(feature = "kubernetes")]
    let kinds = kinds
        .with(KubernetesKind::new(Arc::clone(scanner)))
        .with(OpenShiftKind::new(Arc::clone(scanner)))
        .with(OpenShiftPodsKind::new(Arc::clone(scanner)));
    kinds
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use nodeyard_config::{Environment, Mode, load_bytes};
    use nodeyard_nodescan::NetworkScanner;

    use super::*;

    /// Only checked, not served.
    const UNSERVED: &str = "aws";

    #[test]
    #[cfg(all(feature = "kubernetes", feature = "openstack"))]
    fn the_table_has_every_driver_of_the_configuration() {
        let schema = nodeyard_config::schema();
        let configured = &schema["$defs"]["Provider"]["properties"]["driver"]["enum"];
        let configured = configured.as_array().unwrap().iter();
        let mut configured: BTreeSet<&str> =
            configured.map(|name| name.as_str().unwrap()).collect();
        assert!(configured.remove(UNSERVED));
        let scanner: Arc<dyn Scanner> = Arc::new(NetworkScanner::default());
        let file = (Path::new("nodepool.yaml"), &b"{}"[..]);
        let (config, _) = load_bytes(file, None, &Environment::default(), Mode::Daemon);
        let (_, config) = watch::channel(Arc::new(config.unwrap()));
        let kinds = kinds(None, &scanner, config);
        assert_eq!(kinds.names().collect::<BTreeSet<_>>(), configured);
    }
}
