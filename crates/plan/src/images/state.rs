//! The input of image decisions: the state of one image in the configuration, the store and the job servers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroUsize;
use std::time::Duration;

use nodeyard_model::{
    BuildId, BuildState, Formats, ImageName, ProviderName, Timestamp, UploadId, UploadState,
};
use serde::{Deserialize, Serialize};

use super::steward_report::JobDurations;
use super::zuul_builds::{ZuulBuildList, ZuulSource};
use crate::canary::{CanaryPolicy, CanaryState, LaunchBuilds, Uploaded};

/// A snapshot of one image.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageState {
    pub image: ImageName,
    /// None if the configuration does not have the image.
    pub policy: Option<ImagePolicy>,
    /// Every configured provider with image uploads, and how it uses this image, if it does.
    pub providers: BTreeMap<ProviderName, Option<UploadTarget>>,
    pub builds: BTreeMap<BuildId, BuildSnapshot>,
    /// Paused by an operator, independently of the configuration.
    pub paused: bool,
    pub request: Option<ImageBuildRequest>,
    /// The build lock of the image is held.
    pub building: bool,
    pub backoffs: BTreeMap<Subject, BackoffState>,
    pub services: Services,
    /// Which builds are on trial, rolled back or pinned.
    pub canary: CanaryState,
    /// The builds that Zuul listed for an imported image. None before the first query.
    pub zuul_builds: Option<ZuulBuildList>,
    /// How long earlier builds and uploads took.
    pub durations: JobDurations,
}

/// The configuration of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImagePolicy {
    pub origin: ImageOrigin,
    pub pause: bool,
    /// The formats to build: those of the image and those that its providers use.
    pub formats: BTreeSet<Box<str>>,
    pub keep_formats: BTreeSet<Box<str>>,
    pub delete_after_upload: bool,
    /// How many builds are kept, and uploads for each provider.
    pub retention: NonZeroUsize,
    /// The trial of new builds, if enabled.
    pub canary: Option<CanaryPolicy>,
}

/// Where new builds of an image come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageOrigin {
    /// Built here.
    Built { rebuild_age: Duration },
    /// Imported from jobs of Zuul.
    Imported(Imports),
}

/// How an image is imported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Imports {
    /// Builds that ended longer ago are not imported.
    pub max_age: Option<Duration>,
    /// Formats that can be made of each other.
    pub disks: BTreeSet<Box<str>>,
    /// A fingerprint of the import settings.
    pub settings: Box<str>,
}

/// How a provider uses an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadTarget {
    pub pause: bool,
    /// None where the format depends on the credentials of the worker.
    pub format: Option<Box<str>>,
}

/// A request for a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageBuildRequest {
    pub made: Timestamp,
    /// Its position in the order of store writes.
    pub order: i64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct BuildSnapshot {
    pub state: BuildState,
    pub since: Timestamp,
    /// The position of its first write in the order of store writes.
    pub order: i64,
    pub formats: Formats,
    /// The build of Zuul that it was fetched from.
    pub zuul: Option<ZuulSource>,
    /// The formats that were requested, including those that were not built.
    pub asked: BTreeSet<Box<str>>,
    /// Files that were deleted by `delete-after-upload`.
    pub dropped: BTreeSet<Box<str>>,
    /// Its lock is held.
    pub locked: bool,
    /// The providers whose upload lock of this build is held.
    pub uploading: BTreeSet<ProviderName>,
    pub uploads: BTreeMap<(ProviderName, UploadId), UploadSnapshot>,
    /// The number of uploads with invalid records. They and the build are kept.
    pub unreadable: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct UploadSnapshot {
    pub state: UploadState,
    pub since: Timestamp,
    /// What was uploaded, as soon as that is known.
    pub format: Option<Box<str>>,
    /// Its lock is held.
    pub locked: bool,
}

/// The key of an upload of the image.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UploadRef {
    pub build: BuildId,
    pub provider: ProviderName,
    pub upload: UploadId,
}

impl fmt::Display for UploadRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} to {}", self.upload, self.build, self.provider)
    }
}

/// An operation that can fail and be retried.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    Build,
    /// Failures count across builds.
    Upload {
        provider: ProviderName,
    },
    RemoveUpload(UploadRef),
    RemoveBuild {
        build: BuildId,
    },
    DropFiles {
        build: BuildId,
    },
}

/// Consecutive failures of one operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BackoffState {
    pub failures: u32,
    /// Attempts since then that do not count as failures and are repeated at once: their worker was stopped, or
    /// another one can make the next.
    #[serde(default)]
    pub uncounted: u32,
    /// The last one.
    pub at: Timestamp,
    /// The build that failed last, or whose upload did.
    pub build: BuildId,
    /// The position of that build in the order of store writes.
    pub order: i64,
    pub reason: String,
}

/// Whether the job servers respond, and with what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Services {
    /// None of them responds.
    Unknown {
        reason: String,
    },
    Known(AvailableFunctions),
}

/// The functions that workers offer for this image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AvailableFunctions {
    /// Some worker can build it.
    pub build: bool,
    /// Some worker can fetch it.
    pub import: bool,
    /// Builds that a worker can upload.
    pub upload: BTreeSet<BuildId>,
    /// Builds whose files a worker can delete.
    pub delete: BTreeSet<BuildId>,
    /// Providers in which a worker can delete images.
    pub upload_delete: BTreeSet<ProviderName>,
}

impl ImageState {
    /// Returns the ready builds, the newest first.
    pub(super) fn ready_builds(&self) -> Vec<BuildId> {
        let mut ready: Vec<(Timestamp, BuildId)> = self
            .builds
            .iter()
            .filter(|(_, build)| build.state == BuildState::Ready)
            .map(|(id, build)| (build.since, *id))
            .collect();
        ready.sort_unstable_by(|a, b| b.cmp(a));
        ready.into_iter().map(|(_, id)| id).collect()
    }

    /// Returns the ready builds that have a ready upload to any provider, the newest first.
    pub(super) fn uploaded_builds(&self) -> Vec<BuildId> {
        let mut builds = self.ready_builds();
        builds.retain(|id| {
            let uploads = self.builds.get(id).map(|build| build.uploads.values());
            let mut uploads = uploads.into_iter().flatten();
            uploads.any(|upload| upload.state == UploadState::Ready)
        });
        builds
    }

    /// Returns the uploads that machines of a provider can boot from, the newest first.
    pub(super) fn usable_uploads(&self, provider: &ProviderName) -> Vec<UploadRef> {
        let builds = self.builds.iter();
        let ready = builds.filter(|(_, build)| build.state == BuildState::Ready);
        let mut uploads: Vec<(Timestamp, UploadRef)> = ready
            .flat_map(|(id, build)| {
                let uploads = build.uploads_to(provider);
                let ready = uploads.filter(|(_, upload)| upload.state == UploadState::Ready);
                ready.map(|(number, upload)| {
                    let upload_ref = UploadRef {
                        build: *id,
                        provider: provider.clone(),
                        upload: number,
                    };
                    (upload.since, upload_ref)
                })
            })
            .collect();
        uploads.sort_unstable_by(|a, b| b.cmp(a));
        uploads.into_iter().map(|(_, upload)| upload).collect()
    }

    /// Returns which builds the launches of a provider use. None without an upload.
    pub fn launches(&self, provider: &ProviderName) -> Option<LaunchBuilds> {
        self.ask_canary(provider, CanaryState::launches)
    }

    /// Returns which builds the launches of a provider would use without a pin.
    pub(super) fn launches_unpinned(&self, provider: &ProviderName) -> Option<LaunchBuilds> {
        self.ask_canary(provider, CanaryState::launches_unpinned)
    }

    fn ask_canary(
        &self,
        provider: &ProviderName,
        ask: fn(&CanaryState, Uploaded<'_>, Option<&CanaryPolicy>) -> Option<LaunchBuilds>,
    ) -> Option<LaunchBuilds> {
        let policy = self.policy.as_ref();
        let policy = policy.and_then(|policy| policy.canary.as_ref());
        let mut here: Vec<BuildId> = Vec::new();
        for upload in self.usable_uploads(provider) {
            if !here.contains(&upload.build) {
                here.push(upload.build);
            }
        }
        let uploaded = Uploaded {
            anywhere: &self.uploaded_builds(),
            here: &here,
        };
        ask(&self.canary, uploaded, policy)
    }

    /// Returns the build request if a build that began later is ready.
    pub(super) fn served_request(&self) -> Option<ImageBuildRequest> {
        let request = self.request?;
        let mut builds = self.builds.values();
        builds
            .any(|build| build.state == BuildState::Ready && build.order > request.order)
            .then_some(request)
    }

    /// Returns how a provider uses the image. None if it does not or is not configured.
    pub(super) fn takes(&self, provider: &ProviderName) -> Option<&UploadTarget> {
        self.policy.as_ref()?;
        self.providers.get(provider)?.as_ref()
    }
}

impl BuildSnapshot {
    pub(super) fn has_ready_upload(&self, provider: &ProviderName) -> bool {
        self.uploads_to(provider)
            .any(|(_, upload)| upload.state == UploadState::Ready)
    }

    pub(super) fn uploads_to<'b>(
        &'b self,
        provider: &'b ProviderName,
    ) -> impl Iterator<Item = (UploadId, &'b UploadSnapshot)> {
        self.uploads
            .iter()
            .filter(move |((to, _), _)| to == provider)
            .map(|((_, id), upload)| (*id, upload))
    }
}
