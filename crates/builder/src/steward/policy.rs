//! Converts the configuration of an image to the types of the plan.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use nodeyard_config::{Config, ImageDefinition, ImageSource, Provider, ZuulImage};
use nodeyard_image::Format;
use nodeyard_model::{ImageName, ProviderName};
use nodeyard_plan::canary::CanaryPolicy;
use nodeyard_plan::images::{ImageOrigin, ImagePolicy, Imports, UploadTarget};

/// The default image format of a provider. A worker converts if needed.
const DEFAULT_FORMAT: &str = "qcow2";

pub(super) fn image(config: &Config, name: &ImageName) -> Option<ImagePolicy> {
    let image = config.images.get(name.as_str())?;
    let origin = match &image.source {
        ImageSource::Build(build) => ImageOrigin::Built {
            rebuild_age: build.rebuild_age.0,
        },
        ImageSource::Zuul(zuul) => ImageOrigin::Imported(Imports {
            max_age: zuul.max_age.map(|age| *age),
            disks: Format::convertible().map(Box::from).collect(),
            settings: settings(zuul),
        }),
    };
    Some(ImagePolicy {
        origin,
        pause: image.pause,
        formats: formats(config, image),
        keep_formats: set(&image.keep_formats),
        delete_after_upload: image.delete_after_upload,
        retention: image.retention,
        canary: image
            .canary
            .as_ref()
            .map(|canary| CanaryPolicy::new(canary.share, canary.successes, canary.failure_limit)),
    })
}

/// Returns a fingerprint of the configuration of an import. It may change between versions of this program; then failed imports
/// are retried once.
pub(super) fn settings(zuul: &ZuulImage) -> Box<str> {
    let text = serde_json::to_string(zuul).unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("{:016x}", hasher.finish()).into()
}

/// Returns the formats of the image and of all providers that use it.
fn formats(config: &Config, image: &ImageDefinition) -> BTreeSet<Box<str>> {
    let mut formats = set(&image.formats);
    let takers = config.providers_of_image(&image.name);
    for provider in takers.filter(|provider| provider.manages_images()) {
        formats.insert(provider.image_format().unwrap_or(DEFAULT_FORMAT).into());
    }
    formats
}

/// Returns all providers with uploads, and how they use this image.
pub(super) fn providers(
    config: &Config,
    image: &ImageName,
) -> BTreeMap<ProviderName, Option<UploadTarget>> {
    let managers = config.providers.values();
    managers
        .filter(|provider| provider.manages_images())
        .filter_map(|provider| {
            // The loader rejects names that are invalid in a path.
            let name = provider.name().parse().ok()?;
            Some((name, takes(provider, image)))
        })
        .collect()
}

fn takes(provider: &Provider, image: &ImageName) -> Option<UploadTarget> {
    let is_named = |names: Vec<&nodeyard_config::Name>| {
        let mut names = names.into_iter();
        names.any(|name| name.as_str() == image.as_str())
    };
    is_named(provider.diskimages()).then(|| UploadTarget {
        pause: is_named(provider.paused_diskimages()),
        format: provider.image_format().map(Box::from),
    })
}

fn set<'a>(texts: impl IntoIterator<Item = &'a String>) -> BTreeSet<Box<str>> {
    let texts = texts.into_iter();
    texts.map(|text| Box::from(text.as_str())).collect()
}
