//! Shows what `image-filters` match in a cloud now: which image is selected, and why the others are not.
//!
//! This command queries the cloud itself, with the launcher's driver, so it must run where the configuration and its
//! credentials are.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use nodeyard_config::Config;
use nodeyard_driver::image_filters::{self, Candidate, Conditions, Verdict};
use nodeyard_driver::{CloudImage, ImageFilter, ImageStatus, SystemId};
use nodeyard_model::{ProviderName, Timestamp};
use serde::Serialize;

use super::cloud;
use crate::context::CommandContext;
use crate::output::{self, OutputFormat};

/// An entry of `cloud-images` with `image-filters`.
#[derive(Debug)]
struct FilteredCloudImage {
    provider: ProviderName,
    image: String,
    labels: BTreeSet<String>,
    filters: Vec<ImageFilter>,
}

#[derive(Debug, Serialize)]
struct CandidateReport<'a> {
    provider: &'a ProviderName,
    cloud_image: &'a str,
    labels: &'a BTreeSet<String>,
    image_filters: &'a [ImageFilter],
    /// The id of the image that machines boot from.
    chosen: Option<String>,
    /// Why no image is selected.
    reason: Option<String>,
    /// Why the cloud could not be queried.
    error: Option<String>,
    images: Vec<CandidateImage>,
}

#[derive(Debug, Serialize)]
struct CandidateImage {
    id: String,
    name: String,
    status: &'static str,
    created: Option<Timestamp>,
    verdict: &'static str,
    failed: Vec<FailedCondition>,
}

#[derive(Debug, Serialize)]
struct FailedCondition {
    #[serde(flatten)]
    filter: ImageFilter,
    found: String,
}

pub(super) async fn show(
    context: &CommandContext,
    what: Option<&str>,
    all: bool,
) -> anyhow::Result<()> {
    let config = cloud::configuration(context)?;
    let wanted = wanted(&config, what)?;
    // Each cloud is queried once, and a failing one does not prevent showing the others.
    let mut clouds: BTreeMap<&ProviderName, Result<Vec<CloudImage>, String>> = BTreeMap::new();
    for entry in &wanted {
        if !clouds.contains_key(&entry.provider) {
            let images = images(&config, &entry.provider).await;
            let images = images.map_err(|error| format!("{error:#}"));
            clouds.insert(&entry.provider, images);
        }
    }
    let found = wanted.iter().filter_map(|entry| {
        let images = clouds.get(&entry.provider)?;
        Some(evaluate(entry, images.as_deref()))
    });
    let found: Vec<CandidateReport<'_>> = found.collect();
    match context.format {
        OutputFormat::Json | OutputFormat::Yaml => output::document(&found, context.format)?,
        OutputFormat::Table => {
            for found in &found {
                table(found, all)?;
            }
        }
    }
    let mut failures: Vec<String> = clouds.into_values().filter_map(Result::err).collect();
    let empty = found.iter().filter(|found| found.reason.is_some());
    let empty: Vec<String> = empty
        .map(|found| format!("{}/{}", found.provider, found.cloud_image))
        .collect();
    if !empty.is_empty() {
        failures.push(format!("no matching image for {}", empty.join(", ")));
    }
    if !failures.is_empty() {
        bail!(failures.join("; "));
    }
    Ok(())
}

/// Lists the images of a provider. The system id only identifies uploads of an installation, so any will do here.
async fn images(config: &Arc<Config>, provider: &ProviderName) -> anyhow::Result<Vec<CloudImage>> {
    let driver = cloud::driver(config, provider, SystemId::new("nobody"))?;
    let images = driver.images();
    let images = images.with_context(|| format!("{provider} does not support image filters"))?;
    let images = images.candidates().await;
    images.with_context(|| format!("failed to list the images of {provider}"))
}

/// Returns all entries with `image-filters`, or those that `provider/image` or a label refers to.
fn wanted(config: &Config, what: Option<&str>) -> anyhow::Result<Vec<FilteredCloudImage>> {
    let mut wanted = Vec::new();
    for provider in config.providers.values() {
        for (image, filters) in provider.image_filters() {
            let pools = provider.pools().into_iter();
            let labels = pools.flat_map(|pool| pool.labels);
            let labels = labels.filter(|label| label.cloud_image == Some(image));
            wanted.push(FilteredCloudImage {
                provider: ProviderName::new(provider.name())?,
                image: image.to_string(),
                labels: labels.map(|label| label.name.to_string()).collect(),
                filters: nodeyard_driver_common::image_filters(filters),
            });
        }
    }
    let Some(what) = what else {
        return Ok(wanted);
    };
    wanted.retain(|entry| match what.split_once('/') {
        Some((provider, image)) => entry.provider.as_str() == provider && entry.image == image,
        None => entry.labels.contains(what),
    });
    if wanted.is_empty() {
        bail!(no_match_error(config, what));
    }
    Ok(wanted)
}

fn no_match_error(config: &Config, what: &str) -> String {
    let providers = config.providers.values();
    let mut labels = providers
        .flat_map(nodeyard_config::Provider::pools)
        .flat_map(|pool| pool.labels);
    let label = labels.find(|label| label.name.as_str() == what);
    match label.map(|label| (label.diskimage, label.cloud_image)) {
        Some((Some(image), _)) => {
            format!(
                "label {what} boots from image {image}, which is built; see `nodeyard upload ls`"
            )
        }
        Some((_, Some(image))) => {
            format!(
                "cloud image {image} of label {what} is selected by name, not by `image-filters`"
            )
        }
        Some((None, None)) => format!("label {what} has no image"),
        None => format!(
            "{what} is neither a label with `image-filters` nor a cloud image with `image-filters` (`provider/image`)"
        ),
    }
}

fn evaluate<'a>(
    entry: &'a FilteredCloudImage,
    images: Result<&[CloudImage], &String>,
) -> CandidateReport<'a> {
    let error = images.err().cloned();
    let images = images.unwrap_or_default();
    let candidates = image_filters::judge(&entry.filters, images);
    let chosen = image_filters::newest(&entry.filters, images);
    CandidateReport {
        provider: &entry.provider,
        cloud_image: &entry.image,
        labels: &entry.labels,
        image_filters: &entry.filters,
        chosen: chosen.map(|image| image.id.to_string()),
        reason: (chosen.is_none() && error.is_none())
            .then(|| image_filters::nothing_found(&entry.filters, images)),
        error,
        images: candidates.iter().map(CandidateImage::of).collect(),
    }
}

impl CandidateImage {
    fn of(candidate: &Candidate<'_>) -> Self {
        let image = candidate.image;
        let (verdict, failed) = match &candidate.verdict {
            Verdict::Chosen => ("chosen", &[] as &[_]),
            Verdict::Older => ("older", &[] as &[_]),
            Verdict::NotActive => ("not-active", &[] as &[_]),
            Verdict::Fails(failed) => ("fails", failed.as_slice()),
        };
        Self {
            id: image.id.to_string(),
            name: image.name.to_string(),
            status: match image.status {
                ImageStatus::Active => "active",
                ImageStatus::Pending => "pending",
                ImageStatus::Failed => "failed",
            },
            created: image.created,
            verdict,
            failed: failed
                .iter()
                .map(|filter| FailedCondition {
                    filter: (*filter).clone(),
                    found: filter.found_in(image),
                })
                .collect(),
        }
    }

    fn verdict_text(&self) -> String {
        match self.verdict {
            "chosen" => "selected: the newest".to_owned(),
            "older" => "older than the selected one".to_owned(),
            "not-active" => format!("is {}, not active", self.status),
            _ => {
                let failed = self.failed.iter();
                let failed = failed.map(|one| format!("not {}: {}", one.filter, one.found));
                failed.collect::<Vec<_>>().join("; ")
            }
        }
    }
}

/// Prints a table. Images that match no condition are hidden unless `all`, because a cloud may have hundreds.
fn table(found: &CandidateReport<'_>, all: bool) -> anyhow::Result<()> {
    let labels: Vec<&str> = found.labels.iter().map(String::as_str).collect();
    let labels = match labels.as_slice() {
        [] => "no label".to_owned(),
        labels => labels.join(", "),
    };
    writeln!(
        io::stdout(),
        "{}/{} (for {labels}) is the newest with {}",
        found.provider,
        found.cloud_image,
        Conditions(found.image_filters)
    )?;
    if let Some(error) = &found.error {
        writeln!(io::stdout(), "{error}\n")?;
        return Ok(());
    }
    let near = |one: &&CandidateImage| all || one.failed.len() < found.image_filters.len();
    let shown: Vec<&CandidateImage> = found.images.iter().filter(near).collect();
    let hidden = found.images.len() - shown.len();
    let rows = shown.into_iter().map(|one| {
        [
            one.name.clone(),
            one.id.clone(),
            one.created.map(super::time).unwrap_or_default(),
            one.verdict_text(),
        ]
    });
    output::table(["IMAGE", "ID", "CREATED", "VERDICT"], rows)?;
    if hidden > 0 {
        let images = output::count(hidden, "image");
        writeln!(
            io::stdout(),
            "hidden: {images} matching no condition; show all with --all"
        )?;
    }
    if let Some(reason) = &found.reason {
        writeln!(io::stdout(), "{reason}")?;
    }
    writeln!(io::stdout())?;
    Ok(())
}
