//! The result of image decisions: [`Action`]s, and an [`ImageExplanation`] of every build, upload and provider.

use std::collections::BTreeSet;
use std::time::Duration;

use nodeyard_model::{BuildId, BuildState, ImageName, ProviderName, Timestamp, UploadState};
use serde::{Deserialize, Serialize};

use super::state::UploadRef;
use super::zuul_builds::RejectedBuild;
use crate::canary::{CanaryState, LaunchBuilds};

#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub explanation: ImageExplanation,
}

/// An operation to execute under the lock that belongs to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// Build the image. Needs the build lock of the image, as does `ResumeBuild`.
    Build { formats: BTreeSet<Box<str>> },
    /// Query Zuul for builds. Needs no lock.
    AskZuul,
    /// Import these formats of a build of Zuul. Needs the same lock as `Build`.
    Import {
        zuul_build: Box<str>,
        formats: BTreeSet<Box<str>>,
    },
    /// Determine the state of a build without a steward.
    ResumeBuild { build: BuildId },
    /// Remove a build request that has been served.
    ClearRequest { order: i64 },
    /// Upload a build. Needs the upload lock of build and provider, as does `SettleUpload`.
    Upload {
        build: BuildId,
        provider: ProviderName,
    },
    /// Determine the state of an upload without a steward.
    SettleUpload(UploadRef),
    /// Delete the upload in its cloud, then its record.
    RemoveUpload(UploadRef),
    /// Delete its files and then, unless uploads are left, its record.
    RemoveBuild { build: BuildId },
    /// Delete these files and keep the record.
    DropFiles {
        build: BuildId,
        formats: BTreeSet<Box<str>>,
    },
}

impl Action {
    /// Returns whether the action deletes something.
    pub fn removes(&self) -> bool {
        match self {
            Self::RemoveUpload(_) | Self::RemoveBuild { .. } | Self::DropFiles { .. } => true,
            Self::Build { .. }
            | Self::AskZuul
            | Self::Import { .. }
            | Self::ResumeBuild { .. }
            | Self::ClearRequest { .. }
            | Self::Upload { .. }
            | Self::SettleUpload(_) => false,
        }
    }
}

/// Explains the state and the next steps of an image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageExplanation {
    pub image: ImageName,
    pub build: BuildVerdict,
    /// The verdict on each build, the newest first.
    pub builds: Vec<BuildReport>,
    /// Every provider that uses the image.
    pub providers: Vec<ProviderReport>,
    /// The verdict on each upload.
    pub uploads: Vec<UploadReport>,
    /// Which builds were on trial, rolled back or pinned.
    #[serde(default)]
    pub canary: CanaryState,
    /// The one that is on trial now.
    #[serde(default)]
    pub on_trial: Option<OnTrial>,
    /// When to decide again without any other change.
    pub again_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnTrial {
    pub build: BuildId,
    /// Launches that have to succeed.
    pub successes: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BuildReport {
    pub build: BuildId,
    pub state: BuildState,
    pub since: Timestamp,
    #[serde(rename = "fate")]
    pub verdict: RetentionVerdict,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProviderReport {
    pub provider: ProviderName,
    pub verdict: UploadVerdict,
    /// The builds that launches use there. None while there is no upload.
    #[serde(default)]
    pub launches: Option<LaunchBuilds>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UploadReport {
    pub upload: UploadRef,
    pub state: UploadState,
    pub since: Timestamp,
    #[serde(rename = "fate")]
    pub verdict: RetentionVerdict,
}

/// The verdict on a new build.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BuildVerdict {
    /// The configuration does not have the image.
    NotConfigured,
    /// It is imported from jobs of Zuul.
    Imported(Box<ImportReport>),
    Paused {
        by: WhyPaused,
    },
    /// No provider uses it, and it has no formats of its own.
    NoFormats,
    UnderWay {
        build: Option<BuildId>,
        since: Option<Timestamp>,
        /// Of an image that is imported.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        import: Option<Box<ImportReport>>,
    },
    /// A build lost its steward. Its state is determined first.
    Resumes {
        build: BuildId,
    },
    UpToDate {
        build: BuildId,
        due: Timestamp,
    },
    Waits {
        why: WhyBuild,
        wait: WaitReason,
    },
    Begins {
        why: WhyBuild,
    },
}

/// The state of the import of an image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImportReport {
    /// When Zuul was last queried, and will be next.
    pub asked: Option<Timestamp>,
    pub next: Option<Timestamp>,
    /// Why the last query failed.
    pub error: Option<String>,
    /// Whether Zuul may have older builds than those in the list.
    #[serde(default)]
    pub has_more: bool,
    /// Newer builds that are not imported.
    #[serde(rename = "passed_over")]
    pub rejected: Vec<RejectedBuild>,
    pub verdict: ImportVerdict,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImportVerdict {
    /// Zuul has to be queried first.
    Asks,
    /// No build can be imported.
    Nothing,
    /// It is being fetched.
    UnderWay { zuul_build: Box<str> },
    UpToDate {
        build: BuildId,
        zuul_build: Box<str>,
    },
    Waits {
        zuul_build: Box<str>,
        wait: WaitReason,
    },
    Begins {
        zuul_build: Box<str>,
        formats: BTreeSet<Box<str>>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhyPaused {
    Configuration,
    Person,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhyBuild {
    Requested {
        since: Timestamp,
    },
    /// No build is ready.
    None,
    Old {
        build: BuildId,
        age: Duration,
        limit: Duration,
    },
    Formats {
        build: BuildId,
        missing: BTreeSet<Box<str>>,
    },
}

/// What an operation waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WaitReason {
    /// It failed and waits for its backoff.
    BackOff {
        failures: u32,
        until: Timestamp,
        reason: String,
    },
    /// No worker offers this function.
    Worker { function: String },
    /// No job server responds.
    JobServer { reason: String },
}

/// The verdict on the upload of the newest build to a provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UploadVerdict {
    Paused,
    /// No build is ready.
    NoBuild,
    Done {
        build: BuildId,
        since: Timestamp,
    },
    UnderWay {
        build: BuildId,
    },
    /// An upload lost its steward. Its state is determined before another starts.
    Settles(UploadRef),
    Waits {
        build: BuildId,
        wait: WaitReason,
    },
    Begins {
        build: BuildId,
    },
}

/// The verdict on an existing build or upload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RetentionVerdict {
    /// Among the newest of its image, or of its image and provider.
    Kept {
        rank: usize,
        of: usize,
    },
    /// Kept for another reason than its rank.
    KeptAnyway {
        why: WhyKept,
    },
    /// An upload of a build that is kept.
    KeptWithBuild,
    /// A build with uploads that are kept.
    Pinned {
        by: Vec<UploadRef>,
    },
    /// A build with uploads whose records are invalid.
    Unreadable {
        uploads: usize,
    },
    /// The configuration does not have its provider.
    NotOurs,
    /// A build, an upload or a deletion is in progress.
    UnderWay,
    /// It has no steward. Its state is determined.
    Resumes,
    /// Failed, and kept for inspection.
    Lingers {
        until: Timestamp,
    },
    /// To be removed, but it has to wait.
    Waits {
        why: RemovalReason,
        wait: WaitReason,
    },
    /// To be removed after its uploads. Its files are deleted first.
    UploadsFirst {
        why: RemovalReason,
    },
    Removed {
        why: RemovalReason,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhyKept {
    /// The image is pinned to it.
    Pinned,
    /// Launches use it, since newer ones are on trial or were rolled back, or would without the pin.
    InUse,
    /// It was rolled back, but it is the record of the last build.
    Newest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RemovalReason {
    /// The configuration does not have the image.
    ImageGone,
    /// Its provider no longer uses the image.
    NotTaken,
    /// Newer ones have replaced it.
    Surplus,
    /// It was rolled back, and there is a newer one.
    #[serde(rename = "taken-back")]
    RolledBack,
    Failed,
    /// Its deletion was requested or has begun.
    Deleting,
}

impl Plan {
    pub(super) fn new(image: ImageName) -> Self {
        Self {
            actions: Vec::new(),
            explanation: ImageExplanation {
                image,
                build: BuildVerdict::NotConfigured,
                builds: Vec::new(),
                providers: Vec::new(),
                uploads: Vec::new(),
                canary: CanaryState::default(),
                on_trial: None,
                again_at: None,
            },
        }
    }

    /// Limits the time until the next decision.
    pub(super) fn schedule_recheck(&mut self, at: Timestamp) {
        let first = self.explanation.again_at.map_or(at, |first| first.min(at));
        self.explanation.again_at = Some(first);
    }

    pub(super) fn waits(&mut self, wait: &WaitReason) {
        if let WaitReason::BackOff { until, .. } = wait {
            self.schedule_recheck(*until);
        }
    }
}
