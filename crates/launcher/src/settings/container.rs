//! Containers on this host.

use nodeyard_config::{Container, ContainerLabel, Reach};
use nodeyard_model::{ConnectionPort, Label, ResourceName};

use super::{Access, LabelSettings, Settings, common, image_of};
use crate::error::StartError;

pub(super) fn settings(section: &Container) -> Result<Settings, StartError> {
    let pools = section.pools.iter().map(|pool| {
        let labels = pool.labels.iter().map(|label| {
            let cloud = label.cloud_image.as_ref().map(|name| name.as_str());
            let settings = LabelSettings {
                image: image_of(label.diskimage.as_ref(), cloud.or(label.image.as_deref()))?,
                // What is reached by exec has no port to look at.
                host_key_checking: label.host_key_checking && label.connection == Reach::Ssh,
                access: access(section, label),
            };
            Ok((Label::new(label.name.as_str()), settings))
        });
        let labels = labels.collect::<Result<_, StartError>>()?;
        let limits = [
            (ResourceName::CORES, pool.max_cores),
            (ResourceName::RAM, pool.max_ram),
        ];
        Ok(common(&pool.common, limits, labels))
    });
    Ok(Settings {
        launch_timeout: *section.launch_timeout,
        boot_timeout: *section.boot_timeout,
        launch_attempts: section.launch_retries.max(1),
        max_launches: None,
        ignore_quota: false,
        pools: pools.collect::<Result<_, StartError>>()?,
    })
}

/// The driver adds the port, which the runtime chooses.
fn access(section: &Container, label: &ContainerLabel) -> Access {
    let entry = section.image_access(label.diskimage.as_ref(), label.cloud_image.as_ref());
    Access {
        connection_port: ConnectionPort::Number(label.ssh_port.0),
        ..Access::of(entry)
    }
}
