//! Uploads: root file system archives that become images of the runtime.

use nodeyard_driver::{Error, ImageTarget, Progress, Tags, UploadOrder, UploadedImage};

use super::{ContainerDriver, text_id};
use crate::client::ImageSummary;
use crate::image_body::check_format;

impl ContainerDriver {
    pub(super) async fn upload_image(
        &self,
        order: &UploadOrder,
        progress: &Progress,
    ) -> Result<UploadedImage, Error> {
        check_format(&order.format)?;
        if !order.marks.is_empty() {
            return Err(Error::permanent(
                "images of a container runtime have no tags without a value; use properties",
            ));
        }
        let reference = reference(order);
        let earlier = if order.first_attempt {
            None
        } else {
            self.adopt_image(&order.tags).await?
        };
        let id = match earlier {
            Some(image) => image.id,
            None => self.client.import(order, &reference, progress).await?,
        };
        progress.set_external_id(id.as_str());
        Ok(UploadedImage {
            external_id: id.as_str().into(),
            external_name: reference.into(),
        })
    }

    /// Takes over one image that an earlier call imported for this order, and removes all others.
    async fn adopt_image(&self, tags: &Tags) -> Result<Option<ImageSummary>, Error> {
        let mut images = self.images_with(|of| of == tags).await?.into_iter();
        let kept = images.next();
        for image in images {
            self.remove_image(&image).await?;
        }
        Ok(kept)
    }

    async fn images_with(
        &self,
        matches: impl Fn(&Tags) -> bool + Send,
    ) -> Result<Vec<ImageSummary>, Error> {
        let mut images = self.client.images().await?;
        images.retain(|image| matches(&image.tags()));
        // The last of several imports has the name.
        images.sort_by_key(|image| image.references().next().is_none());
        Ok(images)
    }

    pub(super) async fn delete_upload(&self, target: &ImageTarget) -> Result<(), Error> {
        let (owner, upload) = (&self.options.owner, &target.upload);
        let images = self
            .images_with(|tags| owner.owns_upload(tags, upload.build.build, upload.upload))
            .await?;
        let mut ids: Vec<String> = images.into_iter().map(|image| image.id).collect();
        if let Some(id) = &target.external_id {
            ids.push(text_id(id)?);
        }
        self.remove_images(&ids).await
    }

    /// Returns when the images are gone. An image that containers were made from stays until they are removed.
    pub(super) async fn remove_images(&self, ids: &[String]) -> Result<(), Error> {
        let timer = self.options.poll.start();
        loop {
            let mut images = self.client.images().await?;
            images.retain(|image| ids.contains(&image.id));
            if images.is_empty() {
                return Ok(());
            }
            for image in &images {
                self.remove_image(image).await?;
            }
            timer.tick().await;
        }
    }

    /// Removes an image that no container uses: Podman, if forced, would remove the containers too.
    async fn remove_image(&self, image: &ImageSummary) -> Result<(), Error> {
        let containers = self.client.containers().await?;
        if containers.iter().any(|container| container.uses(&image.id)) {
            return Ok(());
        }
        let mut names: Vec<&str> = image.references().collect();
        if names.is_empty() {
            names.push(&image.id);
        }
        for name in names {
            if !self.client.remove_image(name).await? {
                break;
            }
        }
        Ok(())
    }
}

/// Returns a readable name in the characters that runtimes allow, unique for each upload.
fn reference(order: &UploadOrder) -> String {
    let name: String = order
        .name
        .chars()
        .map(|char| match char.to_ascii_lowercase() {
            char @ ('a'..='z' | '0'..='9') => char,
            _ => '-',
        })
        .collect();
    let mut words = name.split('-').filter(|word| !word.is_empty());
    let first = words.next().unwrap_or("image").to_owned();
    let name = words.fold(first, |name, word| format!("{name}-{word}"));
    let build = order.upload.build.build.to_string().replace('-', "");
    format!("localhost/nodeyard/{name}-{build}-{}", order.upload.upload)
}
