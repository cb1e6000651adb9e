//! Settings of virtual machines on this host.

use nodeyard_config::Qemu;
use nodeyard_model::{Label, ResourceName};

use super::{Access, LabelSettings, Settings, common, image_of};
use crate::error::StartError;

pub(super) fn settings(section: &Qemu) -> Result<Settings, StartError> {
    let pools = section.pools.iter().map(|pool| {
        let labels = pool.labels.iter().map(|label| {
            let (disk, cloud) = (label.diskimage.as_ref(), label.cloud_image.as_ref());
            let settings = LabelSettings {
                image: image_of(disk, cloud.map(|name| name.as_str()))?,
                host_key_checking: label.host_key_checking,
                // The driver knows the port itself: it chooses the one that leads to the guest's.
                access: Access::of(section.image_access(disk, cloud)),
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
