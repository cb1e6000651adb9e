//! Finds the image that a container is created from, and pulls it if necessary.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_driver::{BootImage, CreateOrder, Error, Progress, Readiness, image_filters};
use tokio::time::Instant;

use super::{ContainerDriver, text_id};
use crate::client::ImageSummary;
use crate::options::{
    ContainerCloudImageOptions, ContainerImage, ContainerImageChoice, ContainerLabelOptions,
};

/// How long a cached list of images serves [`ContainerDriver::image_readiness`]; launches always list.
const LIST_LIFETIME: Duration = Duration::from_secs(10);
/// How long an image is not ready after its pull failed.
const FAILURE_LIFETIME: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct ImageCache {
    images: Option<(Arc<[ImageSummary]>, Instant)>,
    /// References whose pull failed, with the error and the time.
    failed_pulls: HashMap<Box<str>, (String, Instant)>,
}

impl ContainerDriver {
    /// Returns how the image of a label is chosen, or None for an upload.
    fn choice(&self, label: &ContainerLabelOptions) -> Result<Option<ContainerImageChoice>, Error> {
        Ok(match &label.image {
            ContainerImage::Disk(_) => None,
            ContainerImage::Reference(reference) => {
                Some(ContainerImageChoice::Reference(reference.clone()))
            }
            ContainerImage::Cloud(name) => Some(self.cloud_image(name)?.choice.clone()),
        })
    }

    pub(super) fn cloud_image(&self, name: &str) -> Result<&ContainerCloudImageOptions, Error> {
        let mut images = self.options.cloud_images.iter();
        images
            .find(|image| &*image.name == name)
            .ok_or_else(|| Error::permanent(format!("there is no cloud-image {name:?}")))
    }

    pub(super) async fn image_readiness(
        &self,
        label: &ContainerLabelOptions,
    ) -> Result<Readiness, Error> {
        let Some(choice) = self.choice(label)? else {
            return Ok(Readiness::Ready);
        };
        let images = self.cached_images().await?;
        if find(&choice, &images).is_some() {
            return Ok(Readiness::Ready);
        }
        Ok(match &choice {
            ContainerImageChoice::Reference(reference) if !is_local(reference) => {
                match self.recent_pull_error(reference) {
                    Some(error) => Readiness::NotReady(error),
                    None => Readiness::Ready,
                }
            }
            choice => Readiness::NotReady(nothing_found(choice, &images)),
        })
    }

    async fn cached_images(&self) -> Result<Arc<[ImageSummary]>, Error> {
        if let Some((images, at)) = &self.image_cache().images
            && at.elapsed() < LIST_LIFETIME
        {
            return Ok(Arc::clone(images));
        }
        let images: Arc<[ImageSummary]> = self.client.images().await?.into();
        self.image_cache().images = Some((Arc::clone(&images), Instant::now()));
        Ok(images)
    }

    fn recent_pull_error(&self, reference: &str) -> Option<String> {
        let cache = self.image_cache();
        let (error, at) = cache.failed_pulls.get(reference)?;
        (at.elapsed() < FAILURE_LIFETIME).then(|| error.clone())
    }

    /// Returns the id of the image to use. Pulls it if necessary.
    pub(super) async fn boot_image(
        &self,
        order: &CreateOrder,
        label: &ContainerLabelOptions,
        progress: &Progress,
    ) -> Result<String, Error> {
        if let BootImage::Upload { external_id, .. } = &order.image {
            return text_id(external_id);
        }
        let choice = self.choice(label)?.ok_or_else(|| {
            Error::permanent(format!(
                "label {} needs an uploaded image, but none exists",
                label.name
            ))
        })?;
        let images = self.client.images().await?;
        if let Some(image) = find(&choice, &images) {
            return Ok(image.id.clone());
        }
        match &choice {
            ContainerImageChoice::Reference(reference) if !is_local(reference) => {
                progress.set_stage(format!("pulling image {reference}"));
                self.pull(reference).await
            }
            choice => {
                let nothing = nothing_found(choice, &images);
                Err(Error::permanent(format!("label {}: {nothing}", label.name)))
            }
        }
    }

    async fn pull(&self, reference: &str) -> Result<String, Error> {
        let _turn = self.pulls.lock(reference).await;
        let choice = ContainerImageChoice::Reference(reference.into());
        // Another order may have pulled it in the meantime.
        if let Some(image) = find(&choice, &self.client.images().await?) {
            return Ok(image.id.clone());
        }
        let limit = self.options.launch_timeout;
        if let Err(error) = self.client.pull(reference, limit).await {
            let failure = (error.to_string(), Instant::now());
            self.image_cache()
                .failed_pulls
                .insert(reference.into(), failure);
            return Err(error);
        }
        self.image_cache().failed_pulls.remove(reference);
        let images = self.client.images().await?;
        let image = find(&choice, &images).ok_or_else(|| {
            Error::permanent(format!(
                "image {reference} was pulled, but the container runtime lists it under another name; \
                 use its full name, with the registry"
            ))
        })?;
        Ok(image.id.clone())
    }
}

fn find<'a>(choice: &ContainerImageChoice, images: &'a [ImageSummary]) -> Option<&'a ImageSummary> {
    match choice {
        ContainerImageChoice::Id(id) => images.iter().find(|image| image.has_id(id)),
        ContainerImageChoice::Reference(reference) => {
            images.iter().find(|image| image.has_reference(reference))
        }
        ContainerImageChoice::Filters(filters) => {
            let known: Vec<_> = images.iter().map(ImageSummary::to_cloud_image).collect();
            let newest = image_filters::newest(filters, &known)?.id.as_text()?;
            images.iter().find(|image| image.id == newest)
        }
    }
}

/// Returns why [`find`] found nothing.
fn nothing_found(choice: &ContainerImageChoice, images: &[ImageSummary]) -> String {
    match choice {
        ContainerImageChoice::Id(id) => {
            format!("the container runtime has no image with id {id}")
        }
        ContainerImageChoice::Reference(name) => {
            format!("image {name} is not in the container runtime")
        }
        ContainerImageChoice::Filters(filters) => {
            let known: Vec<_> = images.iter().map(ImageSummary::to_cloud_image).collect();
            image_filters::nothing_found(filters, &known)
        }
    }
}

/// Returns whether an image exists on this host only, in no registry.
fn is_local(reference: &str) -> bool {
    reference.starts_with("localhost/")
}
