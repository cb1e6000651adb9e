//! What is known of an image, and stays known when this program restarts.
//!
//! A manifest is a JSON file. Keys that are not known here are passed over, so that a later version may add some; a
//! change that an older program must not meet raises [`VERSION`], and then it leaves the image alone.

use std::collections::BTreeMap;
use std::fmt;

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

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Building => "being built",
            Self::Ready => "ready",
            Self::Failed => "a failure",
        })
    }
}

/// Why something failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Failure {
    pub reason: String,
    /// The caller's own word for what can be done about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Box<str>>,
    /// What a program ended with, where it was a program's failure; negative for a signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

impl Failure {
    /// Of a build whose process ended before the build did.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As it is on the disks of operators: a program of any later time has to read this.
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
    fn a_manifest_is_written_as_it_was_read() {
        let manifest = Manifest::from_json(VERSION_1.as_bytes()).unwrap();
        assert_eq!(manifest.allocated(), 4608);
        assert_eq!(String::from_utf8(manifest.to_json()).unwrap(), VERSION_1);
    }

    #[test]
    fn a_failure_is_written_as_it_was_read() {
        let manifest = Manifest::from_json(VERSION_1.as_bytes()).unwrap();
        let failed = manifest.clone().failed(Failure::new("no"), manifest.since);
        assert_eq!(Manifest::from_json(&failed.to_json()).unwrap(), failed);
        assert!(failed.files.is_empty());
    }
}
