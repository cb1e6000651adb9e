//! `driver: container` as the launcher and the builder see it.

use std::fmt;
use std::sync::Arc;

use nodeyard_config::{self as config, Config, ContainerLabel, Reach};
use nodeyard_driver::{Driver, Error};
use nodeyard_driver_common::{
    AccessSettings, DriverContext, DriverKind, ImageSettings, ImageUploadSettings, LabelSettings,
    PoolSettings, ProviderSettings,
};
use nodeyard_model::{ConnectionPort, Label, ResourceName};
use nodeyard_nodescan::Scanner;
use tokio::sync::watch;

use crate::{ContainerDriver, Options, Socket};

pub struct ContainerKind {
    /// Contains the users of built images.
    config: watch::Receiver<Arc<Config>>,
    scanner: Arc<dyn Scanner>,
}

impl ContainerKind {
    pub fn new(config: watch::Receiver<Arc<Config>>, scanner: Arc<dyn Scanner>) -> Self {
        Self { config, scanner }
    }
}

impl fmt::Debug for ContainerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ContainerKind")
    }
}

impl DriverKind for ContainerKind {
    type Section = config::Container;

    fn name(&self) -> &'static str {
        "container"
    }

    fn settings(&self, section: &config::Container) -> Result<ProviderSettings, Error> {
        let pools = section.pools.iter().map(|pool| {
            let labels = pool.labels.iter().map(|label| {
                let cloud = label.cloud_image.as_ref().map(|name| name.as_str());
                let image = cloud.or(label.image.as_deref());
                let settings = LabelSettings {
                    image: ImageSettings::of(label.diskimage.as_ref(), image)?,
                    // Containers that are reached by exec have no port to check.
                    host_key_checking: label.host_key_checking && label.connection == Reach::Ssh,
                    access: access(section, label),
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

    fn image_upload(&self, _: &config::Container, _: &str) -> ImageUploadSettings {
        ImageUploadSettings::local()
    }

    fn make(
        &self,
        section: &config::Container,
        context: DriverContext<'_>,
    ) -> Result<Arc<dyn Driver>, Error> {
        let config = Arc::clone(&self.config.borrow());
        let username = |image: &str| Some(config.images.get(image)?.username.clone());
        let options = Options::of(section, context.owner, username)?;
        let socket = Arc::new(Socket::find(section.socket.as_deref()));
        let scanner = Arc::clone(&self.scanner);
        Ok(Arc::new(ContainerDriver::new(options, socket, scanner)))
    }
}

/// The driver provides the port, which the runtime chooses.
fn access(section: &config::Container, label: &ContainerLabel) -> AccessSettings {
    let entry = section.image_access(label.diskimage.as_ref(), label.cloud_image.as_ref());
    AccessSettings {
        connection_port: ConnectionPort::Number(label.ssh_port.0),
        ..AccessSettings::of(entry)
    }
}
