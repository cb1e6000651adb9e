//! Which build of an image launches use, when a person decides.

use anyhow::{bail, ensure};
use nodeyard_launcher::canary;
use nodeyard_model::{BuildKey, BuildState, ImageName};
use nodeyard_store::registry::Registry;

use crate::commands::nodepool::now;

/// All launches use this build from now on, and it is kept.
pub(super) async fn pin(registry: &Registry, key: &BuildKey) -> anyhow::Result<()> {
    let build = registry.images().build(key).await?;
    let ready = build.is_some_and(|build| build.value.state == BuildState::Ready);
    ensure!(
        ready,
        "{}-{} is no build that is ready; `nodeyard image builds` lists those there are",
        key.image,
        key.build
    );
    let tree = &**registry.tree();
    canary::change(tree, &key.image, |state| state.pinned = Some(key.build)).await?;
    Ok(())
}

pub(super) async fn unpin(registry: &Registry, image: &ImageName) -> anyhow::Result<()> {
    let tree = &**registry.tree();
    canary::change(tree, image, nodeyard_plan::canary::CanaryState::unpin).await?;
    Ok(())
}

/// Launches use the build before the newest, until there is a newer one.
pub(super) async fn roll_back(registry: &Registry, image: &ImageName) -> anyhow::Result<()> {
    let images = registry.images();
    let mut ready = images
        .newest_builds(image, BuildState::Ready)
        .await?
        .into_iter();
    let tree = &**registry.tree();
    let state = canary::read(tree, image).await?;
    if let Some(pinned) = state.pinned {
        bail!(
            "image {image} is pinned to {image}-{pinned}, which launches use whatever is rolled back; \
             `nodeyard image unpin {image}` first, or pin another build"
        );
    }
    let taken_back = |key: &BuildKey| {
        let ended = state
            .trials
            .get(&key.build)
            .and_then(|trial| trial.ended.as_ref());
        matches!(ended, Some(nodeyard_plan::canary::Ended::TakenBack { .. }))
    };
    let newest = ready.find(|(key, _)| !taken_back(key));
    let (Some((newest, _)), Some(_)) = (newest, ready.next()) else {
        bail!(
            "image {image} has no earlier build that is ready, so there is nothing to go back to"
        );
    };
    canary::change(tree, image, |state| {
        state.take_back(newest.build, "somebody has rolled it back", now());
    })
    .await?;
    Ok(())
}
