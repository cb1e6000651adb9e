//! Waiting for a build that was asked for, with a line that says how far it is.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::bail;
use nodeyard_builder::steward::{self, Functions, notes::Notes, progress};
use nodeyard_config::{Config, Provider};
use nodeyard_model::{BuildId, BuildKey, BuildState, ImageName, UploadState, now};
use nodeyard_plan::images::{
    BuildVerdict, ImportReport, ImportVerdict, Pace, Subject, Wait, decide,
};
use nodeyard_store::registry::Registry;
use tokio::time::sleep;

use crate::commands::builder::job_server;
use crate::commands::nodepool::images;
use crate::context::Context;
use crate::progress_line::ProgressLine;

/// The progress is written once a second; there is no sense in looking more often.
const INTERVAL: Duration = Duration::from_millis(500);

/// For each job server to say who answers what.
const PATIENCE: Duration = Duration::from_secs(3);

/// A steward notes why a build failed right after its record says that it did. So often it is looked for.
const LOOKS: u32 = 20;

const BAR: usize = 30;

/// Asks for a build, and stays until it is everywhere if it is to.
pub(in crate::commands) async fn request_build(
    registry: &Registry,
    context: &Context,
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

/// The builds there are.
async fn builds(registry: &Registry, image: &ImageName) -> anyhow::Result<BTreeSet<BuildId>> {
    let builds = registry.images().builds(image).await?;
    Ok(builds.into_iter().map(|(key, _)| key.build).collect())
}

/// Returns when a build that was not there `before` is ready and every provider has it whose uploads are not suspended.
pub(super) async fn for_build(
    registry: &Registry,
    context: &Context,
    image: &ImageName,
    before: &BTreeSet<BuildId>,
) -> anyhow::Result<()> {
    let config = context.load()?;
    let (paused, providers) = takers(config.as_deref(), image);
    let records = registry.images();
    let mut line = ProgressLine::default();
    let mut looks = 0;
    loop {
        let builds = records.builds(image).await?;
        let newest = builds
            .into_iter()
            .filter(|(key, _)| !before.contains(&key.build))
            .max_by(|(_, a), (_, b)| a.stat.czxid.cmp(&b.stat.czxid));
        match newest {
            None => {
                let why = match &config {
                    Some(config) => waits(registry, config, image).await?,
                    None => WORKER.to_owned(),
                };
                line.show(&format!("{why}; `nodeyard image why {image}` says more"))?;
            }
            Some((key, build)) => match build.value.state {
                BuildState::Failed => {
                    looks += 1;
                    let why = match why_failed(registry, &key).await? {
                        None if looks >= LOOKS => Some("no reason is known".to_owned()),
                        why => why,
                    };
                    if let Some(why) = why {
                        bail!("the build of {image} failed: {why}");
                    }
                }
                BuildState::Building => line.show(&told(registry, &key, BUILDING).await?)?,
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
                        let paused = without(&paused);
                        line.finish(&format!("{image}-{} is ready{paused}", key.build))?;
                        return Ok(());
                    }
                    let what = uploading(registry, &key, &missing).await?;
                    line.show(&told(registry, &key, &what).await?)?;
                }
            },
        }
        sleep(INTERVAL).await;
    }
}

/// The providers that take an image: those whose uploads of it are suspended, and the others.
fn takers(config: Option<&Config>, image: &ImageName) -> (BTreeSet<String>, BTreeSet<String>) {
    let takers = config
        .into_iter()
        .flat_map(|config| config.providers_of_image(image.as_str()))
        .filter(|provider| provider.manages_images());
    let (paused, others): (Vec<&Provider>, Vec<&Provider>) = takers.partition(|provider| {
        let paused = provider.paused_diskimages();
        paused.iter().any(|name| name.as_str() == image.as_str())
    });
    let names = |providers: Vec<&Provider>| {
        let names = providers.iter().map(|provider| provider.name().to_owned());
        names.collect()
    };
    (names(paused), names(others))
}

/// Where it is not, since somebody wants it so.
fn without(paused: &BTreeSet<String>) -> String {
    if paused.is_empty() {
        return String::new();
    }
    let names: Vec<&str> = paused.iter().map(String::as_str).collect();
    format!("; uploads to {} are paused", names.join(", "))
}

/// Why a build failed, if that is noted: as a failure of the image, or as one of the build of Zuul that it came from.
async fn why_failed(registry: &Registry, key: &BuildKey) -> anyhow::Result<Option<String>> {
    let tree = &**registry.tree();
    let mut notes = Notes::read(tree, &key.image).await?;
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
const UNDER_WAY: &str = "waits for a build that is under way";

/// Why no build has begun. It says no times, so that it changes only with what it says.
async fn waits(registry: &Registry, config: &Config, image: &ImageName) -> anyhow::Result<String> {
    let functions = Functions::ask(&job_server::known(config)?, PATIENCE).await;
    let picture = steward::draw(registry, config, &functions, image).await?;
    let plan = decide(&picture, &Pace::default(), now());
    Ok(match &plan.explanation.build {
        BuildVerdict::Imported(report) => waits_for_zuul(report),
        BuildVerdict::Paused { .. } => "is paused".to_owned(),
        BuildVerdict::NoFormats => "waits for a provider that takes it".to_owned(),
        BuildVerdict::Waits { wait, .. } => waits_for(wait),
        BuildVerdict::UnderWay { .. } | BuildVerdict::Resumes { .. } => UNDER_WAY.to_owned(),
        _ => WORKER.to_owned(),
    })
}

fn waits_for_zuul(report: &ImportReport) -> String {
    if let Some(error) = &report.error {
        return format!("waits for Zuul, which did not say what it has: {error}");
    }
    match &report.verdict {
        ImportVerdict::Asks => "waits for Zuul to say what it has".to_owned(),
        ImportVerdict::Nothing | ImportVerdict::UpToDate { .. } => {
            "waits for Zuul, which has no build that can be used".to_owned()
        }
        ImportVerdict::Waits { wait, .. } => waits_for(wait),
        ImportVerdict::Begins { .. } => WORKER.to_owned(),
        ImportVerdict::UnderWay { .. } => UNDER_WAY.to_owned(),
    }
}

fn waits_for(wait: &Wait) -> String {
    match wait {
        Wait::BackOff { reason, .. } => {
            format!("waits to be tried again, since it failed: {reason}")
        }
        Wait::Worker { .. } => WORKER.to_owned(),
        Wait::JobServer { reason } => format!("waits for a job server: {reason}"),
    }
}

/// Where it is still missing, and why the last try failed.
async fn uploading(
    registry: &Registry,
    key: &BuildKey,
    missing: &BTreeSet<String>,
) -> anyhow::Result<String> {
    let notes = Notes::read(&**registry.tree(), &key.image).await?;
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

/// What is done, with a bar for each job whose worker says how far it is.
async fn told(registry: &Registry, key: &BuildKey, what: &str) -> anyhow::Result<String> {
    let jobs = progress::list(&**registry.tree(), &key.image).await?;
    let jobs = jobs.iter().filter(|job| job.build == key.build);
    let bars = jobs
        .filter_map(|job| job.done)
        .map(|(done, all)| bar(done, all));
    Ok(progress_line(key, what, bars))
}

fn progress_line(key: &BuildKey, what: &str, bars: impl Iterator<Item = String>) -> String {
    // The whole id would leave no room for the bar on a terminal of 80 columns.
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
    fn a_bar_never_leaves_its_frame() {
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
