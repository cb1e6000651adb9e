//! Waits for a requested build and shows its progress.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::bail;
use nodeyard_builder::steward::{self, RegisteredFunctions, notes::ImageNotes, progress};
use nodeyard_config::{Config, Provider};
use nodeyard_model::{BuildId, BuildKey, BuildState, ImageName, UploadState, now};
use nodeyard_plan::images::{
    BuildVerdict, ImportReport, ImportVerdict, Pace, Subject, WaitReason, decide,
};
use nodeyard_store::registry::Registry;
use tokio::time::sleep;

use crate::commands::builder::job_server;
use crate::commands::nodepool::images;
use crate::context::CommandContext;
use crate::progress_line::ProgressLine;

/// The interval of checks. The progress is recorded once a second.
const INTERVAL: Duration = Duration::from_millis(500);

/// The timeout for listing the functions of a job server.
const LIST_TIMEOUT: Duration = Duration::from_secs(3);

/// How often to check for the reason of a failure, which the steward records shortly after the failure.
const MAX_CHECKS: u32 = 20;

const BAR: usize = 30;

/// Requests a build and, with `wait`, waits until it is ready and uploaded.
pub(in crate::commands) async fn request_build(
    registry: &Registry,
    context: &CommandContext,
    image: &ImageName,
    wait: bool,
) -> anyhow::Result<()> {
    let before = builds(registry, image).await?;
    images::request_build(registry, context, image).await?;
    match wait {
        true => for_build(registry, context, image, &before).await,
        false => Ok(()),
    }
}

/// Returns the existing builds.
async fn builds(registry: &Registry, image: &ImageName) -> anyhow::Result<BTreeSet<BuildId>> {
    let builds = registry.images().builds(image).await?;
    Ok(builds.into_iter().map(|(key, _)| key.build).collect())
}

/// Returns when a build that is not in `before` is ready and uploaded to every provider whose uploads are not paused.
pub(super) async fn for_build(
    registry: &Registry,
    context: &CommandContext,
    image: &ImageName,
    before: &BTreeSet<BuildId>,
) -> anyhow::Result<()> {
    let config = context.load()?;
    let (paused, providers) = split_providers(config.as_deref(), image);
    let records = registry.images();
    let mut line = ProgressLine::default();
    let mut checks = 0;
    loop {
        let builds = records.builds(image).await?;
        let newest = builds
            .into_iter()
            .filter(|(key, _)| !before.contains(&key.build))
            .max_by(|(_, a), (_, b)| a.stat.czxid.cmp(&b.stat.czxid));
        match newest {
            None => {
                let why = match &config {
                    Some(config) => describe_wait(registry, config, image).await?,
                    None => WORKER.to_owned(),
                };
                line.show(&format!("{why}; `nodeyard image why {image}` says more"))?;
            }
            Some((key, build)) => match build.value.state {
                BuildState::Failed => {
                    checks += 1;
                    let why = match why_failed(registry, &key).await? {
                        None if checks >= MAX_CHECKS => Some("unknown reason".to_owned()),
                        why => why,
                    };
                    if let Some(why) = why {
                        bail!("the build of {image} failed: {why}");
                    }
                }
                BuildState::Building => {
                    line.show(&describe_step(registry, &key, BUILDING).await?)?;
                }
                BuildState::Deleting => bail!("the build {image}-{} is being deleted", key.build),
                BuildState::Ready => {
                    let mut missing = providers.clone();
                    for provider in records.providers(&key).await? {
                        let uploads = records.uploads(&key, &provider).await?;
                        let ready = |state| state == UploadState::Ready;
                        if uploads.iter().any(|(_, upload)| ready(upload.value.state)) {
                            missing.remove(provider.as_str());
                        }
                    }
                    if missing.is_empty() {
                        let paused = describe_paused(&paused);
                        line.finish(&format!("{image}-{} is ready{paused}", key.build))?;
                        return Ok(());
                    }
                    let what = uploading(registry, &key, &missing).await?;
                    line.show(&describe_step(registry, &key, &what).await?)?;
                }
            },
        }
        sleep(INTERVAL).await;
    }
}

/// Returns the providers of an image whose uploads are paused, and the others.
fn split_providers(
    config: Option<&Config>,
    image: &ImageName,
) -> (BTreeSet<String>, BTreeSet<String>) {
    let split_providers = config
        .into_iter()
        .flat_map(|config| config.providers_of_image(image.as_str()))
        .filter(|provider| provider.manages_images());
    let (paused, others): (Vec<&Provider>, Vec<&Provider>) =
        split_providers.partition(|provider| {
            let paused = provider.paused_diskimages();
            paused.iter().any(|name| name.as_str() == image.as_str())
        });
    let names = |providers: Vec<&Provider>| {
        let names = providers.iter().map(|provider| provider.name().to_owned());
        names.collect()
    };
    (names(paused), names(others))
}

/// Describes the providers whose uploads are paused.
fn describe_paused(paused: &BTreeSet<String>) -> String {
    if paused.is_empty() {
        return String::new();
    }
    let names: Vec<&str> = paused.iter().map(String::as_str).collect();
    format!("; uploads to {} are paused", names.join(", "))
}

/// Returns why a build failed, if it is recorded: for the image, or for the Zuul build that it came from.
async fn why_failed(registry: &Registry, key: &BuildKey) -> anyhow::Result<Option<String>> {
    let tree = &**registry.tree();
    let mut notes = ImageNotes::read(tree, &key.image).await?;
    let setback = notes.setbacks.remove(&Subject::Build);
    if let Some(setback) = setback.filter(|setback| setback.build == key.build) {
        return Ok(Some(setback.reason));
    }
    let market = steward::read_market(tree, &key.image).await?;
    let bad = market.unwrap_or_default().bad.into_values();
    let ours = bad.into_iter().find(|bad| bad.build == Some(key.build));
    Ok(ours.map(|bad| bad.reason))
}

const BUILDING: &str = "building";
const WORKER: &str = "waits for a worker";
const IN_PROGRESS: &str = "waits for a build that is under way";

/// Returns why no build has started. The text contains no times, so that the line changes only with the reason.
async fn describe_wait(
    registry: &Registry,
    config: &Config,
    image: &ImageName,
) -> anyhow::Result<String> {
    let functions = RegisteredFunctions::fetch(&job_server::find(config)?, LIST_TIMEOUT).await;
    let picture = steward::load_image_state(registry, config, &functions, image).await?;
    let plan = decide(&picture, &Pace::default(), now());
    Ok(match &plan.explanation.build {
        BuildVerdict::Imported(report) => describe_zuul_wait(report),
        BuildVerdict::Paused { .. } => "is paused".to_owned(),
        BuildVerdict::NoFormats => "waits for a provider that takes it".to_owned(),
        BuildVerdict::Waits { wait, .. } => describe_wait_reason(wait),
        BuildVerdict::UnderWay { .. } | BuildVerdict::Resumes { .. } => IN_PROGRESS.to_owned(),
        _ => WORKER.to_owned(),
    })
}

fn describe_zuul_wait(report: &ImportReport) -> String {
    if let Some(error) = &report.error {
        return format!("waits for Zuul, because polling failed: {error}");
    }
    match &report.verdict {
        ImportVerdict::Asks => "waits for the first poll of Zuul".to_owned(),
        ImportVerdict::Nothing | ImportVerdict::UpToDate { .. } => {
            "waits for Zuul, which has no usable build".to_owned()
        }
        ImportVerdict::Waits { wait, .. } => describe_wait_reason(wait),
        ImportVerdict::Begins { .. } => WORKER.to_owned(),
        ImportVerdict::UnderWay { .. } => IN_PROGRESS.to_owned(),
    }
}

fn describe_wait_reason(wait: &WaitReason) -> String {
    match wait {
        WaitReason::BackOff { reason, .. } => {
            format!("waits for a retry after a failure: {reason}")
        }
        WaitReason::Worker { .. } => WORKER.to_owned(),
        WaitReason::JobServer { reason } => format!("waits for a job server: {reason}"),
    }
}

/// Describes which providers lack the build, and why the last attempt failed.
async fn uploading(
    registry: &Registry,
    key: &BuildKey,
    missing: &BTreeSet<String>,
) -> anyhow::Result<String> {
    let notes = ImageNotes::read(&**registry.tree(), &key.image).await?;
    let failed = |name: &str| {
        notes.setbacks.iter().find_map(|(subject, setback)| {
            let ours = matches!(subject, Subject::Upload { provider } if provider.as_str() == name);
            (ours && setback.build == key.build).then_some(&setback.reason)
        })
    };
    let missing: Vec<String> = missing
        .iter()
        .map(|name| match failed(name) {
            Some(reason) => format!("{name} (last attempt failed: {reason})"),
            None => name.clone(),
        })
        .collect();
    Ok(format!("uploading to {}", missing.join(", ")))
}

/// Describes the current step, with a progress bar for each job that reports progress.
async fn describe_step(registry: &Registry, key: &BuildKey, what: &str) -> anyhow::Result<String> {
    let jobs = progress::list(&**registry.tree(), &key.image).await?;
    let jobs = jobs.iter().filter(|job| job.build == key.build);
    let bars = jobs
        .filter_map(|job| job.done)
        .map(|(done, all)| bar(done, all));
    Ok(progress_line(key, what, bars))
}

fn progress_line(key: &BuildKey, what: &str, bars: impl Iterator<Item = String>) -> String {
    // A full id would leave no room for the bar on a terminal of 80 columns.
    let mut text = format!("{}-{:.8}: {what}", key.image, key.build.to_string());
    for bar in bars {
        text.push_str("  ");
        text.push_str(&bar);
    }
    text
}

fn bar(done: u64, all: u64) -> String {
    let all = all.max(1);
    let done = done.min(all);
    let part =
        |of: usize| usize::try_from(u128::from(done) * of as u128 / u128::from(all)).unwrap_or(of);
    let full = part(BAR);
    format!(
        "[{}{}] {:3} %",
        "#".repeat(full),
        "-".repeat(BAR - full),
        part(100)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_has_a_fixed_width() {
        assert_eq!(bar(0, 0), format!("[{}]   0 %", "-".repeat(BAR)));
        assert_eq!(bar(9, 3), format!("[{}] 100 %", "#".repeat(BAR)));
        assert!(bar(1, 2).ends_with("]  50 %"));
        assert!(bar(u64::MAX, u64::MAX).ends_with("100 %"));
    }

    #[test]
    fn an_unfinished_build_is_not_called_built() {
        let key = BuildKey {
            image: "debian".parse().unwrap(),
            build: BuildId::from_u128(1),
        };
        let line = progress_line(&key, BUILDING, [bar(1, 3)].into_iter());
        assert_eq!(
            line,
            "debian-00000000: building  [##########--------------------]  33 %"
        );
    }
}
