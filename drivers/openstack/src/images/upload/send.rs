//! The second part of an upload: sending the data of the image.

use nodeyard_driver::{Error, Progress, UploadOrder};
use nodeyard_openstack::{DataTarget, Digests, ErrorKind, Image, STAGED_IMPORT};

use super::{deleted_meanwhile, upload_error};
use crate::driver::OpenStackDriver;

impl OpenStackDriver {
    /// Returns the digests of what was sent; None if another worker has sent the data, or an attempt whose response was
    /// lost.
    pub(super) async fn send_data(
        &self,
        order: &UploadOrder,
        image: &Image,
        progress: &Progress,
    ) -> Result<Option<Digests>, Error> {
        match &*image.status {
            "queued" => {}
            "active" | "saving" | "uploading" | "importing" => return Ok(None),
            _ => return Err(deleted_meanwhile(&image.id)),
        }
        let glance = self.glance();
        let target = match self.options.image_import {
            true => DataTarget::Stage,
            false => DataTarget::Image,
        };
        if target == DataTarget::Stage {
            self.check_import().await?;
        }
        let progress = progress.clone();
        let report = move |sent, total| progress.set_bytes(sent, total);
        let sent = glance.send(&image.id, &order.file, target, report).await;
        let digests = match sent {
            Err(error) if error.kind() == ErrorKind::Conflict => return Ok(None),
            sent => sent.map_err(upload_error)?,
        };
        if target == DataTarget::Stage {
            glance.import(&image.id).await.map_err(upload_error)?;
        }
        Ok(Some(digests))
    }

    /// Fails if the cloud cannot import staged data.
    async fn check_import(&self) -> Result<(), Error> {
        let methods = self.glance().import_methods().await.map_err(upload_error)?;
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
