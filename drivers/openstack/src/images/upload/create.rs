//! The first part of an upload: an image without data, or what an earlier attempt left.

use nodeyard_driver::{Error, Tags, UploadOrder};
use nodeyard_openstack::{ErrorKind, Image, NewImage};
use sha2::{Digest as _, Sha256};

use super::upload_error;
use crate::driver::OpenStackDriver;
use crate::images::{UNVERIFIED, cloud_image};

/// More attempts than one upload ever needs.
const MAX_ATTEMPTS: u32 = 1000;

impl OpenStackDriver {
    /// Returns the image of an earlier attempt that has its data or is receiving it. Deletes the upload's other images.
    pub(super) async fn find_image(&self, order: &UploadOrder) -> Result<Option<Image>, Error> {
        let images = self.images_with(&order.tags).await;
        let mut images = images.map_err(upload_error)?;
        images.retain(|image| cloud_image(image).tags() == order.tags);
        let rank = |image: &Image| match &*image.status {
            "active" if !image.properties().contains_key(UNVERIFIED) => 0,
            "active" => 1,
            "saving" | "uploading" | "importing" => 2,
            _ => 3,
        };
        images.sort_by_key(rank);
        let mut usable = None;
        for image in images {
            if usable.is_none() && rank(&image) < 3 {
                usable = Some(image);
            } else {
                let deleted = self.glance().delete(&image.id).await;
                deleted.map_err(upload_error)?;
            }
        }
        Ok(usable)
    }

    /// Creates an image without data, or returns the one that another worker has created for the same upload.
    pub(super) async fn create_image(&self, order: &UploadOrder) -> Result<Image, Error> {
        let mut properties = order.tags.to_metadata();
        properties.insert(UNVERIFIED, "true".to_owned());
        let container = order.metadata.get("container_format");
        for attempt in 0..MAX_ATTEMPTS {
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
                Ok(image) => return Ok(image),
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    let existing = self.glance().get(&id).await.map_err(upload_error)?;
                    if let Some(image) = existing {
                        return Ok(image);
                    }
                }
                Err(error) => return Err(upload_error(error)),
            }
        }
        Err(Error::permanent(format!(
            "image {} was created and deleted {MAX_ATTEMPTS} times; delete its upload",
            order.name
        )))
    }
}

/// Returns the id of the image: the same for all workers that make the same attempt at the same upload.
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
    fn all_workers_compute_the_same_id_for_an_attempt() {
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
