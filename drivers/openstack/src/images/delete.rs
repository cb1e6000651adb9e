//! Deletion of images.

use nodeyard_driver::{Error, ImageTarget, Step};
use nodeyard_openstack::ErrorKind;

use crate::driver::{OpenStackDriver, text_id};
use crate::failure::failed;

impl OpenStackDriver {
    /// What is in use stays, with an error that says so; whoever wants it gone comes back.
    pub(crate) async fn step_delete_image(&self, target: &ImageTarget) -> Result<Step<()>, Error> {
        let glance = self.glance();
        let ids: Vec<String> = match &target.external_id {
            Some(id) => vec![text_id(id)?],
            None => {
                let owner = &self.options.owner;
                let upload = &target.upload;
                let tags = owner
                    .upload_tags(upload.build.build, upload.upload)
                    .to_metadata();
                let wanted = tags.iter().map(|(key, value)| (*key, value.as_str()));
                let images = glance.list(wanted).await.map_err(failed)?;
                images.into_iter().map(|image| image.id.into()).collect()
            }
        };
        for id in &ids {
            self.remove_image(id).await?;
        }
        self.catalog.forget_images().await;
        Ok(Step::Done(()))
    }

    pub(crate) async fn remove_image(&self, id: &str) -> Result<(), Error> {
        let glance = self.glance();
        let error = match glance.delete(id).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        match error.kind() {
            ErrorKind::Conflict => {
                let said = error
                    .said()
                    .unwrap_or("the cloud gives no reason")
                    .to_owned();
                Err(Error::retry(format!("image {id} is still in use: {said}")))
            }
            ErrorKind::Forbidden => {
                let image = glance.get(id).await.map_err(failed)?;
                let protected = image.is_some_and(|image| {
                    image
                        .properties()
                        .get("protected")
                        .is_some_and(|text| text == "true")
                });
                Err(if protected {
                    Error::permanent(format!("image {id} is protected; unprotect it first"))
                } else {
                    failed(error)
                })
            }
            _ => Err(failed(error)),
        }
    }
}
