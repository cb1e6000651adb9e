//! Images and their uploads.

use std::collections::BTreeMap;

use nodeyard_model::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::catalog::{ById, ByNameOrId};
use super::random::Random;
use super::time::iso;
use super::{Cloud, CloudError, Event, Reply};

/// The id and name of the image of a cloud whose options name none.
const DEFAULT: (&str, &str) = ("fake-image-id", "Fake Precise");
/// Arguments of an upload that do not become properties of the image.
const NO_PROPERTIES: [&str; 5] = ["is_public", "timeout", "wait", "container_format", "meta"];

#[derive(Debug, Clone, Serialize)]
pub(super) struct Image {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) status: &'static str,
    created_at: String,
    updated_at: String,
    visibility: &'static str,
    disk_format: String,
    tags: Vec<String>,
    /// The metadata of the upload. Glance shows it beside the other keys, older client libraries show it here.
    pub(super) properties: BTreeMap<String, Value>,
    #[serde(flatten)]
    beside: BTreeMap<String, Value>,
}

#[derive(Debug, Default)]
pub(super) struct Images {
    all: BTreeMap<u64, Image>,
    next: u64,
}

impl Images {
    pub(super) fn new(names: &[String], random: &mut Random, now: Timestamp) -> Self {
        let mut images = Self::default();
        let default = vec![(DEFAULT.0.to_owned(), DEFAULT.1.to_owned())];
        let named: Vec<_> = names
            .iter()
            .map(|name| (random.id(), name.clone()))
            .collect();
        for (id, name) in if named.is_empty() { default } else { named } {
            let number = images.add(Image::new(id, name, Map::new(), now));
            images.uploaded(number);
        }
        images
    }

    fn add(&mut self, image: Image) -> u64 {
        self.next += 1;
        self.all.insert(self.next, image);
        self.next
    }

    pub(super) fn uploaded(&mut self, number: u64) {
        if let Some(image) = self.all.get_mut(&number) {
            image.status = "active";
        }
    }

    /// Finds an image by id, or the newest with that name, preferably an active one.
    pub(super) fn find(&self, name_or_id: &str) -> Option<&Image> {
        let mut found = None;
        for image in self.all.values() {
            if image.id == name_or_id {
                return Some(image);
            }
            if image.name == name_or_id
                && found
                    .is_none_or(|best: &Image| image.status == "active" || best.status != "active")
            {
                found = Some(image);
            }
        }
        found
    }
}

impl Image {
    fn new(id: String, name: String, mut arguments: Map<String, Value>, now: Timestamp) -> Self {
        for key in NO_PROPERTIES {
            arguments.remove(key);
        }
        let disk_format = match arguments.remove("disk_format") {
            Some(Value::String(format)) => format,
            _ => "qcow2".to_owned(),
        };
        let tags = match arguments.remove("tags") {
            Some(Value::Array(tags)) => tags
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
            _ => Vec::new(),
        };
        let properties: BTreeMap<_, _> = arguments.into_iter().collect();
        let mut beside = properties.clone();
        for key in [
            "id",
            "name",
            "status",
            "created_at",
            "updated_at",
            "visibility",
            "properties",
        ] {
            beside.remove(key);
        }
        Self {
            id,
            name,
            status: "saving",
            created_at: iso(now),
            updated_at: iso(now),
            visibility: "private",
            disk_format,
            tags,
            properties,
            beside,
        }
    }
}

/// The file is not read. Digests become properties.
#[derive(Debug, Deserialize)]
pub(super) struct CreateImage {
    name: String,
    #[serde(default)]
    filename: Option<String>,
    /// False returns at once, as Glance does; otherwise the call returns when the image is active, as that of the
    /// client library does.
    #[serde(default)]
    wait: Option<bool>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl Cloud {
    pub(super) fn list_images(&self) -> Result<Reply, CloudError> {
        Reply::now(&self.images.all.values().collect::<Vec<_>>())
    }

    pub(super) fn get_image(&self, wanted: &ByNameOrId) -> Result<Reply, CloudError> {
        Reply::now(&self.images.find(&wanted.name_or_id))
    }

    pub(super) fn create_image(
        &mut self,
        order: CreateImage,
        now: Timestamp,
    ) -> Result<Reply, CloudError> {
        if order.filename.is_none_or(|name| name.is_empty()) {
            return Err(CloudError::malformed("filename is missing"));
        }
        let image = Image::new(self.random.id(), order.name, order.others, now);
        let number = self.images.add(image);
        let due = self.schedule(Event::ImageUploaded(number), self.upload_time, now);
        let wait = order.wait != Some(false);
        if wait || due <= now {
            let mut shown = self.images.all.get(&number).cloned();
            if let Some(image) = &mut shown {
                image.status = "active";
            }
            return Ok(Reply {
                not_before: (due > now).then_some(due),
                ..Reply::now(&shown)?
            });
        }
        Reply::now(&self.images.all.get(&number))
    }

    /// Deletes an image. Succeeds if it does not exist.
    pub(super) fn delete_image(&mut self, wanted: &ById) -> Result<Reply, CloudError> {
        self.images.all.retain(|_, image| image.id != wanted.id);
        Reply::now(&())
    }
}
