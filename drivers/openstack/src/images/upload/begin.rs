//! The beginning: an image without data, or what an earlier run has left.

use nodeyard_driver::{Error, State, Step, Tags, UploadOrder, UploadedImage};
use nodeyard_model::Timestamp;
use nodeyard_openstack::{ErrorKind, Image, NewImage};
use sha2::{Digest as _, Sha256};

use super::properties::check;
use super::{Sent, Upload, failed};
use crate::driver::OpenStackDriver;
use crate::images::{UNVERIFIED, cloud_image};

/// More attempts at one upload than anybody makes.
const MOST_ATTEMPTS: u32 = 1000;

impl OpenStackDriver {
    pub(super) async fn begin_upload(
        &self,
        order: &UploadOrder,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<UploadedImage>, Error> {
        check(order)?;
        let earlier = match state.take_fresh() {
            true => None,
            false => self.take_over(order).await?,
        };
        let (id, next) = match earlier {
            Some(image) => {
                let sent = Sent {
                    image: image.clone(),
                    digests: None,
                    since: now,
                };
                (image, Upload::Sent(sent))
            }
            None => {
                let image = self.make(order).await?;
                (image.clone(), Upload::Made { image })
            }
        };
        state.external_id = Some((&*id).into());
        state.write(&next)?;
        Ok(Step::go_on())
    }

    /// What an earlier run of this order left: an image that is complete or that somebody is completing is taken over,
    /// everything else goes.
    async fn take_over(&self, order: &UploadOrder) -> Result<Option<Box<str>>, Error> {
        let tags = order.tags.to_metadata();
        let wanted = tags.iter().map(|(key, value)| (*key, value.as_str()));
        let mut images = self.glance().list(wanted).await.map_err(failed)?;
        images.retain(|image| cloud_image(image).tags() == order.tags);
        let rank = |image: &Image| match &*image.status {
            "active" if !image.properties().contains_key(UNVERIFIED) => 0,
            "active" => 1,
            "saving" | "uploading" | "importing" => 2,
            _ => 3,
        };
        images.sort_by_key(rank);
        let mut good = None;
        for image in images {
            if good.is_none() && rank(&image) < 3 {
                good = Some(image.id);
            } else {
                self.glance().delete(&image.id).await.map_err(failed)?;
            }
        }
        Ok(good)
    }

    async fn make(&self, order: &UploadOrder) -> Result<Box<str>, Error> {
        let mut properties = order.tags.to_metadata();
        properties.insert(UNVERIFIED, "true".to_owned());
        let container = order.metadata.get("container_format");
        for attempt in 0..MOST_ATTEMPTS {
            let id = image_id(&order.tags, attempt);
            let image = NewImage {
                id: &id,
                name: &order.name,
                disk_format: &order.format,
                container_format: container.map_or("bare", String::as_str),
                visibility: "private",
                properties: properties.clone(),
            };
            match self.glance().create(&image).await {
                Ok(image) => return Ok(image.id),
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    let there = self.glance().get(&id).await.map_err(failed)?;
                    if let Some(image) = there {
                        return Ok(image.id);
                    }
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Err(Error::permanent(format!(
            "image {} was begun and given up {MOST_ATTEMPTS} times; delete its upload",
            order.name
        )))
    }
}

/// The same for everybody who works on the same attempt at the same upload.
fn image_id(tags: &Tags, attempt: u32) -> String {
    let mut hasher = Sha256::new();
    for (key, value) in tags.to_metadata() {
        hasher.update(key);
        hasher.update([0]);
        hasher.update(value);
        hasher.update([0]);
    }
    hasher.update(attempt.to_be_bytes());
    let digest = hasher.finalize();
    let mut bytes = [0; 16];
    for (byte, from) in bytes.iter_mut().zip(digest) {
        *byte = from;
    }
    uuid::Builder::from_custom_bytes(bytes)
        .into_uuid()
        .to_string()
}

#[cfg(test)]
mod tests {
    use nodeyard_driver::{Publication, SystemId};

    use super::*;

    fn tags(system: &str, id: &str) -> Tags {
        Tags {
            system: Some(SystemId::new(system)),
            publication: Some(Publication {
                image: "jammy".into(),
                id: id.into(),
            }),
            ..Tags::default()
        }
    }

    #[test]
    fn every_attempt_at_an_upload_has_an_id_that_everybody_knows() {
        let first = image_id(&tags("a", "1"), 0);
        assert_eq!(first, image_id(&tags("a", "1"), 0));
        for other in [
            image_id(&tags("a", "1"), 1),
            image_id(&tags("a", "2"), 0),
            image_id(&tags("b", "1"), 0),
        ] {
            assert_ne!(first, other);
        }
        assert!(first.parse::<uuid::Uuid>().is_ok());
    }
}
