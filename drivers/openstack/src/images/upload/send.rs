//! The data of an image.

use nodeyard_driver::{Error, State, Step, UploadOrder, UploadedImage};
use nodeyard_model::Timestamp;
use nodeyard_openstack::{Digests, ErrorKind, Place, STAGED_IMPORT};

use super::{Sent, Upload, failed, vanished};
use crate::driver::OpenStackDriver;

impl OpenStackDriver {
    pub(super) async fn send_data(
        &self,
        order: &UploadOrder,
        image: Box<str>,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<UploadedImage>, Error> {
        // Whatever comes of it, what is there has to be looked at again.
        state.write(&Upload::Ordered)?;
        let found = self.glance().get(&image).await.map_err(failed)?;
        let digests = match found.as_ref().map(|found| &*found.status) {
            Some("queued") => self.send(order, &image).await?,
            // Somebody does the same, or the answer was lost.
            Some("active" | "saving" | "uploading" | "importing") => None,
            _ => return Err(vanished(&image)),
        };
        state.write(&Upload::Sent(Sent {
            image,
            digests,
            since: now,
        }))?;
        Ok(Step::go_on())
    }

    /// The digests of what was sent; none where somebody else has sent it.
    async fn send(&self, order: &UploadOrder, image: &str) -> Result<Option<Digests>, Error> {
        let glance = self.glance();
        let place = match self.options.image_import {
            true => Place::Stage,
            false => Place::Image,
        };
        if place == Place::Stage {
            self.imports().await?;
        }
        let progress = order.progress.clone();
        let told = move |sent, all| progress.report(sent, all);
        let sent = glance.send(image, &order.file, place, told).await;
        let digests = match sent {
            Err(error) if error.kind() == ErrorKind::Conflict => return Ok(None),
            sent => sent.map_err(failed)?,
        };
        if place == Place::Stage {
            glance.import(image).await.map_err(failed)?;
        }
        Ok(Some(digests))
    }

    /// Whether the cloud can import what is staged.
    async fn imports(&self) -> Result<(), Error> {
        let methods = self.glance().import_methods().await.map_err(failed)?;
        if methods.iter().any(|offered| offered == STAGED_IMPORT) {
            return Ok(());
        }
        let offered = match methods.as_slice() {
            [] => "none".to_owned(),
            methods => methods.join(", "),
        };
        Err(Error::permanent(format!(
            "the cloud does not import images by {STAGED_IMPORT}; it offers {offered}"
        )))
    }
}
