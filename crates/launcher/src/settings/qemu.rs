//! Settings of virtual machines on this host.

use nodeyard_config::Qemu;
use nodeyard_model::Label;

use super::{Access, LabelSettings, Settings, image_of, local_pool};
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
        local_pool(&pool.common, (pool.max_cores, pool.max_ram), labels)
    });
    Ok(Settings::new(
        section.launch_timeout,
        section.boot_timeout,
        section.launch_retries,
        pools.collect::<Result<_, _>>()?,
    ))
}
