use anyhow::{Context as _, bail, ensure};
use nodeyard_model::{BuildKey, BuildState, ImageName, UploadKey, UploadState};
use nodeyard_store::registry::{Attempt, Registry};

use super::{PATIENCE, UploadArgs, now};
use crate::context::Context;
use crate::exit::Refusal;

/// `<image>-<build id>`; the name of the image may have dashes of its own.
pub(in crate::commands) fn build_key(text: &str) -> Result<BuildKey, String> {
    let key = text.rsplit_once('-').and_then(|(image, build)| {
        Some(BuildKey {
            image: image.parse().ok()?,
            build: build.parse().ok()?,
        })
    });
    key.ok_or_else(|| {
        "expected <image>-<build id>, as in the first column of dib-image-list".to_owned()
    })
}

pub(in crate::commands) async fn request_build(
    registry: &Registry,
    context: &Context,
    image: &ImageName,
) -> anyhow::Result<()> {
    if let Some(config) = context.load()? {
        let Some(configured) = config.images.get(image.as_str()) else {
            bail!("there is no image {image} in the configuration, so nobody would build it");
        };
        ensure!(
            !configured.pause,
            "image {image} is paused in the configuration, so nobody would build it"
        );
    }
    Ok(registry.images().request_build(image).await?)
}

pub(in crate::commands) async fn pause(
    registry: &Registry,
    image: &ImageName,
) -> anyhow::Result<()> {
    let result = registry.images().pause(image).await;
    result
        .with_context(|| format!("image {image} cannot be paused before something is known of it"))
}

pub(in crate::commands) async fn unpause(
    registry: &Registry,
    image: &ImageName,
) -> anyhow::Result<()> {
    registry.images().unpause(image).await?;
    Ok(())
}

pub(in crate::commands) async fn delete_build(
    registry: &Registry,
    key: &BuildKey,
) -> anyhow::Result<()> {
    let images = registry.images();
    match images.lock_build(key, PATIENCE).await? {
        Attempt::Gone => bail!(Refusal(format!(
            "Build {}-{} not found",
            key.image, key.build
        ))),
        Attempt::Busy => bail!("a builder is at work on this build; try again in a moment"),
        Attempt::Held(held) => {
            let mut build = held.value;
            let building = build.state == BuildState::Building;
            if !building {
                build.set_state(BuildState::Deleting, now());
                images.store_build(&held.guard, key, &build).await?;
            }
            held.guard.release().await?;
            ensure!(
                !building,
                Refusal("Cannot delete a build in progress".to_owned())
            );
            Ok(())
        }
    }
}

pub(in crate::commands) async fn delete_upload(
    registry: &Registry,
    args: UploadArgs,
) -> anyhow::Result<()> {
    let images = registry.images();
    let key = UploadKey {
        build: BuildKey {
            image: args.image,
            build: args.build_id,
        },
        provider: args.provider,
        upload: args.upload_id,
    };
    match images.lock_upload(&key, PATIENCE).await? {
        Attempt::Gone => bail!(Refusal("Image upload not found".to_owned())),
        Attempt::Busy => bail!("a builder is at work on this upload; try again in a moment"),
        Attempt::Held(held) => {
            let mut upload = held.value;
            let uploading = upload.state == UploadState::Uploading;
            if !uploading {
                upload.set_state(UploadState::Deleting, now());
                images.store_upload(&held.guard, &key, &upload).await?;
            }
            held.guard.release().await?;
            ensure!(
                !uploading,
                Refusal("Cannot delete because image upload in progress".to_owned())
            );
            Ok(())
        }
    }
}
