//! The settings of OpenStack clouds that the launcher and the builder act on.

use nodeyard_config::{Limit, OpenStackPool, OpenStackSettings};
use nodeyard_driver::Error;
use nodeyard_model::{Label, ResourceName};

use crate::settings::{
    AccessSettings, ImageSettings, ImageUploadSettings, LabelSettings, PoolSettings,
    ProviderSettings,
};

pub fn provider_settings(section: &OpenStackSettings) -> Result<ProviderSettings, Error> {
    let pools = section.pools.iter().map(|pool| {
        let labels = pool.labels.iter().map(|label| {
            let (disk, cloud) = (label.diskimage.as_ref(), label.cloud_image.as_ref());
            let settings = LabelSettings {
                image: ImageSettings::of(disk, cloud.map(|name| name.as_str()))?,
                host_key_checking: label.host_key_checking,
                access: AccessSettings::of(section.image_access(disk, cloud)),
            };
            Ok((Label::new(label.name.as_str()), settings))
        });
        let labels = labels.collect::<Result<_, Error>>()?;
        Ok(PoolSettings::of(&pool.common, limits(pool), labels))
    });
    let settings = ProviderSettings::new(
        section.launch_timeout,
        section.boot_timeout,
        section.launch_retries,
        pools.collect::<Result<_, Error>>()?,
    );
    Ok(ProviderSettings {
        ignore_quota: section.pools.iter().all(|pool| pool.ignore_provider_quota),
        ..settings
    })
}

/// Returns how the image of this name is uploaded.
pub fn image_upload_settings(section: &OpenStackSettings, image: &str) -> ImageUploadSettings {
    let mut entries = section.diskimages.iter();
    let entry = entries.find(|entry| entry.name.as_str() == image);
    let tags = entry.into_iter().flat_map(|entry| &entry.tags);
    ImageUploadSettings {
        compression: section.image_compression,
        name_format: Some(section.image_name_format.as_str().into()),
        hook: section.post_upload_hook.as_deref().map(Into::into),
        timeout: Some(*section.image_upload_timeout),
        metadata: entry.map(|entry| entry.meta.clone()).unwrap_or_default(),
        tags: tags.map(|tag| tag.as_str().into()).collect(),
    }
}

fn limits(pool: &OpenStackPool) -> [(ResourceName, Limit); 4] {
    [
        (ResourceName::CORES, pool.max_cores),
        (ResourceName::RAM, pool.max_ram),
        ("volumes".into(), pool.max_volumes),
        ("volume-gb".into(), pool.max_volume_gb),
    ]
}
