//! `driver: metastatic` as the launcher sees it.

use std::sync::Arc;

use nodeyard_config::Metastatic;
use nodeyard_driver::{Driver, Error};
use nodeyard_driver_common::{
    DriverContext, DriverKind, LabelSettings, PoolSettings, ProviderSettings,
};
use nodeyard_model::{Clock, Label};

use crate::{MetastaticDriver, identity};

#[derive(Debug)]
pub struct MetastaticKind;

impl DriverKind for MetastaticKind {
    type Section = Metastatic;

    fn name(&self) -> &'static str {
        "metastatic"
    }

    fn settings(&self, section: &Metastatic) -> Result<ProviderSettings, Error> {
        let pools = section.pools.iter().map(|pool| {
            let labels = pool.labels.iter().map(|label| {
                let settings = LabelSettings {
                    host_key_checking: label.host_key_checking,
                    // The backing node provides how it is reached.
                    ..LabelSettings::without_image()
                };
                (Label::new(label.name.as_str()), settings)
            });
            PoolSettings::of(&pool.common, [], labels.collect())
        });
        let settings = ProviderSettings::new(
            section.launch_timeout,
            section.boot_timeout,
            section.launch_retries,
            pools.collect(),
        );
        Ok(ProviderSettings {
            ignore_quota: true,
            ..settings
        })
    }

    fn make(
        &self,
        section: &Metastatic,
        context: DriverContext<'_>,
    ) -> Result<Arc<dyn Driver>, Error> {
        let source = context.backing.ok_or_else(|| {
            Error::permanent("slots on machines of other providers are managed by a launcher only")
        })?;
        let owner = context.owner;
        let backing = source.open(&identity(&owner.provider));
        let driver = MetastaticDriver::new(section, owner, backing, Clock::system());
        Ok(Arc::new(driver))
    }
}
