//! Uploads.
//!
//! The id of an image is ours to choose, so it is computed from the tags of the upload: a second worker, or one that
//! lost a response, asks for the same image and learns that it exists. Glance never reuses the id of a deleted image,
//! hence the number of the attempt in it.

mod create;
mod properties;
mod send;
mod verify;

use nodeyard_driver::{Error, ErrorClass, Progress, Tags, UploadOrder, UploadedImage};
use nodeyard_openstack::{self as openstack, ErrorKind, Image, Images};

use crate::driver::OpenStackDriver;
use crate::failure;

impl OpenStackDriver {
    pub(crate) async fn upload_image(
        &self,
        order: &UploadOrder,
        progress: &Progress,
    ) -> Result<UploadedImage, Error> {
        properties::check(order)?;
        let existing = match order.first_attempt {
            true => None,
            false => self.find_image(order).await?,
        };
        let image = match existing {
            Some(image) => image,
            None => self.create_image(order).await?,
        };
        progress.set_external_id(&*image.id);
        let sent = self.send_data(order, &image, progress).await?;
        self.verify_and_publish(order, &image.id, sent).await
    }

    pub(super) fn glance(&self) -> Images {
        Images::new(self.session.clone())
    }

    pub(super) async fn images_with(&self, tags: &Tags) -> Result<Vec<Image>, openstack::Error> {
        let metadata = tags.to_metadata();
        let wanted = metadata.iter().map(|(key, value)| (*key, value.as_str()));
        self.glance().list(wanted).await
    }
}

fn deleted_meanwhile(image: &str) -> Error {
    Error::retry(format!("image {image} was deleted during the upload"))
}

/// A service that fails may recover, and the next attempt looks first for what is there.
fn upload_error(error: openstack::Error) -> Error {
    match error.kind() {
        ErrorKind::Fault | ErrorKind::Auth => failure::with_class(ErrorClass::Retry, error),
        _ => failure::driver_error(error),
    }
}

#[cfg(test)]
mod tests {
    use nodeyard_model::with_causes;
    use nodeyard_openstack::Service;

    use super::*;

    #[test]
    fn what_may_pass_is_tried_again_and_told_with_its_cause() {
        for kind in [ErrorKind::Fault, ErrorKind::Auth, ErrorKind::Unavailable] {
            let cause = std::io::Error::other("the disk is full");
            let error = openstack::Error::new(kind, Service::Image, "store data").because(cause);
            let text = format!("{error}: the disk is full");
            let error = upload_error(error);
            assert_eq!(error.class(), ErrorClass::Retry);
            assert_eq!(with_causes(&error), text);
        }
        let quota = openstack::Error::new(ErrorKind::Quota, Service::Image, "store data");
        assert_eq!(upload_error(quota).class(), ErrorClass::Quota);
    }
}
