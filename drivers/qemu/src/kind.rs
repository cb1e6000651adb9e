//! `driver: qemu` as the launcher and the builder see it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use nodeyard_config::{Config, Qemu};
use nodeyard_driver::{Driver, Error};
use nodeyard_driver_common::{
    AccessSettings, DriverContext, DriverKind, ImageSettings, ImageUploadSettings, LabelSettings,
    PoolSettings, ProviderSettings,
};
use nodeyard_model::{Label, ResourceName};
use tokio::sync::watch;

use crate::{Options, QemuDriver};

/// Returns the directory for the state of this host.
pub type StateDir =
    fn(&Config) -> Result<PathBuf, Box<dyn std::error::Error + Send + Sync + 'static>>;

pub struct QemuKind {
    /// Contains the users of built images.
    config: watch::Receiver<Arc<Config>>,
    state_dir: StateDir,
}

impl QemuKind {
    pub fn new(config: watch::Receiver<Arc<Config>>, state_dir: StateDir) -> Self {
        Self { config, state_dir }
    }
}

impl fmt::Debug for QemuKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QemuKind")
    }
}

impl DriverKind for QemuKind {
    type Section = Qemu;

    fn name(&self) -> &'static str {
        "qemu"
    }

    fn settings(&self, section: &Qemu) -> Result<ProviderSettings, Error> {
        let pools = section.pools.iter().map(|pool| {
            let labels = pool.labels.iter().map(|label| {
                let (disk, cloud) = (label.diskimage.as_ref(), label.cloud_image.as_ref());
                let settings = LabelSettings {
                    image: ImageSettings::of(disk, cloud.map(|name| name.as_str()))?,
                    host_key_checking: label.host_key_checking,
                    // The driver provides the port: it chooses the one that leads to the guest's.
                    access: AccessSettings::of(section.image_access(disk, cloud)),
                };
                Ok((Label::new(label.name.as_str()), settings))
            });
            let labels = labels.collect::<Result<_, Error>>()?;
            let limits = [
                (ResourceName::CORES, pool.max_cores),
                (ResourceName::RAM, pool.max_ram),
            ];
            Ok(PoolSettings::of(&pool.common, limits, labels))
        });
        Ok(ProviderSettings::new(
            section.launch_timeout,
            section.boot_timeout,
            section.launch_retries,
            pools.collect::<Result<_, Error>>()?,
        ))
    }

    fn image_upload(&self, _: &Qemu, _: &str) -> ImageUploadSettings {
        ImageUploadSettings::local()
    }

    fn make(&self, section: &Qemu, context: DriverContext<'_>) -> Result<Arc<dyn Driver>, Error> {
        let config = Arc::clone(&self.config.borrow());
        let state_dir = (self.state_dir)(&config).map_err(|cause| {
            Error::permanent("failed to find the state directory for machines").because(cause)
        })?;
        let username = |image: &str| Some(config.images.get(image)?.username.clone());
        let options = Options::of(section, context.owner, &state_dir, username)?;
        Ok(Arc::new(QemuDriver::new(options)))
    }
}
