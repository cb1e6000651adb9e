//! Uploads.
//!
//! The id of an image is ours to choose, so it is made from the tags of the upload: a second worker, or one whose answer
//! was lost, asks for the same image and is told that it is there. Glance never gives the id of a deleted image again,
//! hence the number of the attempt in it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use nodeyard_driver::{
    Error, ErrorClass, ImageSource, State, Step, Tags, UploadOrder, UploadedImage,
};
use nodeyard_model::Timestamp;
use nodeyard_openstack::{
    self as openstack, Change, Digests, ErrorKind, Image, Images, Import, NewImage, Place,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::UNVERIFIED;
use crate::driver::OpenStackDriver;
use crate::failure;

/// More attempts at one upload than anybody makes.
const MOST_ATTEMPTS: u32 = 1000;
/// How long somebody else may take over the data of an image before it counts as dead. Glance notices a broken
/// connection by itself; only a vanished host makes it wait.
const STUCK: Duration = Duration::from_secs(600);

/// What Glance decides, or we say elsewhere.
const NOT_TO_BE_SET: [&str; 18] = [
    "id",
    "name",
    "status",
    "created_at",
    "updated_at",
    "checksum",
    "os_hash_algo",
    "os_hash_value",
    "size",
    "virtual_size",
    "owner",
    "self",
    "file",
    "schema",
    "locations",
    "direct_url",
    "stores",
    "tags",
];

/// How far an upload is.
#[derive(Debug, Default, Serialize, Deserialize)]
enum Upload {
    /// Asked for; an image may have been made without our knowing.
    #[default]
    Ordered,
    /// The image is there, without its data.
    Made { image: Box<str> },
    /// Its data is there or on its way: ours, or (without digests) what somebody else has sent for the same upload.
    Sent {
        image: Box<str>,
        digests: Option<Digests>,
        since: Timestamp,
    },
}

impl OpenStackDriver {
    pub(crate) async fn step_upload(
        &self,
        order: &UploadOrder,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<UploadedImage>, Error> {
        match state.read()? {
            Upload::Ordered => {
                check(order)?;
                let earlier = match state.take_fresh() {
                    true => None,
                    false => self.take_over(order).await?,
                };
                let (image, next) = match earlier {
                    Some(image) => {
                        let next = Upload::Sent {
                            image: image.clone(),
                            digests: None,
                            since: now,
                        };
                        (image, next)
                    }
                    None => {
                        let image = self.make(order).await?;
                        let next = Upload::Made {
                            image: image.clone(),
                        };
                        (image, next)
                    }
                };
                state.external_id = Some((&*image).into());
                state.write(&next)?;
                Ok(Step::go_on())
            }
            Upload::Made { image } => {
                // Whatever comes of it, what is there has to be looked at again.
                state.write(&Upload::Ordered)?;
                let found = self.glance().get(&image).await.map_err(failed)?;
                let digests = match found.as_ref().map(|found| &*found.status) {
                    Some("queued") => self.send(order, &image).await?,
                    // Somebody does the same, or the answer was lost.
                    Some("active" | "saving" | "uploading" | "importing") => None,
                    _ => return Err(vanished(&image)),
                };
                state.write(&Upload::Sent {
                    image,
                    digests,
                    since: now,
                })?;
                Ok(Step::go_on())
            }
            Upload::Sent {
                image,
                digests,
                since,
            } => {
                let found = self.glance().get(&image).await.map_err(failed)?;
                let Some(found) = found else {
                    state.write(&Upload::Ordered)?;
                    return Err(vanished(&image));
                };
                if let Some(stores) = failed_import(&found) {
                    state.write(&Upload::Ordered)?;
                    self.glance().delete(&image).await.map_err(failed)?;
                    let text = format!("the cloud could not import image {image} into {stores}");
                    return Err(Error::new(ErrorClass::Failed, text));
                }
                let waiting = now.since(since);
                match &*found.status {
                    "active" => {}
                    "saving" | "uploading" | "importing" | "queued"
                        if digests.is_some() || (&*found.status != "queued" && waiting < STUCK) =>
                    {
                        return Ok(Step::wait(self.options.poll.after(waiting)));
                    }
                    status => {
                        state.write(&Upload::Ordered)?;
                        self.glance().delete(&image).await.map_err(failed)?;
                        return Err(Error::retry(format!(
                            "image {image} of an earlier attempt is {status}, and begun anew"
                        )));
                    }
                }
                if found.properties().contains_key(UNVERIFIED) {
                    if let Err(error) = self.verify(order, &found, digests).await {
                        state.write(&Upload::Ordered)?;
                        self.glance().delete(&image).await.map_err(failed)?;
                        return Err(error);
                    }
                    self.complete(order, &image).await?;
                }
                self.catalog.forget_images().await;
                Ok(Step::Done(UploadedImage {
                    external_id: (&*image).into(),
                    external_name: found.name.unwrap_or_else(|| order.name.clone()),
                }))
            }
        }
    }

    pub(super) fn glance(&self) -> Images {
        Images::new(self.session.clone())
    }

    /// What an earlier run of this order left: an image that is complete or that somebody is completing is taken over,
    /// everything else goes.
    async fn take_over(&self, order: &UploadOrder) -> Result<Option<Box<str>>, Error> {
        let tags = order.tags.to_metadata();
        let wanted = tags.iter().map(|(key, value)| (*key, value.as_str()));
        let mut images = self.glance().list(wanted).await.map_err(failed)?;
        images.retain(|image| super::cloud_image(image).tags() == order.tags);
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

    /// Whether the cloud has stored what we hold.
    async fn verify(
        &self,
        order: &UploadOrder,
        image: &Image,
        sent: Option<Digests>,
    ) -> Result<(), Error> {
        let digests = match (sent, &order.source) {
            (Some(digests), _) => digests,
            (None, ImageSource::File(path)) => hash(path).await?,
            (None, ImageSource::Url(_)) => {
                return agree(
                    "md5",
                    order.md5.as_deref(),
                    image.checksum.as_deref(),
                    image,
                );
            }
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

/// What cannot work is said before gigabytes have been sent.
fn check(order: &UploadOrder) -> Result<(), Error> {
    let odd = NOT_TO_BE_SET
        .iter()
        .find(|key| order.metadata.contains_key(**key));
    if let Some(key) = odd {
        return Err(Error::permanent(format!(
            "the metadata of image {} sets `{key}`, which is not a property of images",
            order.name
        )));
    }
    changes_of(&order.metadata).map(|_| ())
}

fn changes(order: &UploadOrder) -> Vec<Change> {
    let mut changes = changes_of(&order.metadata).unwrap_or_default();
    let digest = |digest: &Option<Box<str>>| digest.as_deref().unwrap_or_default().to_owned();
    // What openstacksdk writes, and its users look for.
    changes.extend([
        Change::set("owner_specified.openstack.md5", digest(&order.md5)),
        Change::set("owner_specified.openstack.sha256", digest(&order.sha256)),
        Change::set(
            "owner_specified.openstack.object",
            format!("images/{}", order.name),
        ),
    ]);
    if !order.marks.is_empty() {
        let marks: Vec<&str> = order.marks.iter().map(|mark| &**mark).collect();
        changes.push(Change::set("tags", marks));
    }
    changes.push(Change::remove(UNVERIFIED));
    changes
}

/// Some properties have a type in Glance.
fn changes_of(metadata: &BTreeMap<String, String>) -> Result<Vec<Change>, Error> {
    let mut changes = Vec::new();
    for (key, text) in metadata {
        let wrong = |wanted: &str| {
            Error::permanent(format!("image property `{key}` is {wanted}, not {text:?}"))
        };
        let value: Value = match key.as_str() {
            "disk_format" | "container_format" => continue,
            "min_disk" | "min_ram" => {
                let number: u64 = text.parse().map_err(|_| wrong("a number"))?;
                number.into()
            }
            "protected" | "os_hidden" => match text.to_lowercase().as_str() {
                "true" => true.into(),
                "false" => false.into(),
                _ => return Err(wrong("true or false")),
            },
            _ => text.as_str().into(),
        };
        changes.push(Change::set(key, value));
    }
    Ok(changes)
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

/// Where an import has failed. Glance keeps the image, for somebody to try again.
fn failed_import(image: &Image) -> Option<String> {
    let mut properties = image.properties();
    let stores = properties.remove("os_glance_failed_import")?;
    (!stores.is_empty()).then_some(stores)
}

fn vanished(image: &str) -> Error {
    Error::retry(format!("image {image} was deleted while it was made"))
}

/// A service that fails at something may not do so the next time, and a step that is taken again looks first.
fn failed(error: openstack::Error) -> Error {
    let class = match error.kind() {
        ErrorKind::Fault | ErrorKind::Auth => ErrorClass::Retry,
        _ => return failure::failed(error),
    };
    Error::new(class, error.to_string())
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

    #[test]
    fn properties_have_the_types_that_glance_wants() {
        let metadata = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            pairs
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect()
        };
        let good = metadata(&[
            ("container_format", "ovf"),
            ("min_disk", "3"),
            ("os_version", "22.04"),
            ("protected", "True"),
        ]);
        let changes = serde_json::to_value(changes_of(&good).unwrap()).unwrap();
        let set = |path: &str, value: Value| serde_json::json!({"op": "add", "path": path, "value": value});
        assert_eq!(
            changes,
            Value::from(vec![
                set("/min_disk", 3.into()),
                set("/os_version", "22.04".into()),
                set("/protected", true.into()),
            ])
        );
        for bad in [("min_ram", "much"), ("os_hidden", "perhaps")] {
            let error = changes_of(&metadata(&[bad])).unwrap_err();
            assert!(error.to_string().contains(bad.0), "{error}");
        }
    }
}
