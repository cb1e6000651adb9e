//! Operations on images, with Nodepool's messages.

use anyhow::{anyhow, bail};
use nodeyard_model::{BuildKey, ImageName, UploadKey, now};
use nodeyard_operations::{Error, images};
use nodeyard_store::registry::Registry;

use super::ImageDeleteArgs;
use crate::context::CommandContext;
use crate::exit::OperationRefused;

/// Parses `<image>-<build id>`.
pub(in crate::commands) fn build_key(text: &str) -> Result<BuildKey, String> {
    images::parse_build(text).ok_or_else(|| {
        "expected <image>-<build id>, as in the first column of dib-image-list".to_owned()
    })
}

pub(in crate::commands) async fn request_build(
    registry: &Registry,
    context: &CommandContext,
    image: &ImageName,
) -> anyhow::Result<()> {
    let config = context.load()?;
    match images::request_build(registry, config.as_deref(), image).await {
        Err(Error::NotConfigured) => {
            bail!("no image {image} in the configuration, so no builder would build it")
        }
        Err(Error::PausedByConfiguration) => {
            bail!("image {image} is paused in the configuration, so no builder would build it")
        }
        result => Ok(result?),
    }
}

pub(in crate::commands) async fn pause(
    registry: &Registry,
    image: &ImageName,
) -> anyhow::Result<()> {
    match images::pause(registry, image).await {
        Err(Error::UnknownImage) => {
            bail!("image {image} cannot be paused before a builder has registered it")
        }
        result => Ok(result?),
    }
}

pub(in crate::commands) async fn unpause(
    registry: &Registry,
    image: &ImageName,
) -> anyhow::Result<()> {
    images::unpause(registry, image).await?;
    Ok(())
}

/// Deletes the build `<image>-<build id>`. No build has a malformed id.
pub(super) async fn delete_build(registry: &Registry, id: &str) -> anyhow::Result<()> {
    let deleted = match images::parse_build(id) {
        Some(key) => images::delete_build(registry, &key, now()).await,
        None => Err(Error::Gone),
    };
    deleted.map_err(|error| match error {
        Error::Gone => OperationRefused(format!("Build {id} not found")).into(),
        Error::Busy => anyhow!("this build is locked by a builder; try again in a moment"),
        Error::InProgress => {
            OperationRefused("Cannot delete a build in progress".to_owned()).into()
        }
        error => error.into(),
    })
}

pub(super) async fn delete_upload(
    registry: &Registry,
    args: ImageDeleteArgs,
) -> anyhow::Result<()> {
    let deleted = match upload_key(&args) {
        Some(key) => images::delete_upload(registry, &key, now()).await,
        None => Err(Error::Gone),
    };
    deleted.map_err(|error| match error {
        Error::Gone => OperationRefused("Image upload not found".to_owned()).into(),
        Error::Busy => anyhow!("this upload is locked by a builder; try again in a moment"),
        Error::InProgress => {
            OperationRefused("Cannot delete because image upload in progress".to_owned()).into()
        }
        error => error.into(),
    })
}

/// Returns None if a part is malformed, so that no upload can have it.
fn upload_key(args: &ImageDeleteArgs) -> Option<UploadKey> {
    Some(UploadKey {
        build: BuildKey {
            image: args.image.parse().ok()?,
            build: args.build_id.parse().ok()?,
        },
        provider: args.provider.parse().ok()?,
        upload: args.upload_id.parse().ok()?,
    })
}
