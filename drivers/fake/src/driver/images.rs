//! Uploads and deletions of images.

use nodeyard_driver::{
    CloudImage, Error, ImageStatus, ImageTarget, Progress, Tags, UploadOrder, UploadedImage,
};
use serde_json::{Map, Value};

use super::{FakeDriver, server_id};
use crate::client::Image;

impl FakeDriver {
    pub(super) async fn upload_image(
        &self,
        order: &UploadOrder,
        progress: &Progress,
    ) -> Result<UploadedImage, Error> {
        let mut image = None;
        if !order.first_attempt {
            image = self.find_upload(&order.tags).await?;
        }
        let image = match image {
            Some(image) => image,
            None => {
                progress.clear_external_id();
                let arguments = upload_arguments(order)?;
                let image: Image = self.client.call("create_image", arguments).await?;
                image.into_cloud_image()
            }
        };
        progress.set_external_id(image.id.clone());
        self.wait_until_saved(&image).await?;
        self.images.invalidate();
        Ok(UploadedImage {
            external_id: image.id,
            external_name: order.name.clone(),
        })
    }

    /// Returns a usable image that an earlier attempt created for the upload, and deletes all its others.
    async fn find_upload(&self, tags: &Tags) -> Result<Option<CloudImage>, Error> {
        let mut usable = None;
        let mut images = self.client.list_images().await?;
        images.retain(|image| image.tags() == *tags);
        for image in images {
            if usable.is_none() && image.status != ImageStatus::Failed {
                usable = Some(image);
            } else {
                self.client.delete_image(&server_id(&image.id)?).await?;
            }
        }
        Ok(usable)
    }

    async fn wait_until_saved(&self, image: &CloudImage) -> Result<(), Error> {
        let id = server_id(&image.id)?;
        let timer = self.options.poll.start();
        loop {
            let found = self.client.get_image(&id).await?;
            match found.map(|image| image.status) {
                Some(ImageStatus::Active) => return Ok(()),
                Some(ImageStatus::Pending) => timer.tick().await,
                Some(ImageStatus::Failed) | None => {
                    return Err(Error::retry(format!("the cloud failed to save image {id}")));
                }
            }
        }
    }

    pub(super) async fn delete_upload(&self, target: &ImageTarget) -> Result<(), Error> {
        let images = self.images_of(target).await?;
        for image in &images {
            self.client.delete_image(image).await?;
        }
        self.images.invalidate();
        let timer = self.options.poll.start();
        for image in &images {
            while self.client.get_image(image).await?.is_some() {
                timer.tick().await;
            }
        }
        Ok(())
    }

    async fn images_of(&self, target: &ImageTarget) -> Result<Vec<String>, Error> {
        if let Some(id) = &target.external_id {
            let id = server_id(id)?;
            if self.client.get_image(&id).await?.is_some() {
                return Ok(vec![id]);
            }
            // The id may be that of an earlier attempt.
        }
        let owner = &self.options.owner;
        let (build, upload) = (target.upload.build.build, target.upload.upload);
        let images = self.client.list_images().await?;
        let images = images
            .iter()
            .filter(|image| owner.owns_upload(&image.tags(), build, upload));
        images.map(|image| server_id(&image.id)).collect()
    }
}

fn upload_arguments(order: &UploadOrder) -> Result<Value, Error> {
    let filename = order.file.to_str().ok_or_else(|| {
        let path = order.file.display();
        Error::permanent(format!(
            "invalid image file name {path}: not UTF-8; rename it"
        ))
    })?;
    let mut arguments = Map::new();
    for (key, value) in &order.metadata {
        arguments.insert(key.clone(), value.as_str().into());
    }
    for (key, value) in order.tags.to_metadata() {
        arguments.insert(key.to_owned(), value.into());
    }
    arguments.insert("name".to_owned(), (&*order.name).into());
    arguments.insert("filename".to_owned(), filename.into());
    arguments.insert("disk_format".to_owned(), (&*order.format).into());
    let marks: Vec<&str> = order.marks.iter().map(|mark| &**mark).collect();
    arguments.insert("tags".to_owned(), marks.into());
    arguments.insert("wait".to_owned(), false.into());
    for (key, digest) in [("md5", &order.md5), ("sha256", &order.sha256)] {
        if let Some(digest) = digest {
            arguments.insert(key.to_owned(), (&**digest).into());
        }
    }
    Ok(arguments.into())
}
