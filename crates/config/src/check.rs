//! Checks references between labels, images, providers and pools.

use std::collections::{HashMap, HashSet};

use indexmap::IndexMap;

use crate::decode::{Decoder, similar};
use crate::file::LabelConfig;
use crate::images::{DiskImageEntry, ImageDefinition, ImageSource, ZuulImageEntry, missing_format};
use crate::provider::Provider;
use crate::source::Span;
use crate::values::Name;

/// The entries that providers may refer to, including those with errors.
pub(crate) struct ReferenceTargets<'c> {
    pub(crate) labels: &'c [LabelConfig],
    pub(crate) disk_images: &'c [DiskImageEntry],
    pub(crate) zuul_images: &'c [ZuulImageEntry],
    pub(crate) images: &'c IndexMap<String, ImageDefinition>,
}

/// What the section of a driver may be checked against, besides itself.
pub(crate) struct FileReferences<'c> {
    pub(crate) labels: &'c [LabelConfig],
    pub(crate) label_names: &'c HashMap<&'c str, &'c Name>,
    /// The machines of the static providers so far.
    pub(crate) machines: HashMap<MachineKey<'c>, Span>,
}

/// The name, user and port of a machine, which together are unique over all providers.
pub(crate) type MachineKey<'c> = (&'c str, &'c str, u16);

struct Names<'c> {
    labels: HashMap<&'c str, &'c Name>,
    images: HashMap<&'c str, &'c Name>,
    abstract_images: HashSet<&'c str>,
}

impl<'c> Names<'c> {
    fn of(targets: &ReferenceTargets<'c>) -> Self {
        let disk = targets
            .disk_images
            .iter()
            .map(|entry| (&*entry.name, entry.is_abstract));
        let zuul = targets
            .zuul_images
            .iter()
            .filter_map(|entry| Some((entry.name()?, entry.is_abstract)));
        let (templates, images): (Vec<_>, Vec<_>) =
            disk.chain(zuul).partition(|(_, is_abstract)| *is_abstract);
        Self {
            labels: by_text(targets.labels.iter().map(|label| &label.name)),
            images: by_text(images.into_iter().map(|(name, _)| name)),
            abstract_images: templates
                .into_iter()
                .map(|(name, _)| name.as_str())
                .collect(),
        }
    }
}

fn by_text<'c>(names: impl Iterator<Item = &'c Name>) -> HashMap<&'c str, &'c Name> {
    names.map(|name| (name.as_str(), name)).collect()
}

/// Checks references of providers, and names that must be unique.
pub(crate) fn check_references(
    providers: &[Provider],
    targets: &ReferenceTargets<'_>,
    decoder: &mut Decoder<'_>,
) {
    let names = Names::of(targets);
    let mut references = FileReferences {
        labels: targets.labels,
        label_names: &names.labels,
        machines: HashMap::new(),
    };
    for provider in providers {
        check_images(provider, targets.images, &names, decoder);
        pools(provider, &names, decoder);
        let section = provider.driver.as_section();
        section.check_references(&mut references, decoder);
    }
}

fn check_images(
    provider: &Provider,
    images: &IndexMap<String, ImageDefinition>,
    names: &Names<'_>,
    decoder: &mut Decoder<'_>,
) {
    check_unique(provider.diskimages(), "image of this provider", decoder);
    check_unique(
        provider.cloud_images(),
        "cloud image of this provider",
        decoder,
    );
    for image in provider
        .diskimages()
        .into_iter()
        .filter(|image| !image.is_empty())
    {
        if names.images.contains_key(image.as_str()) {
            check_format(provider, image, images, decoder);
        } else if names.abstract_images.contains(image.as_str()) {
            let message = format!(
                "`{}` is abstract, so there is no such image",
                decoder.quote(image)
            );
            decoder.error("abstract-image", image.span, message);
        } else {
            let message = format!(
                "there is no image `{}` in `diskimages` or `zuul-images`",
                decoder.quote(image)
            );
            report_unknown("unknown-image", image, message, &names.images, decoder);
        }
    }
}

/// Checks that a Zuul image is available in the format that the provider needs.
fn check_format(
    provider: &Provider,
    image: &Name,
    images: &IndexMap<String, ImageDefinition>,
    decoder: &mut Decoder<'_>,
) {
    let Some(format) = provider.image_format() else {
        return;
    };
    if let Some(ImageSource::Zuul(zuul)) = images.get(image.as_str()).map(|image| &image.source)
        && !zuul.artifacts.is_empty()
        && !zuul
            .artifacts
            .iter()
            .any(|artifact| artifact.format.as_str() == format)
    {
        missing_format(image, Some(format), decoder);
    }
}

fn pools(provider: &Provider, names: &Names<'_>, decoder: &mut Decoder<'_>) {
    let disk = by_text(provider.diskimages().into_iter());
    let cloud = by_text(provider.cloud_images().into_iter());
    let section = provider.driver.as_section();
    let pools = provider.pools();
    check_unique(
        pools.iter().map(|pool| &pool.common.name).collect(),
        "pool of this provider",
        decoder,
    );
    for pool in &pools {
        if !section.allows_repeated_labels() {
            check_unique(
                pool.labels.iter().map(|label| label.name).collect(),
                "label of this pool",
                decoder,
            );
        }
        for label in &pool.labels {
            if !label.name.is_empty() && !names.labels.contains_key(label.name.as_str()) {
                let message = format!(
                    "there is no label `{}` in `labels` at the top of the file",
                    decoder.quote(label.name)
                );
                report_unknown("unknown-label", label.name, message, &names.labels, decoder);
            }
            if let Some(image) = label
                .diskimage
                .filter(|image| !image.is_empty() && !disk.contains_key(image.as_str()))
            {
                let quoted = decoder.quote(image);
                let loads = section.allows_images_without_upload();
                if loads && names.images.contains_key(image.as_str()) {
                    let message = format!(
                        "`{quoted}` is not in `diskimages` of this provider, so it is never uploaded there"
                    );
                    decoder.lenient("unknown-image", image.span, message);
                } else {
                    let message =
                        format!("there is no image `{quoted}` in `diskimages` of this provider");
                    report_unknown("unknown-image", image, message, &disk, decoder);
                }
            }
            if let Some(image) = label
                .cloud_image
                .filter(|image| !image.is_empty() && !cloud.contains_key(image.as_str()))
            {
                let message = format!(
                    "there is no image `{}` in `cloud-images` of this provider",
                    decoder.quote(image)
                );
                report_unknown("unknown-image", image, message, &cloud, decoder);
            }
        }
    }
}

fn report_unknown(
    code: &'static str,
    name: &Name,
    message: String,
    targets: &HashMap<&str, &Name>,
    decoder: &mut Decoder<'_>,
) {
    let full = decoder.findings.is_full();
    let sources = decoder.sources;
    if let (Some(finding), false) = (decoder.error(code, name.span, message), full) {
        // A map has no order; the suggestion must not depend on it.
        let mut candidates: Vec<&str> = sources.public(targets.values().copied()).collect();
        candidates.sort_unstable();
        finding.suggestion = similar(name, candidates.into_iter());
    }
}

/// Reports duplicate names; Nodepool uses the later one.
fn check_unique(names: Vec<&Name>, kind: &str, decoder: &mut Decoder<'_>) {
    let mut seen: HashMap<&str, Span> = HashMap::with_capacity(names.len());
    for name in names.into_iter().filter(|name| !name.is_empty()) {
        if let Some(earlier) = seen.insert(name, name.span) {
            let message = format!(
                "`{}` is already the name of another {kind}",
                decoder.quote(name)
            );
            decoder
                .lenient("duplicate-name", name.span, message)
                .map(|finding| finding.label(earlier, "the other one"));
        }
    }
}
