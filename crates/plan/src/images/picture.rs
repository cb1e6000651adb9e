//! What there is to know of one image.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroUsize;
use std::time::Duration;

use nodeyard_model::{
    BuildId, BuildState, Formats, ImageName, ProviderName, Timestamp, UploadId, UploadState,
};
use serde::{Deserialize, Serialize};

use super::market::{Market, ZuulBuild};
use super::steward_report::JobDurations;
use crate::canary::{CanaryPolicy, CanaryState, Launches, Uploaded};

/// One image, as the configuration, the store and the job servers have it at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    pub image: ImageName,
    /// None if the configuration does not have the image.
    pub policy: Option<ImagePolicy>,
    /// Every provider of the configuration that images are uploaded to, and how it takes this one, if it does.
    pub providers: BTreeMap<ProviderName, Option<Takes>>,
    pub builds: BTreeMap<BuildId, Build>,
    /// Paused by a person, apart from the configuration.
    pub paused: bool,
    pub request: Option<Request>,
    /// Somebody holds the lock that is held while the image is built.
    pub building: bool,
    pub setbacks: BTreeMap<Subject, Setback>,
    pub services: Services,
    /// Which builds are on trial, taken back or pinned.
    pub canary: CanaryState,
    /// What Zuul offers, of an image that its jobs make; none before it was asked.
    pub market: Option<Market>,
    /// How long earlier builds and uploads took.
    pub durations: JobDurations,
}

/// What the configuration says of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImagePolicy {
    pub origin: Origin,
    pub pause: bool,
    /// What to build: the image's own and what its providers take.
    pub formats: BTreeSet<Box<str>>,
    pub keep_formats: BTreeSet<Box<str>>,
    pub delete_after_upload: bool,
    /// How many builds are kept, and uploads for each provider.
    pub retention: NonZeroUsize,
    /// How a new build is tried, if it is.
    pub canary: Option<CanaryPolicy>,
}

/// Who decides that a new image is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// We do.
    Built { rebuild_age: Duration },
    /// Jobs of Zuul do.
    Imported(Imports),
}

/// How an image is imported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Imports {
    /// Builds that ended longer ago are left.
    pub max_age: Option<Duration>,
    /// Formats that can be made of each other.
    pub disks: BTreeSet<Box<str>>,
    /// Says whether two configurations of the import are the same, and nothing else.
    pub settings: Box<str>,
}

/// How a provider takes an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Takes {
    pub pause: bool,
    /// None where only the worker's credentials say it.
    pub format: Option<Box<str>>,
}

/// A request for a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    pub made: Timestamp,
    /// Its place in the order of the store's writes.
    pub order: i64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Build {
    pub state: BuildState,
    pub since: Timestamp,
    /// Its place in the order of the store's writes: where it began.
    pub order: i64,
    pub formats: Formats,
    /// The build of Zuul that it was fetched from.
    pub zuul: Option<ZuulBuild>,
    /// What its builder was asked for, which may be more than it made.
    pub asked: BTreeSet<Box<str>>,
    /// Files that went by `delete-after-upload`.
    pub dropped: BTreeSet<Box<str>>,
    /// Somebody changes it.
    pub locked: bool,
    /// The providers that somebody uploads it to.
    pub uploading: BTreeSet<ProviderName>,
    pub uploads: BTreeMap<(ProviderName, UploadId), Upload>,
    /// Uploads whose records cannot be read. They are left alone, and the build with them.
    pub unreadable: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Upload {
    pub state: UploadState,
    pub since: Timestamp,
    /// What was uploaded, as soon as that is known.
    pub format: Option<Box<str>>,
    /// Somebody changes it.
    pub locked: bool,
}

/// Which upload of the image.
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

/// What can fail and be tried again.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    Build,
    /// Of a build that may be another by now.
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

/// Failures of one thing, one after the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setback {
    pub failures: u32,
    /// Attempts since then that do not count as failures, and are repeated at once: their worker was stopped, or another one
    /// can make the next.
    #[serde(default)]
    pub uncounted: u32,
    /// The last one.
    pub at: Timestamp,
    /// The build that failed last, or whose upload did.
    pub build: BuildId,
    /// Where that build has its place in the order of the store's writes.
    pub order: i64,
    pub reason: String,
}

/// What the job servers say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Services {
    /// None of them answers.
    Unknown {
        reason: String,
    },
    Known(Answered),
}

/// Which calls about this image some worker answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answered {
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

impl Picture {
    /// The ready builds, the newest first.
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

    /// The ready builds that have an upload to whatever provider, the newest first.
    pub(super) fn uploaded_builds(&self) -> Vec<BuildId> {
        let mut builds = self.ready_builds();
        builds.retain(|id| {
            let uploads = self.builds.get(id).map(|build| build.uploads.values());
            let mut uploads = uploads.into_iter().flatten();
            uploads.any(|upload| upload.state == UploadState::Ready)
        });
        builds
    }

    /// The uploads that machines of a provider can boot from, the newest first.
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

    /// Which builds the launches of a provider use; none without an upload.
    pub fn launches(&self, provider: &ProviderName) -> Option<Launches> {
        self.ask_canary(provider, CanaryState::launches)
    }

    /// Which builds they would use if nothing was pinned.
    pub(super) fn launches_by_merit(&self, provider: &ProviderName) -> Option<Launches> {
        self.ask_canary(provider, CanaryState::by_merit)
    }

    fn ask_canary(
        &self,
        provider: &ProviderName,
        ask: fn(&CanaryState, Uploaded<'_>, Option<&CanaryPolicy>) -> Option<Launches>,
    ) -> Option<Launches> {
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

    /// The request for a build, if one that was begun later is ready.
    pub(super) fn served_request(&self) -> Option<Request> {
        let request = self.request?;
        let mut builds = self.builds.values();
        builds
            .any(|build| build.state == BuildState::Ready && build.order > request.order)
            .then_some(request)
    }

    /// None for providers that do not take the image, or that the configuration does not have.
    pub(super) fn takes(&self, provider: &ProviderName) -> Option<&Takes> {
        self.policy.as_ref()?;
        self.providers.get(provider)?.as_ref()
    }
}

impl Build {
    pub(super) fn has_ready_upload(&self, provider: &ProviderName) -> bool {
        self.uploads_to(provider)
            .any(|(_, upload)| upload.state == UploadState::Ready)
    }

    pub(super) fn uploads_to<'b>(
        &'b self,
        provider: &'b ProviderName,
    ) -> impl Iterator<Item = (UploadId, &'b Upload)> {
        self.uploads
            .iter()
            .filter(move |((to, _), _)| to == provider)
            .map(|((_, id), upload)| (*id, upload))
    }
}
