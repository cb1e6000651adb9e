//! Which image a container is made from.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_driver::{BootImage, CreateOrder, Error, Readiness, image_filters};
use nodeyard_model::Timestamp;

use super::{ContainerDriver, text_id};
use crate::engine::Image;
use crate::options::{CloudImageOptions, ImageChoice, LabelImage, LabelOptions};

/// How long a list of images is believed when requests ask; launches always look.
const LIST_LIFETIME: Duration = Duration::from_secs(10);
/// How long nobody is told that an image can be pulled after that has failed.
const FAILURE_LIFETIME: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Catalog {
    images: Option<(Arc<[Image]>, Timestamp)>,
    /// References that could not be pulled: why, and when.
    failed_pulls: HashMap<Box<str>, (String, Timestamp)>,
}

impl ContainerDriver {
    /// None for an upload of ours.
    fn choice(&self, label: &LabelOptions) -> Result<Option<ImageChoice>, Error> {
        Ok(match &label.image {
            LabelImage::Disk(_) => None,
            LabelImage::Reference(reference) => Some(ImageChoice::Reference(reference.clone())),
            LabelImage::Cloud(name) => Some(self.cloud_image(name)?.choice.clone()),
        })
    }

    fn cloud_image(&self, name: &str) -> Result<&CloudImageOptions, Error> {
        let mut images = self.options.cloud_images.iter();
        images
            .find(|image| &*image.name == name)
            .ok_or_else(|| Error::permanent(format!("there is no cloud-image {name:?}")))
    }

    /// Who logs in to a container of this label.
    pub(super) fn login(&self, order: &CreateOrder, label: &LabelOptions) -> Result<Login, Error> {
        if let BootImage::Upload { image, .. } = &order.image {
            let mut known = self.options.disk_images.iter();
            let known = known.find(|known| known.name == *image);
            return Ok(Login {
                username: known.and_then(|image| image.username.clone()),
                is_recorded: true,
            });
        }
        let username = match &label.image {
            LabelImage::Cloud(name) => self.cloud_image(name)?.username.clone(),
            _ => None,
        };
        Ok(Login {
            is_recorded: username.is_some(),
            username,
        })
    }

    pub(super) async fn image_readiness(
        &self,
        label: &LabelOptions,
        now: Timestamp,
    ) -> Result<Readiness, Error> {
        let Some(choice) = self.choice(label)? else {
            return Ok(Readiness::Ready);
        };
        let images = self.recent_images(now).await?;
        if find(&choice, &images).is_some() {
            return Ok(Readiness::Ready);
        }
        Ok(match &choice {
            ImageChoice::Reference(reference) if !is_made_here(reference) => {
                match self.recent_failure(reference, now) {
                    Some(why) => Readiness::NotReady(why),
                    None => Readiness::Ready,
                }
            }
            choice => Readiness::NotReady(nothing_found(choice, &images)),
        })
    }

    async fn recent_images(&self, now: Timestamp) -> Result<Arc<[Image]>, Error> {
        if let Some((images, at)) = &self.catalog().images
            && now.since(*at) < LIST_LIFETIME
        {
            return Ok(Arc::clone(images));
        }
        let images: Arc<[Image]> = self.engine.images().await?.into();
        self.catalog().images = Some((Arc::clone(&images), now));
        Ok(images)
    }

    fn recent_failure(&self, reference: &str, now: Timestamp) -> Option<String> {
        let catalog = self.catalog();
        let (why, at) = catalog.failed_pulls.get(reference)?;
        (now.since(*at) < FAILURE_LIFETIME).then(|| why.clone())
    }

    /// The id of the image to use, pulled if need be.
    pub(super) async fn boot_image(
        &self,
        order: &CreateOrder,
        label: &LabelOptions,
        now: Timestamp,
    ) -> Result<String, Error> {
        if let BootImage::Upload { external_id, .. } = &order.image {
            return text_id(external_id);
        }
        let choice = self.choice(label)?.ok_or_else(|| {
            Error::permanent(format!(
                "label {} is made from an upload, but there is none",
                label.name
            ))
        })?;
        let images = self.engine.images().await?;
        if let Some(image) = find(&choice, &images) {
            return Ok(image.id.clone());
        }
        let reference = match &choice {
            ImageChoice::Reference(reference) if !is_made_here(reference) => reference,
            choice => {
                let nothing = nothing_found(choice, &images);
                return Err(Error::permanent(format!("label {}: {nothing}", label.name)));
            }
        };
        self.pull(reference, now).await
    }

    async fn pull(&self, reference: &str, now: Timestamp) -> Result<String, Error> {
        let _turn = self.pulling.lock().await;
        let choice = ImageChoice::Reference(reference.into());
        // Whoever had the turn before may have wanted the same.
        if let Some(image) = find(&choice, &self.engine.images().await?) {
            return Ok(image.id.clone());
        }
        let limit = self.options.launch_timeout;
        if let Err(error) = self.engine.pull(reference, limit).await {
            let failure = (error.to_string(), now);
            self.catalog()
                .failed_pulls
                .insert(reference.into(), failure);
            return Err(error);
        }
        self.catalog().failed_pulls.remove(reference);
        let images = self.engine.images().await?;
        let image = find(&choice, &images).ok_or_else(|| {
            Error::permanent(format!(
                "image {reference} was pulled, but is not called so here; write its full name, with the registry"
            ))
        })?;
        Ok(image.id.clone())
    }
}

/// Who logs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) username: Option<Box<str>>,
    /// The record of the node knows it from elsewhere.
    pub(super) is_recorded: bool,
}

fn find<'a>(choice: &ImageChoice, images: &'a [Image]) -> Option<&'a Image> {
    match choice {
        ImageChoice::Id(id) => images.iter().find(|image| image.has_id(id)),
        ImageChoice::Reference(reference) => images.iter().find(|image| image.is_called(reference)),
        ImageChoice::Filters(filters) => {
            let known: Vec<_> = images.iter().map(Image::to_cloud_image).collect();
            let newest = image_filters::newest(filters, &known)?.id.as_text()?;
            images.iter().find(|image| image.id == newest)
        }
    }
}

/// What was looked for in vain.
fn nothing_found(choice: &ImageChoice, images: &[Image]) -> String {
    match choice {
        ImageChoice::Id(id) => format!("the container runtime has no image with id {id}"),
        ImageChoice::Reference(name) => format!("image {name} is not in the container runtime"),
        ImageChoice::Filters(filters) => {
            let known: Vec<_> = images.iter().map(Image::to_cloud_image).collect();
            image_filters::nothing_found(filters, &known)
        }
    }
}

/// No registry has it.
fn is_made_here(reference: &str) -> bool {
    reference.starts_with("localhost/")
}
