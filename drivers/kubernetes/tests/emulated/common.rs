//! Providers on a cluster in memory.

use std::sync::Arc;

use nodeyard_driver::kit::Faults;
use nodeyard_driver_kubernetes::{KubernetesDriver, Options};

pub(crate) use crate::caller::*;
use crate::cluster::{ConnectEmulated, EmulatedCluster};

/// A provider on a cluster in memory.
pub(crate) fn driver(cluster: &Arc<EmulatedCluster>, options: Options) -> KubernetesDriver {
    let connect = ConnectEmulated {
        cluster: Arc::clone(cluster),
        faults: Faults::none(),
    };
    driver_through(options, connect)
}
