//! The third part of an upload: waiting for the data, comparing what the cloud has stored with what was sent, and then
//! setting the properties of the image.

use std::path::Path;
use std::time::Duration;

use nodeyard_driver::{Error, ErrorClass, UploadOrder, UploadedImage};
use nodeyard_openstack::{Digests, ErrorKind, Image};

use super::properties::changes;
use super::{deleted_meanwhile, upload_error};
use crate::driver::OpenStackDriver;
use crate::images::UNVERIFIED;

/// How long the data of another worker may take before that worker counts as dead. Glance notices a broken connection by
/// itself; only a vanished host makes it wait.
const STUCK: Duration = Duration::from_secs(600);

/// The state of an image's data.
enum DataState {
    Stored,
    Pending,
    /// It will never arrive.
    Lost(Error),
}

impl OpenStackDriver {
    /// `sent` is None if another worker sends the data.
    pub(super) async fn verify_and_publish(
        &self,
        order: &UploadOrder,
        id: &str,
        sent: Option<Digests>,
    ) -> Result<UploadedImage, Error> {
        let image = self.wait_for_data(id, sent.is_some()).await?;
        if image.properties().contains_key(UNVERIFIED) {
            if let Err(error) = self.verify(order, &image, sent).await {
                return Err(self.discard(id, error).await);
            }
            self.publish(order, id).await?;
        }
        self.catalog.forget_images().await;
        Ok(UploadedImage {
            external_id: id.into(),
            external_name: image.name.unwrap_or_else(|| order.name.clone()),
        })
    }

    async fn wait_for_data(&self, id: &str, sent_by_us: bool) -> Result<Image, Error> {
        let timer = self.options.poll.start();
        loop {
            let image = self.glance().get(id).await.map_err(upload_error)?;
            let image = image.ok_or_else(|| deleted_meanwhile(id))?;
            match data_of(&image, sent_by_us, timer.age()) {
                DataState::Stored => return Ok(image),
                DataState::Pending => timer.tick().await,
                DataState::Lost(error) => return Err(self.discard(id, error).await),
            }
        }
    }

    /// Deletes a useless image, so that the next attempt starts anew. Returns the error to report.
    async fn discard(&self, image: &str, error: Error) -> Error {
        match self.glance().delete(image).await {
            Ok(()) => error,
            Err(error) => upload_error(error),
        }
    }

    /// Fails unless the cloud has stored the content of our file.
    async fn verify(
        &self,
        order: &UploadOrder,
        image: &Image,
        sent: Option<Digests>,
    ) -> Result<(), Error> {
        let digests = match sent {
            Some(digests) => digests,
            None => hash(&order.file).await?,
        };
        for (name, promised, found) in [
            ("md5", &order.md5, &digests.md5),
            ("sha256", &order.sha256, &digests.sha256),
        ] {
            if let Some(promised) = promised
                && !promised.eq_ignore_ascii_case(found)
            {
                return Err(Error::permanent(format!(
                    "the file of {} has the {name} digest {found}, not {promised} as it was built",
                    order.name
                )));
            }
        }
        if image.disk_format.as_deref() != Some(&*order.format) {
            tracing::info!(image = %image.id, format = ?image.disk_format, "cloud converted image; its data is not verified");
            return Ok(());
        }
        let algorithm = image.os_hash_algo.as_deref().unwrap_or_default();
        compare(
            algorithm,
            digests.get(algorithm),
            image.os_hash_value.as_deref(),
            image,
        )?;
        compare("md5", Some(&digests.md5), image.checksum.as_deref(), image)
    }

    /// Sets everything that image filters look at, and removes the property [`UNVERIFIED`].
    async fn publish(&self, order: &UploadOrder, image: &str) -> Result<(), Error> {
        match self.glance().change(image, &changes(order)).await {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::Conflict => {
                let found = self.glance().get(image).await.map_err(upload_error)?;
                let done = found.is_some_and(|image| !image.properties().contains_key(UNVERIFIED));
                // Another worker was faster.
                if done {
                    Ok(())
                } else {
                    Err(upload_error(error))
                }
            }
            Err(error) => Err(upload_error(error)),
        }
    }
}

fn data_of(image: &Image, sent_by_us: bool, waiting: Duration) -> DataState {
    let id = &image.id;
    if let Some(stores) = failed_import(image) {
        let text = format!("the cloud could not import image {id} into {stores}");
        return DataState::Lost(Error::new(ErrorClass::Failed, text));
    }
    let status = &*image.status;
    let pending = match status {
        "active" => return DataState::Stored,
        "queued" => sent_by_us,
        "saving" | "uploading" | "importing" => sent_by_us || waiting < STUCK,
        _ => false,
    };
    if pending {
        return DataState::Pending;
    }
    DataState::Lost(Error::retry(format!(
        "image {id} of an earlier attempt is {status}; uploading again"
    )))
}

/// Returns the stores into which an import failed. Glance keeps such an image for another attempt.
fn failed_import(image: &Image) -> Option<String> {
    let mut properties = image.properties();
    let stores = properties.remove("os_glance_failed_import")?;
    (!stores.is_empty()).then_some(stores)
}

/// Compares the digest that the cloud reports, if it reports one.
fn compare(
    algorithm: &str,
    sent: Option<&str>,
    stored: Option<&str>,
    image: &Image,
) -> Result<(), Error> {
    match (sent, stored) {
        (Some(sent), Some(stored)) if !sent.eq_ignore_ascii_case(stored) => {
            let id = &image.id;
            Err(Error::retry(format!(
                "image {id} was corrupted in transit: the cloud has {algorithm} {stored}, not {sent}"
            )))
        }
        _ => Ok(()),
    }
}

async fn hash(path: &Path) -> Result<Digests, Error> {
    let path = path.to_owned();
    let name = path.display().to_string();
    let digests = tokio::task::spawn_blocking(move || Digests::of(&path)).await;
    let unreadable = |cause: Box<dyn std::error::Error + Send + Sync>| {
        Error::permanent(format!("failed to read image file {name}")).because(cause)
    };
    match digests {
        Ok(Ok(digests)) => Ok(digests),
        Ok(Err(cause)) => Err(unreadable(cause.into())),
        Err(cause) => Err(unreadable(cause.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_nobody_sends_any_more_is_lost() {
        let soon = Duration::ZERO;
        for (status, sent_by_us, waiting, outcome) in [
            ("active", false, STUCK, "stored"),
            ("queued", true, STUCK, "pending"),
            ("queued", false, soon, "lost"),
            ("saving", true, STUCK, "pending"),
            ("importing", false, soon, "pending"),
            ("importing", false, STUCK, "lost"),
            ("killed", true, soon, "lost"),
        ] {
            let image = serde_json::json!({"id": "i", "status": status});
            let image = serde_json::from_value(image).unwrap();
            let found = match data_of(&image, sent_by_us, waiting) {
                DataState::Stored => "stored",
                DataState::Pending => "pending",
                DataState::Lost(error) => {
                    assert_eq!(error.class(), ErrorClass::Retry);
                    "lost"
                }
            };
            assert_eq!(found, outcome, "{status} {sent_by_us} {waiting:?}");
        }
    }
}
