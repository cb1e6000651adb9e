//! Images in a cloud, and how they get there.

use std::collections::BTreeMap;
use std::path::PathBuf;

use nodeyard_model::{ImageName, Timestamp, UploadKey};

use crate::ids::ExternalId;
use crate::tags::Tags;

/// An image to bring into the cloud. The record of its upload exists already.
#[derive(Debug, Clone)]
pub struct UploadOrder {
    pub upload: UploadKey,
    /// The image's name in the cloud.
    pub name: Box<str>,
    /// On the host that uploads it.
    pub file: PathBuf,
    pub format: Box<str>,
    pub md5: Option<Box<str>>,
    pub sha256: Option<Box<str>>,
    /// The image's and the provider's own metadata; tags win over them.
    pub metadata: BTreeMap<String, String>,
    /// Marks without a value, for clouds that have such.
    pub marks: Vec<Box<str>>,
    pub tags: Tags,
    /// Nothing was made for this upload before: looking for it would be a wasted call.
    pub first_attempt: bool,
}

impl UploadOrder {
    pub fn image(&self) -> &ImageName {
        &self.upload.build.image
    }
}

/// An upload that is ready for use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadedImage {
    pub external_id: ExternalId,
    pub external_name: Box<str>,
}

/// An image to delete. Without `external_id` the answer of the upload was lost: the driver looks for what
/// carries the upload's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageTarget {
    pub upload: UploadKey,
    pub external_id: Option<ExternalId>,
}

/// An image as its cloud describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct CloudImage {
    pub id: ExternalId,
    pub name: Box<str>,
    pub status: ImageStatus,
    pub created: Option<Timestamp>,
    /// What the cloud says about it by name: properties, metadata, keyed tags.
    pub properties: BTreeMap<String, String>,
    /// Marks without a value.
    pub marks: Vec<Box<str>>,
}

impl CloudImage {
    pub fn tags(&self) -> Tags {
        Tags::from_metadata(
            self.properties
                .iter()
                .map(|(key, value)| (key.as_str(), value.as_str())),
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageStatus {
    /// On its way.
    Pending,
    Active,
    /// It will never be usable.
    Failed,
}
