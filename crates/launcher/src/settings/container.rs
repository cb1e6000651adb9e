//! Containers on this host.

use nodeyard_config::{Container, ContainerLabel, Reach};
use nodeyard_model::{ConnectionPort, Label};

use super::{Access, LabelSettings, Settings, image_of, local_pool};
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
        local_pool(&pool.common, (pool.max_cores, pool.max_ram), labels)
    });
    Ok(Settings::new(
        section.launch_timeout,
        section.boot_timeout,
        section.launch_retries,
        pools.collect::<Result<_, _>>()?,
    ))
}

/// The driver adds the port, which the runtime chooses.
fn access(section: &Container, label: &ContainerLabel) -> Access {
    let entry = section.image_access(label.diskimage.as_ref(), label.cloud_image.as_ref());
    Access {
        connection_port: ConnectionPort::Number(label.ssh_port.0),
        ..Access::of(entry)
    }
}
