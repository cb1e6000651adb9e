//! Uploads.
//!
//! The id of an image is ours to choose, so it is made from the tags of the upload: a second worker, or one whose answer
//! was lost, asks for the same image and is told that it is there. Glance never gives the id of a deleted image again,
//! hence the number of the attempt in it.
//!
//! ```text
//! begin     Ordered   an image without data, or what an earlier run has left
//! send      Made      its data
//! confirm   Sent      the wait for the data, what the cloud has of it, and then the properties
//! ```

mod begin;
mod confirm;
mod properties;
mod send;

use nodeyard_driver::{Error, ErrorClass, State, Step, UploadOrder, UploadedImage};
use nodeyard_model::Timestamp;
use nodeyard_openstack::{self as openstack, Digests, ErrorKind, Images};
use serde::{Deserialize, Serialize};

use crate::driver::OpenStackDriver;
use crate::failure;

/// How far an upload is.
#[derive(Debug, Default, Serialize, Deserialize)]
enum Upload {
    /// Asked for; an image may have been made without our knowing.
    #[default]
    Ordered,
    /// The image is there, without its data.
    Made {
        image: Box<str>,
    },
    Sent(Sent),
}

/// An image whose data is there or on its way.
#[derive(Debug, Serialize, Deserialize)]
struct Sent {
    image: Box<str>,
    /// Of our data; none of what somebody else has sent for the same upload.
    digests: Option<Digests>,
    since: Timestamp,
}

impl OpenStackDriver {
    pub(crate) async fn step_upload(
        &self,
        order: &UploadOrder,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<UploadedImage>, Error> {
        match state.read()? {
            Upload::Ordered => self.begin_upload(order, state, now).await,
            Upload::Made { image } => self.send_data(order, image, state, now).await,
            Upload::Sent(sent) => self.confirm_upload(order, sent, state, now).await,
        }
    }

    pub(super) fn glance(&self) -> Images {
        Images::new(self.session.clone())
    }
}

fn vanished(image: &str) -> Error {
    Error::retry(format!("image {image} was deleted while it was made"))
}

/// A service that fails at something may not do so the next time, and a step that is taken again looks first.
fn failed(error: openstack::Error) -> Error {
    match error.kind() {
        ErrorKind::Fault | ErrorKind::Auth => failure::of_class(ErrorClass::Retry, error),
        _ => failure::failed(error),
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
            let error = failed(error);
            assert_eq!(error.class(), ErrorClass::Retry);
            assert_eq!(with_causes(&error), text);
        }
        let quota = openstack::Error::new(ErrorKind::Quota, Service::Image, "store data");
        assert_eq!(failed(quota).class(), ErrorClass::Quota);
    }
}
