//! Pins, unpins and rolls back builds of an image. Each command prints which build launches use afterwards.

use std::collections::BTreeSet;
use std::io::{self, Write as _};

use anyhow::{bail, ensure};
use nodeyard_builder::steward::{self, RegisteredFunctions};
use nodeyard_launcher::canary;
use nodeyard_model::{BuildKey, BuildState, ImageName, ProviderName, UploadState, now};
use nodeyard_plan::canary::{CanaryState, LaunchBuilds};
use nodeyard_store::registry::Registry;
use serde::Serialize;

use crate::context::CommandContext;
use crate::output;

/// Makes all launches use this build, and keeps it.
pub(super) async fn pin(
    registry: &Registry,
    context: &CommandContext,
    key: &BuildKey,
) -> anyhow::Result<()> {
    let build = registry.images().build(key).await?;
    let ready = build.is_some_and(|build| build.value.state == BuildState::Ready);
    ensure!(
        ready,
        "no ready build {}-{}; `nodeyard build ls` lists them",
        key.image,
        key.build
    );
    let tree = &**registry.tree();
    canary::change(tree, &key.image, |state| state.pinned = Some(key.build)).await?;
    print_used_builds(registry, context, &key.image).await
}

pub(super) async fn unpin(
    registry: &Registry,
    context: &CommandContext,
    image: &ImageName,
) -> anyhow::Result<()> {
    let known = registry.images().names().await?;
    ensure!(
        known.contains(image),
        "no image {image}; `nodeyard image ls` lists them"
    );
    let tree = &**registry.tree();
    canary::change(tree, image, CanaryState::unpin).await?;
    print_used_builds(registry, context, image).await
}

/// Makes launches use the build before the newest, until there is a newer one.
pub(super) async fn roll_back(
    registry: &Registry,
    context: &CommandContext,
    image: &ImageName,
) -> anyhow::Result<()> {
    let tree = &**registry.tree();
    let state = canary::read(tree, image).await?;
    if let Some(pinned) = state.pinned {
        bail!(
            "image {image} is pinned to {image}-{pinned}, which a rollback would not change; \
             `nodeyard image unpin {image}` first, or pin another build"
        );
    }
    // A build without an upload is not used by launches, so it cannot be rolled back.
    let mut usable = Vec::new();
    let images = registry.images();
    for (key, _) in images.newest_builds(image, BuildState::Ready).await? {
        if !state.is_rolled_back(key.build) && is_uploaded(registry, &key).await? {
            usable.push(key.build);
        }
    }
    let [newest, _, ..] = usable.as_slice() else {
        bail!("image {image} has no earlier build that is ready and uploaded");
    };
    canary::change(tree, image, |state| {
        state.roll_back(*newest, "rolled back by an operator", now());
    })
    .await?;
    print_used_builds(registry, context, image).await
}

async fn is_uploaded(registry: &Registry, key: &BuildKey) -> anyhow::Result<bool> {
    let images = registry.images();
    for provider in images.providers(key).await? {
        let uploads = images.uploads(key, &provider).await?;
        let mut states = uploads.iter().map(|(_, upload)| upload.value.state);
        if states.any(|state| state == UploadState::Ready) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[derive(Debug, Serialize)]
struct UsedBuild {
    provider: ProviderName,
    /// None if nothing is uploaded to the provider.
    launches: Option<LaunchBuilds>,
}

/// Prints which builds launches of each provider use.
async fn print_used_builds(
    registry: &Registry,
    context: &CommandContext,
    image: &ImageName,
) -> anyhow::Result<()> {
    let Some(config) = context.load()? else {
        writeln!(
            io::stderr(),
            "showing which builds launches use needs a configuration; name one with --config"
        )?;
        return Ok(());
    };
    let picture =
        steward::load_image_state(registry, &config, &RegisteredFunctions::default(), image)
            .await?;
    let takers = picture.providers.iter();
    let takers = takers.filter_map(|(provider, takes)| takes.as_ref().map(|_| provider));
    let builds = picture.builds.values();
    let holders = builds.flat_map(|build| build.uploads.keys().map(|(provider, _)| provider));
    let providers: BTreeSet<&ProviderName> = takers.chain(holders).collect();
    let used: Vec<UsedBuild> = providers
        .into_iter()
        .map(|provider| UsedBuild {
            provider: provider.clone(),
            launches: picture.launches(provider),
        })
        .collect();
    if context.format.is_document() {
        return output::document(&used, context.format);
    }
    let mut out = io::stdout().lock();
    for UsedBuild { provider, launches } in &used {
        match launches {
            Some(launches) => writeln!(out, "launches in {provider} use {launches}")?,
            None => writeln!(out, "{provider} has no upload of {image} yet")?,
        }
    }
    if used.is_empty() {
        writeln!(out, "no provider uses {image}")?;
    }
    Ok(())
}
