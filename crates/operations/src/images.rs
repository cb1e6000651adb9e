//! Requesting, pausing and deleting builds and uploads of images.

use nodeyard_config::Config;
use nodeyard_model::{BuildKey, BuildState, ImageName, Timestamp, UploadKey, UploadState};
use nodeyard_store::registry::{Attempt, Registry};

use crate::{Error, LOCK_TIMEOUT};

/// Parses `<image>-<build id>`; the name of the image may contain dashes.
pub fn parse_build(text: &str) -> Option<BuildKey> {
    let (image, build) = text.rsplit_once('-')?;
    Some(BuildKey {
        image: image.parse().ok()?,
        build: build.parse().ok()?,
    })
}

/// Requests a build. `config`, where the caller has one, tells whether the image can be built.
pub async fn request_build(
    registry: &Registry,
    config: Option<&Config>,
    image: &ImageName,
) -> Result<(), Error> {
    if let Some(config) = config {
        let configured = config.images.get(image.as_str());
        if configured.ok_or(Error::NotConfigured)?.pause {
            return Err(Error::PausedByConfiguration);
        }
    }
    Ok(registry.images().request_build(image).await?)
}

pub async fn pause(registry: &Registry, image: &ImageName) -> Result<(), Error> {
    match registry.images().pause(image).await {
        Err(error) if error.is_no_node() => Err(Error::UnknownImage),
        paused => Ok(paused?),
    }
}

/// Clears the pause of an image. Returns false if it was not paused.
pub async fn unpause(registry: &Registry, image: &ImageName) -> Result<bool, Error> {
    Ok(registry.images().unpause(image).await?)
}

/// Marks a build as deleting; builders delete its files and uploads.
pub async fn delete_build(
    registry: &Registry,
    key: &BuildKey,
    now: Timestamp,
) -> Result<(), Error> {
    let images = registry.images();
    let held = match images.lock_build(key, LOCK_TIMEOUT).await? {
        Attempt::Gone => return Err(Error::Gone),
        Attempt::Busy => return Err(Error::Busy),
        Attempt::Held(held) => held,
    };
    let mut build = held.value;
    let building = build.state == BuildState::Building;
    if !building {
        build.set_state(BuildState::Deleting, now);
        images.store_build(&held.guard, key, &build).await?;
    }
    held.guard.release().await?;
    if building {
        return Err(Error::InProgress);
    }
    Ok(())
}

/// Marks an upload as deleting; a builder deletes it from its provider.
pub async fn delete_upload(
    registry: &Registry,
    key: &UploadKey,
    now: Timestamp,
) -> Result<(), Error> {
    let images = registry.images();
    let held = match images.lock_upload(key, LOCK_TIMEOUT).await? {
        Attempt::Gone => return Err(Error::Gone),
        Attempt::Busy => return Err(Error::Busy),
        Attempt::Held(held) => held,
    };
    let mut upload = held.value;
    let uploading = upload.state == UploadState::Uploading;
    if !uploading {
        upload.set_state(UploadState::Deleting, now);
        images.store_upload(&held.guard, key, &upload).await?;
    }
    held.guard.release().await?;
    if uploading {
        return Err(Error::InProgress);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_is_named_by_its_image_and_id() {
        let build = "0123456789abcdef0123456789abcdef";
        let key = parse_build(&format!("debian-bookworm-{build}")).unwrap();
        assert_eq!(key.image.as_str(), "debian-bookworm");
        assert_eq!(key.build.to_string(), build);
        for bad in ["", "debian", "debian-1", &format!("-{build}"), build] {
            assert_eq!(parse_build(bad), None, "{bad}");
        }
    }
}
