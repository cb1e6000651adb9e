//! Image manifests, stored as JSON.
//!
//! Unknown keys are ignored, so that later versions may add some. Incompatible changes increment [`VERSION`]; images
//! with a newer version are ignored.

use std::collections::BTreeMap;
use std::fmt;

use nodeyard_model::{ImageName, ProviderName, Timestamp, UploadId};
use serde::{Deserialize, Serialize};

use crate::digest::Digests;
use crate::{Format, ImageId};

/// The version of the manifest format.
const VERSION: u32 = 1;

/// The manifest of an image in the repository.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Manifest {
    version: u32,
    pub image: ImageName,
    pub id: ImageId,
    /// The installation that manages the image. `None` if another client requested it or Python Nodepool built it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed: Option<Box<str>>,
    /// The host that built the image, and its builder id.
    pub builder: Box<str>,
    pub builder_id: Box<str>,
    pub begun: Timestamp,
    pub state: ManifestState,
    /// When `state` last changed.
    pub since: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<ImageFailure>,
    #[serde(default)]
    pub files: BTreeMap<Format, ImageFile>,
    #[serde(default)]
    pub uploads: Vec<ManifestUpload>,
    /// Formats whose files are being removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) removing: Vec<Format>,
}

/// The state of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ManifestState {
    Building,
    Ready,
    Failed,
}

impl fmt::Display for ManifestState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Building => "being built",
            Self::Ready => "ready",
            Self::Failed => "failed",
        })
    }
}

/// Why a build or an upload failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ImageFailure {
    pub reason: String,
    /// The caller's classification of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Box<str>>,
    /// The exit code of the program that failed; negative for a signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

impl ImageFailure {
    /// The reason of a build whose process ended before it.
    pub const INTERRUPTED: &str = "interrupted";

    pub fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            kind: None,
            exit_code: None,
        }
    }
}

/// One file of an image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ImageFile {
    /// The size including holes.
    pub size: u64,
    /// The size on disk.
    pub allocated: u64,
    #[serde(default)]
    pub digests: Digests,
    /// When this program last computed these digests. `None` if they were only read from checksum files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified: Option<Timestamp>,
}

/// An upload of the image to a provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ManifestUpload {
    pub provider: ProviderName,
    /// `None` for other clients, of which only the last upload to a provider is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_id: Option<UploadId>,
    pub since: Timestamp,
    pub outcome: UploadOutcome,
}

/// The outcome of an upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum UploadOutcome {
    /// In progress; after a restart, unknown.
    Pending,
    /// The worker was stopped meanwhile. The upload can be continued.
    Interrupted,
    Ready {
        external_id: Box<str>,
        external_name: Box<str>,
        format: Box<str>,
    },
    Failed(ImageFailure),
}

impl ManifestUpload {
    pub(crate) fn is_for(&self, provider: &ProviderName, upload_id: Option<UploadId>) -> bool {
        self.provider == *provider && self.upload_id == upload_id
    }
}

/// An error parsing a manifest.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestFormatError {
    #[error("not a manifest")]
    Syntax(#[from] serde_json::Error),
    #[error("unsupported version {found}; this program supports version {VERSION}")]
    UnsupportedVersion { found: u32 },
}

impl Manifest {
    pub(crate) fn new(
        image: ImageName,
        id: ImageId,
        managed: Option<Box<str>>,
        (builder, builder_id): (Box<str>, Box<str>),
        state: ManifestState,
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

    /// Returns the size on disk of all files.
    pub fn allocated(&self) -> u64 {
        self.files.values().map(|file| file.allocated).sum()
    }

    pub(crate) fn failed(mut self, failure: ImageFailure, now: Timestamp) -> Self {
        self.state = ManifestState::Failed;
        self.since = now;
        self.failure = Some(failure);
        self.files.clear();
        self
    }

    pub(crate) fn from_json(text: &[u8]) -> Result<Self, ManifestFormatError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } = serde_json::from_slice(text)?;
        if version > VERSION {
            return Err(ManifestFormatError::UnsupportedVersion { found: version });
        }
        Ok(serde_json::from_slice(text)?)
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        // Cannot fail: all keys are strings and all numbers finite.
        let mut text = serde_json::to_vec_pretty(self).unwrap_or_default();
        text.push(b'\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A manifest as stored by operators, which all later versions must read.
    const VERSION_1: &str = r#"{
  "version": 1,
  "image": "debian-12",
  "id": "0123456789abcdef0123456789abcdef",
  "managed": "system",
  "builder": "builder.example",
  "builder-id": "8a3cbe4e-0000-4000-8000-1234567890ab",
  "begun": 1700000000.25,
  "state": "ready",
  "since": 1700000600.5,
  "files": {
    "qcow2": {
      "size": 1000,
      "allocated": 4096,
      "digests": {
        "md5": "900150983cd24fb0d6963f7d28e17f72",
        "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
      },
      "verified": 1700000601.0
    },
    "raw": {
      "size": 5,
      "allocated": 512,
      "digests": {}
    }
  },
  "uploads": [
    {
      "provider": "cloud",
      "upload-id": "0000000001",
      "since": 1700000700.0,
      "outcome": {
        "ready": {
          "external-id": "e",
          "external-name": "n",
          "format": "qcow2"
        }
      }
    },
    {
      "provider": "other",
      "since": 1700000701.0,
      "outcome": "pending"
    },
    {
      "provider": "third",
      "since": 1700000702.0,
      "outcome": {
        "failed": {
          "reason": "no",
          "kind": "unable"
        }
      }
    }
  ],
  "removing": [
    "vhd"
  ]
}
"#;

    #[test]
    fn a_manifest_round_trips() {
        let manifest = Manifest::from_json(VERSION_1.as_bytes()).unwrap();
        assert_eq!(manifest.allocated(), 4608);
        assert_eq!(String::from_utf8(manifest.to_json()).unwrap(), VERSION_1);
    }

    #[test]
    fn a_failed_manifest_round_trips() {
        let manifest = Manifest::from_json(VERSION_1.as_bytes()).unwrap();
        let failed = manifest
            .clone()
            .failed(ImageFailure::new("no"), manifest.since);
        assert_eq!(Manifest::from_json(&failed.to_json()).unwrap(), failed);
        assert!(failed.files.is_empty());
    }
}
