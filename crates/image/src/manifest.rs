//! What is known of an image, and stays known when this program restarts.
//!
//! A manifest is a JSON file. Keys that are not known here are passed over, so that a later version may add some; a
//! change that an older program must not meet raises [`VERSION`], and then it leaves the image alone.

use std::collections::BTreeMap;

use nodeyard_model::{ImageName, ProviderName, Timestamp, UploadId};
use serde::{Deserialize, Serialize};

use crate::digest::Digests;
use crate::{Format, ImageId};

/// The version of manifests that this program writes.
const VERSION: u32 = 1;

/// An image of the repository.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Manifest {
    version: u32,
    pub image: ImageName,
    pub id: ImageId,
    /// The installation that looks after the image; none if a foreign client asked for it or Python Nodepool made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed: Option<Box<str>>,
    /// The host that made the image, and its id.
    pub builder: Box<str>,
    pub builder_id: Box<str>,
    pub begun: Timestamp,
    pub state: State,
    /// When `state` was reached.
    pub since: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    #[serde(default)]
    pub files: BTreeMap<Format, ImageFile>,
    #[serde(default)]
    pub uploads: Vec<Upload>,
    /// Formats whose files are being removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) removing: Vec<Format>,
}

/// Where an image is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    Building,
    Ready,
    Failed,
}

/// Why something failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Failure {
    pub reason: String,
    /// The caller's own word for what can be done about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Box<str>>,
}

impl Failure {
    /// Of a build whose process ended before the build did.
    pub const INTERRUPTED: &str = "interrupted";

    pub fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            kind: None,
        }
    }

    pub fn with_kind(mut self, kind: impl Into<Box<str>>) -> Self {
        self.kind = Some(kind.into());
        self
    }
}

/// One file of an image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ImageFile {
    /// Holes included.
    pub size: u64,
    /// On disk.
    pub allocated: u64,
    #[serde(default)]
    pub digests: Digests,
    /// When this program last read the whole file and found these digests; none if they are what its maker said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified: Option<Timestamp>,
}

/// An upload that was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Upload {
    pub provider: ProviderName,
    /// None from a foreign client, of which only the last upload to a provider is remembered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_id: Option<UploadId>,
    pub since: Timestamp,
    pub outcome: Outcome,
}

/// What became of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Outcome {
    /// Not known yet; after a restart, not known any more.
    Pending,
    Ready {
        external_id: Box<str>,
        external_name: Box<str>,
        format: Box<str>,
    },
    Failed(Failure),
}

impl Upload {
    pub(crate) fn is_of(&self, provider: &ProviderName, upload_id: Option<UploadId>) -> bool {
        self.provider == *provider && self.upload_id == upload_id
    }
}

/// Why a manifest is of no use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Flaw {
    #[error("it is not a manifest")]
    NotOne(#[from] serde_json::Error),
    #[error("it has version {found}, and this program knows version {VERSION}")]
    Newer { found: u32 },
}

impl Manifest {
    pub(crate) fn new(
        image: ImageName,
        id: ImageId,
        managed: Option<Box<str>>,
        (builder, builder_id): (Box<str>, Box<str>),
        state: State,
        now: Timestamp,
    ) -> Self {
        Self {
            version: VERSION,
            image,
            id,
            managed,
            builder,
            builder_id,
            begun: now,
            state,
            since: now,
            failure: None,
            files: BTreeMap::new(),
            uploads: Vec::new(),
            removing: Vec::new(),
        }
    }

    /// On disk, all files together.
    pub fn allocated(&self) -> u64 {
        self.files.values().map(|file| file.allocated).sum()
    }

    pub(crate) fn failed(mut self, failure: Failure, now: Timestamp) -> Self {
        self.state = State::Failed;
        self.since = now;
        self.failure = Some(failure);
        self.files.clear();
        self
    }

    pub(crate) fn from_json(text: &[u8]) -> Result<Self, Flaw> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } = serde_json::from_slice(text)?;
        if version > VERSION {
            return Err(Flaw::Newer { found: version });
        }
        Ok(serde_json::from_slice(text)?)
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        // Every key is a string and every number finite, so JSON has a form for it.
        let mut text = serde_json::to_vec_pretty(self).unwrap_or_default();
        text.push(b'\n');
        text
    }
}
