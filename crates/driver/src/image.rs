//! Images in a cloud, and their uploads.

use std::collections::BTreeMap;
use std::path::PathBuf;

use nodeyard_model::{ImageName, Timestamp, UploadKey};

use crate::ids::ExternalId;
use crate::tags::Tags;

/// An image to upload. The record of its upload exists already.
#[derive(Debug, Clone)]
pub struct UploadOrder {
    pub upload: UploadKey,
    /// The image's name in the cloud.
    pub name: Box<str>,
    /// The file on the host that uploads it.
    pub file: PathBuf,
    pub format: Box<str>,
    pub md5: Option<Box<str>>,
    pub sha256: Option<Box<str>>,
    /// Metadata of the image and of the provider; tags override it.
    pub metadata: BTreeMap<String, String>,
    /// Tags without a value, for clouds that have them.
    pub marks: Vec<Box<str>>,
    pub tags: Tags,
    /// Nothing was created for this upload before, so that looking for it would be a wasted call.
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

/// An image to delete. Without `external_id` the result of the upload was lost: the driver looks for images with the
/// upload's tags.
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
    /// Properties, metadata, tags with a value.
    pub properties: BTreeMap<String, String>,
    /// Tags without a value.
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
    /// Not complete yet.
    Pending,
    Active,
    /// Will never be usable.
    Failed,
}
