//! Settings of virtual machines on this host.

use nodeyard_config::{Qemu, QemuLabel};
use nodeyard_model::{ConnectionPort, ImageName, Label, ResourceName};

use super::{Access, ImageSettings, LabelSettings, Settings, common};
use crate::error::StartError;

pub(super) fn settings(section: &Qemu) -> Result<Settings, StartError> {
    let pools = section.pools.iter().map(|pool| {
        let labels = pool.labels.iter().map(|label| {
            let settings = LabelSettings {
                image: match (&label.diskimage, &label.cloud_image) {
                    (Some(image), _) => ImageSettings::Managed(ImageName::new(image.as_str())?),
                    (None, Some(image)) => ImageSettings::Cloud(image.as_str().into()),
                    (None, None) => ImageSettings::None,
                },
                host_key_checking: label.host_key_checking,
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

/// The driver knows the port itself: it chooses the one that leads to the guest's.
fn access(section: &Qemu, label: &QemuLabel) -> Access {
    let disk = label
        .diskimage
        .as_ref()
        .and_then(|name| section.diskimages.iter().find(|image| image.name == *name));
    let cloud = label.cloud_image.as_ref().and_then(|name| {
        section
            .cloud_images
            .iter()
            .find(|image| image.name == *name)
    });
    let connection = disk
        .map(|image| &image.connection)
        .or(cloud.map(|image| &image.connection));
    Access {
        connection_type: connection.map_or("ssh".into(), |c| c.connection_type.as_str().into()),
        connection_port: ConnectionPort::Number(connection.map_or(22, |c| c.connection_port.0)),
        username: cloud
            .and_then(|image| image.username.as_deref())
            .map(Into::into),
        python_path: cloud.map_or("auto".into(), |image| image.python_path.as_str().into()),
        shell_type: cloud
            .and_then(|image| image.shell_type.as_deref())
            .map(Into::into),
    }
}
