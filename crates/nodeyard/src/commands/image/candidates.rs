//! What `image-filters` find in a cloud now: which image wins, and why the others do not.
//!
//! The cloud is asked by this command, with the driver that the launcher would use, so it runs where the
//! configuration and its credentials are.

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
use crate::context::Context;
use crate::output::{self, Format};

/// An entry of `cloud-images` that is chosen by conditions.
#[derive(Debug)]
struct Wanted {
    provider: ProviderName,
    image: String,
    labels: BTreeSet<String>,
    filters: Vec<ImageFilter>,
}

#[derive(Debug, Serialize)]
struct Found<'a> {
    provider: &'a ProviderName,
    cloud_image: &'a str,
    labels: &'a BTreeSet<String>,
    image_filters: &'a [ImageFilter],
    /// The id of the one that machines boot from.
    chosen: Option<String>,
    /// Why there is none.
    reason: Option<String>,
    /// Why it is not known.
    error: Option<String>,
    images: Vec<Judged>,
}

#[derive(Debug, Serialize)]
struct Judged {
    id: String,
    name: String,
    status: &'static str,
    created: Option<Timestamp>,
    verdict: &'static str,
    failed: Vec<Failed>,
}

#[derive(Debug, Serialize)]
struct Failed {
    #[serde(flatten)]
    filter: ImageFilter,
    found: String,
}

pub(super) async fn show(context: &Context, what: Option<&str>, all: bool) -> anyhow::Result<()> {
    let config = cloud::configuration(context)?;
    let wanted = wanted(&config, what)?;
    // Each cloud is asked once, and one that does not answer does not keep the others from being shown.
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
        Some(judge(entry, images.as_deref()))
    });
    let found: Vec<Found<'_>> = found.collect();
    match context.format {
        Format::Json | Format::Yaml => output::document(&found, context.format)?,
        Format::Table => {
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
        failures.push(format!("no image is found for {}", empty.join(", ")));
    }
    if !failures.is_empty() {
        bail!(failures.join("; "));
    }
    Ok(())
}

/// The system id only says whose uploads are ours, and nothing is uploaded here.
async fn images(config: &Arc<Config>, provider: &ProviderName) -> anyhow::Result<Vec<CloudImage>> {
    let driver = cloud::driver(config, provider, SystemId::new("nobody"))?;
    let images = driver.images();
    let images = images.with_context(|| format!("{provider} has no images to choose from"))?;
    let images = images.candidates().await;
    images.with_context(|| format!("{provider} does not list its images"))
}

/// Everything that is chosen by conditions, or what was asked for by `provider/image` or by a label.
fn wanted(config: &Config, what: Option<&str>) -> anyhow::Result<Vec<Wanted>> {
    let mut wanted = Vec::new();
    for provider in config.providers.values() {
        for (image, filters) in provider.image_filters() {
            let pools = provider.pools().into_iter();
            let labels = pools.flat_map(|pool| pool.labels);
            let labels = labels.filter(|label| label.cloud_image == Some(image));
            wanted.push(Wanted {
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
        bail!(nothing_wanted(config, what));
    }
    Ok(wanted)
}

fn nothing_wanted(config: &Config, what: &str) -> String {
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
            format!("cloud image {image} of label {what} is named, not chosen by `image-filters`")
        }
        Some((None, None)) => format!("label {what} has no image"),
        None => format!(
            "{what} is neither a label nor a cloud image, as `provider/image`, with `image-filters`"
        ),
    }
}

fn judge<'a>(entry: &'a Wanted, images: Result<&[CloudImage], &String>) -> Found<'a> {
    let error = images.err().cloned();
    let images = images.unwrap_or_default();
    let candidates = image_filters::judge(&entry.filters, images);
    let chosen = image_filters::newest(&entry.filters, images);
    Found {
        provider: &entry.provider,
        cloud_image: &entry.image,
        labels: &entry.labels,
        image_filters: &entry.filters,
        chosen: chosen.map(|image| image.id.to_string()),
        reason: (chosen.is_none() && error.is_none())
            .then(|| image_filters::nothing_found(&entry.filters, images)),
        error,
        images: candidates.iter().map(Judged::of).collect(),
    }
}

impl Judged {
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
                .map(|filter| Failed {
                    filter: (*filter).clone(),
                    found: filter.found_in(image),
                })
                .collect(),
        }
    }

    fn told(&self) -> String {
        match self.verdict {
            "chosen" => "wins: the newest".to_owned(),
            "older" => "older than the one that wins".to_owned(),
            "not-active" => format!("is {}, not active", self.status),
            _ => {
                let failed = self.failed.iter();
                let failed = failed.map(|one| format!("not {}: {}", one.filter, one.found));
                failed.collect::<Vec<_>>().join("; ")
            }
        }
    }
}

/// Of what meets no condition at all a cloud may have hundreds.
fn table(found: &Found<'_>, all: bool) -> anyhow::Result<()> {
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
    let near = |one: &&Judged| all || one.failed.len() < found.image_filters.len();
    let shown: Vec<&Judged> = found.images.iter().filter(near).collect();
    let hidden = found.images.len() - shown.len();
    let rows = shown.into_iter().map(|one| {
        [
            one.name.clone(),
            one.id.clone(),
            one.created.map(super::time).unwrap_or_default(),
            one.told(),
        ]
    });
    output::table(["IMAGE", "ID", "CREATED", "VERDICT"], rows)?;
    if hidden > 0 {
        let images = output::count(hidden, "image");
        writeln!(
            io::stdout(),
            "{images} without any of this; --all shows them"
        )?;
    }
    if let Some(reason) = &found.reason {
        writeln!(io::stdout(), "{reason}")?;
    }
    writeln!(io::stdout())?;
    Ok(())
}
