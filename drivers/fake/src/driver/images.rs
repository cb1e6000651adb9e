//! Uploads.

use nodeyard_driver::{
    CloudImage, Error, ImageStatus, ImageTarget, State, Step, Tags, UploadOrder, UploadedImage,
};
use nodeyard_model::{Timestamp, UploadKey};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{FakeDriver, server_id};
use crate::client::Image;

#[derive(Debug, Default, Serialize, Deserialize)]
enum Upload {
    /// Asked for, perhaps already made without our knowing.
    #[default]
    Ordered,
    Saving {
        image: String,
        since: Timestamp,
    },
}

#[derive(Debug, Default, Serialize, Deserialize)]
enum Delete {
    #[default]
    Asked,
    Going {
        images: Vec<String>,
        since: Timestamp,
    },
}

impl FakeDriver {
    pub(super) async fn step_upload(
        &self,
        order: &UploadOrder,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<UploadedImage>, Error> {
        match state.read()? {
            Upload::Ordered => {
                let arguments = upload_arguments(order)?;
                let earlier = if state.take_fresh() {
                    None
                } else {
                    self.take_over(&order.tags).await?
                };
                let image = match earlier {
                    Some(image) => image,
                    None => {
                        let image: Image = self.client.call("create_image", arguments).await?;
                        image.into_cloud_image()
                    }
                };
                state.external_id = Some(image.id.clone());
                state.write(&Upload::Saving {
                    image: server_id(&image.id)?,
                    since: now,
                })?;
                Ok(Step::go_on())
            }
            Upload::Saving { image, since } => {
                let found = self.client.get_image(&image).await?;
                match found.as_ref().map(|image| image.status) {
                    Some(ImageStatus::Active) => {
                        self.images.outdated();
                        Ok(Step::Done(UploadedImage {
                            external_id: image.as_str().into(),
                            external_name: order.name.clone(),
                        }))
                    }
                    Some(ImageStatus::Pending) => {
                        Ok(Step::wait(self.options.poll.after(now.since(since))))
                    }
                    Some(ImageStatus::Failed) | None => {
                        state.write(&Upload::Ordered)?;
                        Err(Error::retry(format!(
                            "the cloud could not save image {image}"
                        )))
                    }
                }
            }
        }
    }

    /// What an earlier run of this order left behind: one good image is taken over, everything else goes.
    async fn take_over(&self, tags: &Tags) -> Result<Option<CloudImage>, Error> {
        let mut good = None;
        let mut images = self.client.list_images().await?;
        images.retain(|image| image.tags() == *tags);
        for image in images {
            if good.is_none() && image.status != ImageStatus::Failed {
                good = Some(image);
            } else {
                self.client.delete_image(&server_id(&image.id)?).await?;
            }
        }
        Ok(good)
    }

    async fn images_of(&self, upload: &UploadKey) -> Result<Vec<CloudImage>, Error> {
        let owner = &self.options.owner;
        let mut images = self.client.list_images().await?;
        images.retain(|image| owner.owns_upload(&image.tags(), upload.build.build, upload.upload));
        Ok(images)
    }

    pub(super) async fn step_delete_image(
        &self,
        target: &ImageTarget,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<()>, Error> {
        match state.read()? {
            Delete::Asked => {
                let images = match &target.external_id {
                    Some(id) => vec![server_id(id)?],
                    None => {
                        let images = self.images_of(&target.upload).await?;
                        let ids = images.iter().map(|image| server_id(&image.id));
                        ids.collect::<Result<_, _>>()?
                    }
                };
                for image in &images {
                    self.client.delete_image(image).await?;
                }
                if images.is_empty() {
                    return Ok(Step::Done(()));
                }
                self.images.outdated();
                state.write(&Delete::Going { images, since: now })?;
                Ok(Step::go_on())
            }
            Delete::Going { images, since } => {
                for image in &images {
                    if self.client.get_image(image).await?.is_some() {
                        return Ok(Step::wait(self.options.poll.after(now.since(since))));
                    }
                }
                Ok(Step::Done(()))
            }
        }
    }
}

fn upload_arguments(order: &UploadOrder) -> Result<Value, Error> {
    let filename = order.file.to_str().ok_or_else(|| {
        let path = order.file.display();
        Error::permanent(format!(
            "the name of image file {path} is not UTF-8; rename it"
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
