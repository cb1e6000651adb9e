//! The gearman functions for image jobs and their payloads.
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
//! Payloads are JSON objects. Payloads of Nodepool clients are accepted: a build needs only `image-id`, an upload only
//! `provider` and `image-name`, a deletion nothing. Unknown keys are ignored. Payloads never contain credentials; a worker
//! uses its own.
//!
//! A failed job sends, as its last data, one line with a [`JobFailure`].

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use nodeyard_image::{ContentInfo, Digests, ImageId, Packing};
use nodeyard_model::{ImageName, ProviderName, Timestamp, UploadId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A gearman function for image jobs.
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
    /// Parses a gearman function name. Returns `None` for unknown functions and invalid names.
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
    /// Returns whether the function belongs to a single image and is unused once that image is deleted.
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
    /// The id of the installation whose steward manages the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed: Option<Box<str>>,
    /// The formats to build; if empty, those of the worker's configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub formats: Vec<Box<str>>,
    /// Whether to send the log line by line.
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
    /// The origin of an imported image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
}

/// The artifacts to import. Credentials and restrictions come from the worker's own configuration.
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

/// Identifies a Zuul build.
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
    /// The URL, including its query, which may be a signature.
    pub url: Box<str>,
    #[serde(default)]
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

/// The origin of an imported image: the Zuul build and the files that were fetched.
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
    /// The URL without its query.
    pub url: Box<str>,
    pub packing: Packing,
    /// The content as received (`sent`) and after unpacking (`plain`).
    pub sent: ContentInfo,
    pub plain: ContentInfo,
    /// The published digests, which matched.
    pub promised: Digests,
    /// Whether the digest was not checked because `checksum` is `off`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchecked: bool,
    /// The SHA-256 of the public key that signed the artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed_by: Option<Box<str>>,
}

impl ArtifactProvenance {
    /// Describes how the digest was checked, for display.
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

/// A file of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FormatInfo {
    /// The apparent size, including holes.
    pub size: u64,
    /// The space used on disk.
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
    /// The image name in the provider's configuration; defaults to the name of the built image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_name: Option<ImageName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed: Option<Box<str>>,
    /// The id of the upload record; requires `managed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_id: Option<UploadId>,
    /// The image name in the cloud, overriding the provider's name template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_name: Option<Box<str>>,
    /// Metadata that is added to and overrides the worker's configuration.
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
    /// The formats to delete; if empty, the whole image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub formats: Vec<Box<str>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct InfoJob {
    /// Sends the build log as data, starting at this byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_from: Option<u64>,
    /// Keeps sending the log as it grows, up to a time limit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub follow: bool,
}

/// The state of an image on a worker.
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
    /// The uploads recorded in the manifest.
    #[serde(default)]
    pub uploads: Vec<UploadInfo>,
    /// The byte to continue from when following a log that has not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_next: Option<u64>,
}

/// The lifecycle state of an image on a worker.
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

/// The time limit for deleting an image from a cloud. The worker then frees its slot; a steward waits slightly longer to
/// receive the result.
pub(crate) const CLOUD_DELETION: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct UploadDeleteJob {
    pub image: ImageName,
    pub image_id: ImageId,
    /// Absent if the result of the upload was lost; the worker then finds the image by the upload id.
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
    /// The exit code of the build program; negative for a signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// Classifies a failure by what the caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// The request is invalid and will fail again.
    Refused,
    /// This worker cannot do it now, for example because its disk is full; another one may.
    Unable,
    /// The worker was stopped. The request can be repeated at once.
    Interrupted,
    /// The work failed.
    Failed,
    /// The requested image does not exist on this worker.
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

    /// Creates a failure that does not count and is retried at once.
    pub(crate) fn interrupted(reason: impl Into<String>) -> Self {
        Self::new(FailureKind::Interrupted, reason)
    }

    /// Creates a failure that can be retried.
    pub(crate) fn unable(reason: impl Into<String>) -> Self {
        Self::new(FailureKind::Unable, reason)
    }

    /// Serializes the failure as the line sent at the end of a failed job.
    pub fn to_line(&self) -> Vec<u8> {
        let mut line = b"{\"failure\":".to_vec();
        line.extend(to_payload(self));
        line.extend(b"}\n");
        line
    }

    /// Parses the data of a failed job; log lines before the failure are ignored.
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

/// A payload that could not be parsed.
#[derive(Debug, thiserror::Error)]
#[error("invalid payload for {function}")]
pub struct InvalidPayload {
    function: String,
    #[source]
    source: serde_json::Error,
}

/// Parses a payload. No data, `""` and `null` are treated as an empty object.
pub fn from_payload<P: DeserializeOwned>(
    function: impl fmt::Display,
    payload: &[u8],
) -> Result<P, InvalidPayload> {
    let data = match payload.trim_ascii() {
        b"" | b"\"\"" | b"null" => b"{}",
        data => data,
    };
    serde_json::from_slice(data).map_err(|source| InvalidPayload {
        function: function.to_string(),
        source,
    })
}

/// Serializes a payload.
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
    fn a_path_is_rejected_as_an_id() {
        let escape = br#"{"image-id": "../../etc/passwd"}"#;
        assert!(from_payload::<BuildJob>("f", escape).is_err());
    }

    #[test]
    fn function_names_round_trip() {
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
    fn a_failure_is_parsed_after_log_lines() {
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
