//! Deletion of images.

use nodeyard_driver::{Error, ImageTarget};
use nodeyard_openstack::ErrorKind;

use crate::driver::{OpenStackDriver, text_id};
use crate::failure::driver_error;

impl OpenStackDriver {
    /// Deletes the image of an upload. Fails with class `Retry` if the image is in use.
    pub(crate) async fn delete_upload(&self, target: &ImageTarget) -> Result<(), Error> {
        let ids: Vec<String> = match &target.external_id {
            Some(id) => vec![text_id(id)?],
            None => {
                let build = target.upload.build.build;
                let tags = self.options.owner.upload_tags(build, target.upload.upload);
                let images = self.images_with(&tags).await.map_err(driver_error)?;
                images.into_iter().map(|image| image.id.into()).collect()
            }
        };
        for id in &ids {
            self.delete_image_by_id(id).await?;
        }
        self.catalog.forget_images().await;
        Ok(())
    }

    pub(crate) async fn delete_image_by_id(&self, id: &str) -> Result<(), Error> {
        let glance = self.glance();
        let error = match glance.delete(id).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        match error.kind() {
            ErrorKind::Conflict => {
                let reason = error.message().unwrap_or("no reason given");
                Err(Error::retry(format!(
                    "image {id} is still in use: {reason}"
                )))
            }
            ErrorKind::Forbidden => {
                let image = glance.get(id).await.map_err(driver_error)?;
                let protected = image.is_some_and(|image| {
                    let properties = image.properties();
                    properties
                        .get("protected")
                        .is_some_and(|text| text == "true")
                });
                Err(if protected {
                    Error::permanent(format!("image {id} is protected; unprotect it first"))
                } else {
                    driver_error(error)
                })
            }
            _ => Err(driver_error(error)),
        }
    }
}
