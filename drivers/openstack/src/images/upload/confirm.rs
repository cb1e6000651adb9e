//! The wait for the data of an image, and whether it is what was sent. Only then does the image get its properties.

use std::path::Path;
use std::time::Duration;

use nodeyard_driver::{Error, ErrorClass, State, Step, UploadOrder, UploadedImage};
use nodeyard_model::Timestamp;
use nodeyard_openstack::{Digests, ErrorKind, Image};

use super::properties::changes;
use super::{Sent, Upload, failed, vanished};
use crate::driver::OpenStackDriver;
use crate::images::UNVERIFIED;

/// How long somebody else may take over the data of an image before it counts as dead. Glance notices a broken
/// connection by itself; only a vanished host makes it wait.
const STUCK: Duration = Duration::from_secs(600);

/// How the data of an image is.
enum Data {
    Stored,
    Coming,
    /// It will never be there.
    Lost(Error),
}

impl OpenStackDriver {
    pub(super) async fn confirm_upload(
        &self,
        order: &UploadOrder,
        sent: Sent,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<UploadedImage>, Error> {
        let id = sent.image;
        let Some(image) = self.glance().get(&id).await.map_err(failed)? else {
            state.write(&Upload::Ordered)?;
            return Err(vanished(&id));
        };
        let waiting = now.since(sent.since);
        match data_of(&image, sent.digests.is_some(), waiting) {
            Data::Stored => {}
            Data::Coming => return Ok(Step::wait(self.options.poll.after(waiting))),
            Data::Lost(error) => return Err(self.give_up(&id, state, error).await),
        }
        if image.properties().contains_key(UNVERIFIED) {
            if let Err(error) = self.verify(order, &image, sent.digests).await {
                return Err(self.give_up(&id, state, error).await);
            }
            self.complete(order, &id).await?;
        }
        self.catalog.forget_images().await;
        Ok(Step::Done(UploadedImage {
            external_id: (&*id).into(),
            external_name: image.name.unwrap_or_else(|| order.name.clone()),
        }))
    }

    /// Removes an image that comes to nothing, so that the next step begins anew. Returns what to say.
    async fn give_up(&self, image: &str, state: &mut State, error: Error) -> Error {
        if let Err(error) = state.write(&Upload::Ordered) {
            return error;
        }
        match self.glance().delete(image).await {
            Ok(()) => error,
            Err(error) => failed(error),
        }
    }

    /// Whether the cloud has stored what we hold.
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
            tracing::info!(image = %image.id, format = ?image.disk_format, "the cloud has converted an image");
            return Ok(());
        }
        let algorithm = image.os_hash_algo.as_deref().unwrap_or_default();
        agree(
            algorithm,
            digests.get(algorithm),
            image.os_hash_value.as_deref(),
            image,
        )?;
        agree("md5", Some(&digests.md5), image.checksum.as_deref(), image)
    }

    /// Gives the image everything that filters look for, and takes the mark away.
    async fn complete(&self, order: &UploadOrder, image: &str) -> Result<(), Error> {
        match self.glance().change(image, &changes(order)).await {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::Conflict => {
                let found = self.glance().get(image).await.map_err(failed)?;
                let done = found.is_some_and(|image| !image.properties().contains_key(UNVERIFIED));
                // Somebody else was faster.
                if done { Ok(()) } else { Err(failed(error)) }
            }
            Err(error) => Err(failed(error)),
        }
    }
}

fn data_of(image: &Image, sent_by_us: bool, waiting: Duration) -> Data {
    let id = &image.id;
    if let Some(stores) = failed_import(image) {
        let text = format!("the cloud could not import image {id} into {stores}");
        return Data::Lost(Error::new(ErrorClass::Failed, text));
    }
    let status = &*image.status;
    let coming = match status {
        "active" => return Data::Stored,
        "queued" => sent_by_us,
        "saving" | "uploading" | "importing" => sent_by_us || waiting < STUCK,
        _ => false,
    };
    if coming {
        return Data::Coming;
    }
    Data::Lost(Error::retry(format!(
        "image {id} of an earlier attempt is {status}, and begun anew"
    )))
}

/// Where an import has failed. Glance keeps the image, for somebody to try again.
fn failed_import(image: &Image) -> Option<String> {
    let mut properties = image.properties();
    let stores = properties.remove("os_glance_failed_import")?;
    (!stores.is_empty()).then_some(stores)
}

/// What the cloud stored, by what it says itself. Where it says nothing, there is nothing to compare.
fn agree(
    algorithm: &str,
    sent: Option<&str>,
    stored: Option<&str>,
    image: &Image,
) -> Result<(), Error> {
    match (sent, stored) {
        (Some(sent), Some(stored)) if !sent.eq_ignore_ascii_case(stored) => {
            let id = &image.id;
            Err(Error::retry(format!(
                "image {id} did not arrive as it was sent: the cloud has {algorithm} {stored}, not {sent}"
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
        Error::permanent(format!("image file {name} cannot be read")).because(cause)
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
    fn data_that_nobody_brings_any_more_is_lost() {
        let soon = Duration::ZERO;
        for (status, sent_by_us, waiting, outcome) in [
            ("active", false, STUCK, "stored"),
            ("queued", true, STUCK, "coming"),
            ("queued", false, soon, "lost"),
            ("saving", true, STUCK, "coming"),
            ("importing", false, soon, "coming"),
            ("importing", false, STUCK, "lost"),
            ("killed", true, soon, "lost"),
        ] {
            let image = serde_json::json!({"id": "i", "status": status});
            let image = serde_json::from_value(image).unwrap();
            let found = match data_of(&image, sent_by_us, waiting) {
                Data::Stored => "stored",
                Data::Coming => "coming",
                Data::Lost(error) => {
                    assert_eq!(error.class(), ErrorClass::Retry);
                    "lost"
                }
            };
            assert_eq!(found, outcome, "{status} {sent_by_us} {waiting:?}");
        }
    }
}
