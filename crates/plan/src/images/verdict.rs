//! What is decided: things to do, and a word on everything, as data.

use std::collections::BTreeSet;
use std::time::Duration;

use nodeyard_model::{BuildId, BuildState, ImageName, ProviderName, Timestamp, UploadState};
use serde::{Deserialize, Serialize};

use super::market::PassedOver;
use super::picture::UploadRef;
use crate::canary::{CanaryState, Launches};

#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub explanation: Explanation,
}

/// Something to do, under the lock that belongs to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// Have the image built. Needs the lock that is held while the image is built, as does `ResumeBuild`.
    Build { formats: BTreeSet<Box<str>> },
    /// Ask Zuul what it has. Needs no lock.
    AskZuul,
    /// Have these formats of a build of Zuul fetched. Needs the same lock as `Build`.
    Import {
        zuul_build: Box<str>,
        formats: BTreeSet<Box<str>>,
    },
    /// Nobody looks after this build: find out what became of it.
    ResumeBuild { build: BuildId },
    /// The request for a build has been served: remove it.
    ClearRequest { order: i64 },
    /// Needs the lock that is held while the build is uploaded to the provider, as does `SettleUpload`.
    Upload {
        build: BuildId,
        provider: ProviderName,
    },
    /// Nobody looks after this upload: find out what became of it.
    SettleUpload(UploadRef),
    /// Remove it from its cloud, then its record.
    RemoveUpload(UploadRef),
    /// Remove its files; then, unless uploads are left, its record.
    RemoveBuild { build: BuildId },
    /// Remove these files; the record stays.
    DropFiles {
        build: BuildId,
        formats: BTreeSet<Box<str>>,
    },
}

impl Action {
    /// Whether it removes what is not needed any more.
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

/// Why an image is (not) built, uploaded or deleted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    pub image: ImageName,
    pub build: BuildVerdict,
    /// What becomes of each build, the newest first.
    pub builds: Vec<BuildReport>,
    /// Every provider that takes the image.
    pub providers: Vec<ProviderReport>,
    /// What becomes of each upload.
    pub uploads: Vec<UploadReport>,
    /// Which builds were on trial, taken back or pinned.
    #[serde(default)]
    pub canary: CanaryState,
    /// The one that is on trial now.
    #[serde(default)]
    pub on_trial: Option<OnTrial>,
    /// When time alone would change something.
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
    pub fate: Fate,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProviderReport {
    pub provider: ProviderName,
    pub verdict: UploadVerdict,
    /// What launches use there; none as long as they cannot.
    #[serde(default)]
    pub launches: Option<Launches>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UploadReport {
    pub upload: UploadRef,
    pub state: UploadState,
    pub since: Timestamp,
    pub fate: Fate,
}

/// Whether a new build is made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BuildVerdict {
    /// The configuration does not have the image.
    NotConfigured,
    /// It is made by jobs of Zuul and imported.
    Imported(Box<ImportReport>),
    Paused {
        by: WhyPaused,
    },
    /// No provider takes it, and it has no formats of its own.
    NoFormats,
    UnderWay {
        build: Option<BuildId>,
        since: Option<Timestamp>,
        /// Of an image that is imported.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        import: Option<Box<ImportReport>>,
    },
    /// A build lost its steward; before anything else, it is found out what became of it.
    Resumes {
        build: BuildId,
    },
    UpToDate {
        build: BuildId,
        due: Timestamp,
    },
    Waits {
        why: WhyBuild,
        wait: Wait,
    },
    Begins {
        why: WhyBuild,
    },
}

/// What is known of Zuul's builds, and what follows from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImportReport {
    /// When Zuul was last asked, and will be.
    pub asked: Option<Timestamp>,
    pub next: Option<Timestamp>,
    /// Why the last question had no answer.
    pub error: Option<String>,
    /// Whether Zuul may have older builds, which were not looked at.
    #[serde(default)]
    pub has_more: bool,
    /// Newer builds that are not taken.
    pub passed_over: Vec<PassedOver>,
    pub verdict: ImportVerdict,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImportVerdict {
    /// Zuul is to be asked first.
    Asks,
    /// There is no build that could be used.
    Nothing,
    /// It is being fetched.
    UnderWay {
        zuul_build: Box<str>,
    },
    UpToDate {
        build: BuildId,
        zuul_build: Box<str>,
    },
    Waits {
        zuul_build: Box<str>,
        wait: Wait,
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

/// What has to happen first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// It failed lately.
    BackOff {
        failures: u32,
        until: Timestamp,
        reason: String,
    },
    /// No worker answers this call.
    Worker { function: String },
    /// No job server answers.
    JobServer { reason: String },
}

/// Whether the newest build is uploaded to a provider.
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
    /// An upload lost its steward; before another is begun, it is found out what became of it.
    Settles(UploadRef),
    Waits {
        build: BuildId,
        wait: Wait,
    },
    Begins {
        build: BuildId,
    },
}

/// What becomes of a build or an upload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// Among the newest of its image, or of its image and provider.
    Kept {
        rank: usize,
        of: usize,
    },
    /// Whatever its place.
    KeptAnyway {
        why: WhyKept,
    },
    /// An upload of a build that is kept.
    KeptWithBuild,
    /// A build with uploads that are kept.
    Pinned {
        by: Vec<UploadRef>,
    },
    /// A build with uploads that nobody can read.
    Unreadable {
        uploads: usize,
    },
    /// The configuration does not have its provider.
    NotOurs,
    /// Somebody builds, uploads or deletes it.
    UnderWay,
    /// Nobody looks after it; it is found out what became of it.
    Resumes,
    /// Left for people to see.
    Lingers {
        until: Timestamp,
    },
    /// To be removed, but something has to happen first.
    Waits {
        why: RemovalReason,
        wait: Wait,
    },
    /// Being removed: uploads are, and its files with them.
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
    /// Somebody has pinned the image to it.
    Pinned,
    /// Launches use it, since newer ones are on trial or were taken back; or would, if nothing was pinned.
    InUse,
    /// It was taken back, but without it nobody would know what was made last.
    Newest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RemovalReason {
    /// The configuration does not have the image.
    ImageGone,
    /// Its provider does not take the image any more.
    NotTaken,
    /// Newer ones have taken its place.
    Surplus,
    /// It was taken back, and there is a newer one.
    TakenBack,
    Failed,
    /// Somebody asked for it, or it was begun before.
    Deleting,
}

impl Plan {
    pub(super) fn new(image: ImageName) -> Self {
        Self {
            actions: Vec::new(),
            explanation: Explanation {
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

    /// A verdict holds until this time at most.
    pub(super) fn look_again(&mut self, at: Timestamp) {
        let first = self.explanation.again_at.map_or(at, |first| first.min(at));
        self.explanation.again_at = Some(first);
    }

    pub(super) fn waits(&mut self, wait: &Wait) {
        if let Wait::BackOff { until, .. } = wait {
            self.look_again(*until);
        }
    }
}
