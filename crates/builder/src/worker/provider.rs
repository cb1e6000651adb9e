//! Upload settings of a provider from the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nodeyard_config::{Config, ImageCompression, Object, Provider};
use nodeyard_driver::{Owner, SystemId, template};
use nodeyard_driver_common::{DriverKinds, ImageUploadSettings};
use nodeyard_image::{DiskCompression, ImageId};
use nodeyard_model::{BuildId, ImageName, ProviderName, Timestamp, UploadId};

use super::task_error::TaskError;

/// The default image format, as in OpenStack.
const DEFAULT_FORMAT: &str = "qcow2";

const DEFAULT_NAME: &str = "{image_name}-{timestamp}";

/// The maximum length of an installation id, which is stored in cloud metadata.
const MAX_SYSTEM_LENGTH: usize = 128;

/// The upload settings of an image at a provider.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ProviderUploadSettings {
    pub(super) format: Box<str>,
    /// The compression of converted files.
    pub(super) compression: DiskCompression,
    name_format: Box<str>,
    pub(super) hook: Option<Box<str>>,
    pub(super) timeout: Option<Duration>,
    /// The metadata of the image, overridden by that of the provider.
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) marks: Vec<Box<str>>,
}

impl ProviderUploadSettings {
    /// Returns the settings, or `None` if the provider does not use the image.
    pub(super) fn of(
        kinds: &DriverKinds,
        config: &Config,
        provider: &Provider,
        image: &str,
    ) -> Option<Self> {
        let images = provider.diskimages();
        images.into_iter().find(|name| name.as_str() == image)?;
        let settings = driver_settings(kinds, provider, image);
        let name_format = settings.name_format.as_deref();
        let mut upload = Self {
            format: format(provider).into(),
            compression: compression(kinds, config, provider, image),
            name_format: name_format.unwrap_or(DEFAULT_NAME).into(),
            hook: settings.hook,
            timeout: settings.timeout,
            metadata: BTreeMap::new(),
            marks: settings.tags,
        };
        if let Some(image) = config.images.get(image) {
            upload.add(&image.metadata);
        }
        upload.add(&settings.metadata);
        Some(upload)
    }

    fn add(&mut self, metadata: &Object) {
        let texts = metadata.iter().map(|(key, value)| {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            (key.clone(), text)
        });
        self.metadata.extend(texts);
    }

    /// Returns the name of an upload in the cloud.
    pub(super) fn external_name(
        &self,
        image: &ImageName,
        upload: UploadId,
        now: Timestamp,
    ) -> Result<Box<str>, TaskError> {
        let timestamp = format!("{:.0}", now.as_secs().floor());
        let name = template::fill(&self.name_format, |field| match field {
            "image_name" => Some(image.to_string()),
            "upload_id" => Some(upload.to_string()),
            "timestamp" => Some(timestamp.clone()),
            _ => None,
        });
        name.map(Into::into).map_err(|_| {
            TaskError::refused(format!(
                "image-name-format `{}` has more than {{image_name}}, {{upload_id}} and {{timestamp}} in braces",
                self.name_format
            ))
        })
    }
}

/// Returns the image format of a provider.
fn format(provider: &Provider) -> &str {
    provider.image_format().unwrap_or(DEFAULT_FORMAT)
}

/// Returns the compression of files that are converted for a provider. Providers with the same format share a file, so zstd is
/// used only if all of them support it.
fn compression(
    kinds: &DriverKinds,
    config: &Config,
    provider: &Provider,
    image: &str,
) -> DiskCompression {
    let wanted = |provider| match driver_settings(kinds, provider, image).compression {
        ImageCompression::Zlib => DiskCompression::Zlib,
        ImageCompression::Zstd => DiskCompression::Zstd,
        ImageCompression::None => DiskCompression::None,
    };
    let mut other_providers = config
        .providers_of_image(image)
        .filter(|other| format(other) == format(provider));
    match wanted(provider) {
        DiskCompression::Zstd
            if other_providers.any(|other| wanted(other) != DiskCompression::Zstd) =>
        {
            DiskCompression::Zlib
        }
        wanted => wanted,
    }
}

/// Returns the settings of the driver; the default for a provider whose driver this program does not have.
fn driver_settings(kinds: &DriverKinds, provider: &Provider, image: &str) -> ImageUploadSettings {
    let kind = kinds.get(provider).ok();
    kind.and_then(|kind| kind.image_upload(image).ok())
        .unwrap_or_default()
}

/// Returns the formats of an image and of the providers that use it.
pub(super) fn formats(config: &Config, image: &str) -> BTreeSet<String> {
    let own = config
        .images
        .get(image)
        .into_iter()
        .flat_map(|image| &image.formats);
    let providers = config
        .providers_of_image(image)
        .map(|p| format(p).to_owned());
    own.cloned().chain(providers).collect()
}

/// Validates the installation id of a job.
pub(super) fn managed(system: Option<&str>) -> Result<Option<Box<str>>, TaskError> {
    let Some(system) = system else {
        return Ok(None);
    };
    if system.is_empty() || system.len() > MAX_SYSTEM_LENGTH || system.chars().any(char::is_control)
    {
        return Err(TaskError::refused(
            "`managed` is not a valid installation id",
        ));
    }
    Ok(Some(system.into()))
}

/// Returns the owner of an upload: the installation of the job, otherwise this builder, so that it is not treated as a leak.
pub(super) fn owner(managed: Option<&str>, builder_id: &str, provider: &ProviderName) -> Owner {
    let system = match managed {
        Some(system) => SystemId::new(system),
        None => SystemId::new(format!("builder-{builder_id}")),
    };
    Owner {
        system,
        provider: provider.clone(),
    }
}

/// Returns the build id for the tags of an upload. Image ids that are not build ids are hashed to a stable one.
pub(super) fn build_id(id: &ImageId) -> BuildId {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    id.build().unwrap_or_else(|| {
        let fnv = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(PRIME);
        BuildId::from_u128(id.as_str().bytes().fold(OFFSET, fnv))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_filled_in_as_python_does() {
        for (template, expected) in [
            ("{image_name}-x", Some("trusty-x")),
            ("{{{upload_id}}}", Some("{0000000007}")),
            ("{timestamp}", Some("1500")),
            ("{other}", None),
        ] {
            let settings = ProviderUploadSettings {
                format: DEFAULT_FORMAT.into(),
                compression: DiskCompression::None,
                name_format: template.into(),
                hook: None,
                timeout: None,
                metadata: BTreeMap::new(),
                marks: Vec::new(),
            };
            let (image, upload) = ("trusty".parse().unwrap(), "0000000007".parse().unwrap());
            let now = Timestamp::from_secs(1500.9).unwrap();
            let name = settings.external_name(&image, upload, now).ok();
            assert_eq!(name.as_deref(), expected, "{template}");
        }
    }

    #[test]
    fn foreign_ids_have_their_own_builds() {
        let build = |id: &str| build_id(&id.parse().unwrap());
        let own = "0123456789abcdef0123456789abcdef";
        assert_eq!(build(own).to_string(), own);
        assert_eq!(build("42"), build("42"));
        assert_ne!(build("42"), build("43"));
    }

    #[test]
    fn an_installation_is_named_by_something_printable() {
        assert_eq!(managed(None), Ok(None));
        assert_eq!(managed(Some("abc")), Ok(Some("abc".into())));
        for bad in ["", "a\nb", &"x".repeat(200)] {
            assert!(managed(Some(bad)).is_err(), "{bad:?}");
        }
    }
}
