//! The gearman functions of image work and what travels with them.
//!
//! | function | caller sends | caller gets |
//! |---|---|---|
//! | `image-build:<image>` | [`BuildJob`] | [`BuildResult`] |
//! | `image-import:<image>` | [`ImportJob`] | [`BuildResult`] |
//! | `image-upload:<id>` | [`UploadJob`] | [`UploadResult`] |
//! | `image-delete:<id>` | [`DeleteJob`], or nothing | nothing |
//! | `image-info:<id>` | [`InfoJob`], or nothing | [`ImageInfo`] |
//! | `image-cancel:<id>` | nothing | nothing |
//! | `upload-delete:<provider>` | [`UploadDeleteJob`] | nothing |
//!
//! Payloads are JSON objects. Those for building, uploading and deleting are older than this program: a client that sends only the
//! keys it knew (`image-id`; `provider` and `image-name`; anything at all) is served, and keys that nobody here
//! knows are passed over. Whatever a call says, credentials never travel: a worker uses its own.
//!
//! A job that fails sends, as its last data, one line with a [`Failure`].

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use nodeyard_image::{ContentInfo, Digests, ImageId, Packing};
use nodeyard_model::{ImageName, ProviderName, Timestamp, UploadId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A function of ours, from or to its name in gearman.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Function {
    Build(ImageName),
    Import(ImageName),
    Upload(ImageId),
    Delete(ImageId),
    Info(ImageId),
    Cancel(ImageId),
    UploadDelete(ProviderName),
}

impl Function {
    /// None for functions of others and for names that nothing can have.
    pub fn parse(name: &str) -> Option<Self> {
        let (kind, rest) = name.split_once(':')?;
        match kind {
            "image-build" => rest.parse().ok().map(Self::Build),
            "image-import" => rest.parse().ok().map(Self::Import),
            "image-upload" => rest.parse().ok().map(Self::Upload),
            "image-delete" => rest.parse().ok().map(Self::Delete),
            "image-info" => rest.parse().ok().map(Self::Info),
            "image-cancel" => rest.parse().ok().map(Self::Cancel),
            "upload-delete" => rest.parse().ok().map(Self::UploadDelete),
            _ => None,
        }
    }
}

impl Function {
    /// Whether it belongs to one image, and so is of no use when that is gone.
    pub(crate) fn is_of_image(&self) -> bool {
        match self {
            Self::Upload(_) | Self::Delete(_) | Self::Info(_) | Self::Cancel(_) => true,
            Self::Build(_) | Self::Import(_) | Self::UploadDelete(_) => false,
        }
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Build(image) => write!(f, "image-build:{image}"),
            Self::Import(image) => write!(f, "image-import:{image}"),
            Self::Upload(id) => write!(f, "image-upload:{id}"),
            Self::Delete(id) => write!(f, "image-delete:{id}"),
            Self::Info(id) => write!(f, "image-info:{id}"),
            Self::Cancel(id) => write!(f, "image-cancel:{id}"),
            Self::UploadDelete(provider) => write!(f, "upload-delete:{provider}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct BuildJob {
    pub image_id: ImageId,
    /// The installation whose steward asks and looks after the image from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed: Option<Box<str>>,
    /// What to build; empty for what the worker's own configuration says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub formats: Vec<Box<str>>,
    /// Whether the log is to be sent line by line.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stream: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct BuildResult {
    pub image_id: ImageId,
    pub builder: Box<str>,
    pub builder_id: Box<str>,
    pub formats: BTreeMap<Box<str>, FormatInfo>,
    /// Where it was fetched from, and what was checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
}

/// What to fetch. How to log in, and what is allowed, only the worker's own configuration says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ImportJob {
    pub image_id: ImageId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed: Option<Box<str>>,
    pub build: ZuulBuildInfo,
    /// By format.
    pub artifacts: BTreeMap<Box<str>, ImportArtifact>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stream: bool,
}

/// A build of Zuul.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ZuulBuildInfo {
    pub uuid: Box<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_url: Option<Box<str>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ImportArtifact {
    pub name: Box<str>,
    /// With its query, which may be a signature.
    pub url: Box<str>,
    #[serde(default)]
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

/// Where an image comes from: the build of Zuul, and each file as it was fetched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Provenance {
    pub api_url: Box<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Box<str>>,
    pub build: ZuulBuildInfo,
    pub fetched: Timestamp,
    pub artifacts: BTreeMap<Box<str>, ArtifactProvenance>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ArtifactProvenance {
    pub name: Box<str>,
    /// Without its query.
    pub url: Box<str>,
    pub packing: Packing,
    /// As it was sent, and as it is now.
    pub sent: ContentInfo,
    pub plain: ContentInfo,
    /// What was promised, and held.
    pub promised: Digests,
    /// Whether nobody looked at what was promised, since `checksum` is `off`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchecked: bool,
    /// The key that has signed it, by the SHA-256 of its public part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed_by: Option<Box<str>>,
}

impl ArtifactProvenance {
    /// What is known of its bytes, for people.
    pub fn verdict(&self) -> &'static str {
        if self.unchecked {
            "digest not checked (checksum is off)"
        } else if self.promised.is_empty() {
            "no digest was published"
        } else {
            "digest matches the published one"
        }
    }
}

/// One file of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FormatInfo {
    /// Of the file, holes included.
    pub size: u64,
    /// On disk.
    pub allocated: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub md5: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Box<str>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct UploadJob {
    pub provider: ProviderName,
    /// The image as the provider's section of the configuration calls it. Absent means the image that was built.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_name: Option<ImageName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed: Option<Box<str>>,
    /// The record of this upload; comes with `managed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_id: Option<UploadId>,
    /// What to call the image in the cloud, if not by the provider's own pattern.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_name: Option<Box<str>>,
    /// In addition to what the worker's configuration says, and stronger.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct UploadResult {
    pub external_id: Box<str>,
    pub external_name: Box<str>,
    pub format: Box<str>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DeleteJob {
    /// Only these files, and the rest stays; empty for the whole image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub formats: Vec<Box<str>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct InfoJob {
    /// Send the build's log as data, from this byte on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_from: Option<u64>,
    /// With the log: stay for a while, to tell what comes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub follow: bool,
}

/// What a worker knows of an image that it holds or makes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ImageInfo {
    pub image_id: ImageId,
    pub image: ImageName,
    pub state: LocalState,
    pub since: Timestamp,
    pub builder: Box<str>,
    pub builder_id: Box<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed: Option<Box<str>>,
    #[serde(default)]
    pub formats: BTreeMap<Box<str>, FormatInfo>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
    /// Why the build failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<JobFailure>,
    /// The uploads that were asked for, as far as this worker remembers.
    #[serde(default)]
    pub uploads: Vec<UploadInfo>,
    /// To those who follow a log that has not ended: the byte to ask for next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_next: Option<u64>,
}

/// Where an image is in its life on a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LocalState {
    Building,
    Ready,
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct UploadInfo {
    pub provider: ProviderName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_id: Option<UploadId>,
    #[serde(flatten)]
    pub state: UploadProgress,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum UploadProgress {
    Uploading,
    Ready(UploadResult),
    Failed(JobFailure),
}

/// How long a cloud may take to delete an image. A worker then gives up, so that it has slots for other clouds; a
/// steward waits a little longer, to hear of it.
pub(crate) const CLOUD_DELETION: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct UploadDeleteJob {
    pub image: ImageName,
    pub image_id: ImageId,
    /// Absent when the answer to the upload was lost: then the worker looks for what carries the upload's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_id: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_id: Option<UploadId>,
}

/// Why a job failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
#[error("{reason}")]
pub struct JobFailure {
    pub reason: String,
    pub kind: FailureKind,
    /// What the program of a build ended with; negative for a signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// What a caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// The call itself is wrong: the same call will fail again.
    Refused,
    /// This worker cannot do it now (its disk is full, say); another may.
    Unable,
    /// The worker was stopped meanwhile. The same call may be repeated at once.
    Interrupted,
    /// The work was done and went wrong.
    Failed,
    /// What is asked for is not here.
    Missing,
}

impl JobFailure {
    pub fn new(kind: FailureKind, reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            kind,
            exit_code: None,
        }
    }

    /// A failure that no worker has explained: nothing speaks against another try.
    pub(crate) fn unable(reason: impl Into<String>) -> Self {
        Self::new(FailureKind::Unable, reason)
    }

    /// As the one line that is sent.
    pub fn to_line(&self) -> Vec<u8> {
        let mut line = b"{\"failure\":".to_vec();
        line.extend(to_payload(self));
        line.extend(b"}\n");
        line
    }

    /// From the data of a failed job, which may have log lines before it.
    pub fn from_data(data: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct FailureLine {
            failure: JobFailure,
        }
        let last = data
            .strip_suffix(b"\n")
            .unwrap_or(data)
            .rsplit(|byte| *byte == b'\n')
            .next()?;
        let line: FailureLine = serde_json::from_slice(last).ok()?;
        Some(line.failure)
    }
}

/// A payload that is not what its function takes.
#[derive(Debug, thiserror::Error)]
#[error("invalid payload for {function}")]
pub struct InvalidPayload {
    function: String,
    #[source]
    source: serde_json::Error,
}

/// What a caller sent. Nothing, `""` and `null` say as much as an empty object.
pub fn from_payload<P: DeserializeOwned>(
    function: impl fmt::Display,
    payload: &[u8],
) -> Result<P, InvalidPayload> {
    let said = match payload.trim_ascii() {
        b"" | b"\"\"" | b"null" => b"{}",
        said => said,
    };
    serde_json::from_slice(said).map_err(|source| InvalidPayload {
        function: function.to_string(),
        source,
    })
}

/// What to send. These types have only keys and values that JSON has.
pub fn to_payload(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_knows_only_the_old_keys_is_served() {
        let build: BuildJob = from_payload("f", br#"{"image-id": "42", "new": 1}"#).unwrap();
        assert_eq!(build.image_id.as_str(), "42");
        assert_eq!(build.managed, None);
        let upload = br#"{"provider": "cloud", "image-name": "trusty"}"#;
        let upload: UploadJob = from_payload("f", upload).unwrap();
        assert_eq!(upload.image_name, Some("trusty".parse().unwrap()));
        for nothing in [&b""[..], b"\"\"", b" null\n", b"{}"] {
            let delete: DeleteJob = from_payload("f", nothing).unwrap();
            assert_eq!(delete, DeleteJob::default());
        }
    }

    #[test]
    fn a_path_is_no_id() {
        let escape = br#"{"image-id": "../../etc/passwd"}"#;
        assert!(from_payload::<BuildJob>("f", escape).is_err());
    }

    #[test]
    fn functions_are_found_again_by_their_names() {
        let id: ImageId = "a.b-c".parse().unwrap();
        for function in [
            Function::Build("trusty:x".parse().unwrap()),
            Function::Import("trusty".parse().unwrap()),
            Function::Upload(id.clone()),
            Function::Delete(id.clone()),
            Function::Info(id),
            Function::UploadDelete("cloud".parse().unwrap()),
        ] {
            assert_eq!(Function::parse(&function.to_string()), Some(function));
        }
        assert_eq!(Function::parse("stop:x"), None);
        assert_eq!(Function::parse("image-upload:../x"), None);
    }

    #[test]
    fn a_failure_is_found_behind_the_log() {
        let failure = JobFailure {
            exit_code: Some(-9),
            ..JobFailure::new(FailureKind::Unable, "the disk\nis full")
        };
        let mut data = b"log line\n{\"failure\": broken\n".to_vec();
        data.extend(failure.to_line());
        assert_eq!(JobFailure::from_data(&data), Some(failure));
        assert_eq!(JobFailure::from_data(b"log line\n"), None);
        assert_eq!(JobFailure::from_data(b""), None);
    }
}
