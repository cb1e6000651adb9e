//! `driver: static` as the launcher and the builder see it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_config::Static;
use nodeyard_driver::{Driver, Error};
use nodeyard_driver_common::{
    DriverContext, DriverKind, LabelSettings, PoolSettings, ProviderSettings,
};
use nodeyard_model::Label;
use nodeyard_nodescan::Scanner;

use crate::StaticDriver;

pub struct StaticKind {
    scanner: Arc<dyn Scanner>,
}

impl StaticKind {
    pub fn new(scanner: Arc<dyn Scanner>) -> Self {
        Self { scanner }
    }
}

impl fmt::Debug for StaticKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StaticKind")
    }
}

impl DriverKind for StaticKind {
    type Section = Static;

    fn name(&self) -> &'static str {
        "static"
    }

    fn settings(&self, section: &Static) -> Result<ProviderSettings, Error> {
        let pools = section.pools.iter().map(|pool| {
            let labels = pool.nodes.iter().flat_map(|node| node.labels.iter());
            let labels = labels.map(|label| {
                let name = Label::new(label.as_str());
                (name, LabelSettings::without_image())
            });
            PoolSettings::of(&pool.common, [], labels.collect())
        });
        Ok(ProviderSettings {
            launch_timeout: Duration::ZERO,
            boot_timeout: Duration::ZERO,
            launch_attempts: 1,
            ignore_quota: true,
            keeps_to_cluster: false,
            pools: pools.collect(),
        })
    }

    fn make(&self, section: &Static, context: DriverContext<'_>) -> Result<Arc<dyn Driver>, Error> {
        let (provider, scanner) = (context.owner.provider, Arc::clone(&self.scanner));
        Ok(Arc::new(StaticDriver::new(provider, section, scanner)))
    }
}
