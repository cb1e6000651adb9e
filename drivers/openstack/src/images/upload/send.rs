//! The data of an image, by us or by the cloud.

use nodeyard_driver::{Error, ImageSource, State, Step, UploadOrder, UploadedImage};
use nodeyard_model::Timestamp;
use nodeyard_openstack::{Digests, ErrorKind, Import, Place};

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

    /// The digests of what was sent; none of what the cloud fetches by itself.
    async fn send(&self, order: &UploadOrder, image: &str) -> Result<Option<Digests>, Error> {
        let glance = self.glance();
        let path = match &order.source {
            ImageSource::File(path) => path,
            ImageSource::Url(url) => {
                self.offers("web-download").await?;
                let import = glance.import(image, Import::Web(url));
                import.await.map_err(failed)?;
                return Ok(None);
            }
        };
        let place = match self.options.image_import {
            true => Place::Stage,
            false => Place::Image,
        };
        if place == Place::Stage {
            self.offers("glance-direct").await?;
        }
        let progress = order.progress.clone();
        let told = move |sent, all| progress.report(sent, all);
        let sent = glance.send(image, path, place, told).await;
        let digests = match sent {
            Err(error) if error.kind() == ErrorKind::Conflict => return Ok(None),
            sent => sent.map_err(failed)?,
        };
        if place == Place::Stage {
            let import = glance.import(image, Import::Staged);
            import.await.map_err(failed)?;
        }
        Ok(Some(digests))
    }

    async fn offers(&self, method: &str) -> Result<(), Error> {
        let methods = self.glance().import_methods().await.map_err(failed)?;
        if methods.iter().any(|offered| offered == method) {
            return Ok(());
        }
        let offered = match methods.as_slice() {
            [] => "none".to_owned(),
            methods => methods.join(", "),
        };
        Err(Error::permanent(format!(
            "the cloud does not import images by {method}; it offers {offered}"
        )))
    }
}
