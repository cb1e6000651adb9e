//! Images in the configuration of drivers.

use nodeyard_config as config;
use nodeyard_driver::{Error, ImageFilter};
use nodeyard_model::ImageName;

/// The image that machines of a label boot from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelImage {
    /// An uploaded image.
    Disk(ImageName),
    /// The name of an entry of `cloud-images`.
    Cloud(Box<str>),
}

impl LabelImage {
    /// `disk` and `cloud` are the values of `diskimage` and `cloud-image` of `label`.
    pub fn of(
        label: &config::Name,
        disk: Option<&config::Name>,
        cloud: Option<&config::Name>,
    ) -> Result<Self, Error> {
        match (disk, cloud) {
            (Some(image), _) => Ok(Self::Disk(image_name(image)?)),
            (None, Some(image)) => Ok(Self::Cloud(image.as_str().into())),
            (None, None) => Err(Error::permanent(format!(
                "label {label} has no image; give it a `diskimage` or a `cloud-image`"
            ))),
        }
    }
}

/// Parses the name of a built image.
pub fn image_name(name: &str) -> Result<ImageName, Error> {
    ImageName::new(name)
        .map_err(|cause| Error::permanent(format!("invalid image name {name:?}")).because(cause))
}

pub fn image_filters(filters: &[config::ImageFilter]) -> Vec<ImageFilter> {
    let filters = filters.iter().map(|filter| ImageFilter {
        name: filter.name.clone(),
        values: filter.values.clone(),
    });
    filters.collect()
}
