//! The report of a steward to launchers about the build and the uploads of an image.
//!
//! It contains what launchers cannot know: whether workers respond, and how long earlier builds took. It holds no
//! values that change with time alone, so it is written only on events.

use std::collections::BTreeMap;
use std::time::Duration;

use nodeyard_model::{BuildId, ProviderName, Timestamp, UploadState};
use serde::{Deserialize, Serialize};

use super::state::ImageState;
use super::verdict::{
    BuildVerdict, ImageExplanation, ImportReport, ImportVerdict, UploadVerdict, WaitReason,
    WhyPaused,
};

/// How many durations are kept per build and per provider.
const REMEMBERED: usize = 5;

/// The state of an image according to one steward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct StewardReport {
    pub build: JobState,
    /// To each provider that takes the image.
    pub uploads: BTreeMap<ProviderName, JobState>,
    #[serde(default)]
    pub durations: JobDurations,
}

/// The state of a build or an upload job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// There is nothing to do.
    Done,
    /// No build to upload.
    NoBuild,
    /// A job is under way or due now.
    Running {
        build: Option<BuildId>,
        since: Option<Timestamp>,
    },
    /// It failed and will be retried.
    Retrying {
        build: Option<BuildId>,
        failures: u32,
        until: Timestamp,
        reason: String,
    },
    /// No worker can do it.
    NoWorker { reason: String },
    /// It needs a change of the configuration or by an operator.
    Blocked { reason: String },
}

/// How long the last builds and uploads of an image took, the newest last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct JobDurations {
    pub builds: Vec<Duration>,
    pub uploads: BTreeMap<ProviderName, Vec<Duration>>,
}

impl JobDurations {
    pub fn add_build(&mut self, took: Duration) {
        add(&mut self.builds, took);
    }

    pub fn add_upload(&mut self, provider: &ProviderName, took: Duration) {
        add(self.uploads.entry(provider.clone()).or_default(), took);
    }

    /// Returns the median duration of the last builds. None if no build has succeeded.
    pub fn usual_build(&self) -> Option<Duration> {
        median(&self.builds)
    }

    pub fn usual_upload(&self, provider: &ProviderName) -> Option<Duration> {
        median(self.uploads.get(provider)?)
    }
}

fn add(list: &mut Vec<Duration>, took: Duration) {
    list.push(took);
    let surplus = list.len().saturating_sub(REMEMBERED);
    list.drain(..surplus);
}

fn median(list: &[Duration]) -> Option<Duration> {
    let mut sorted = list.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

impl StewardReport {
    /// Summarizes an explanation for launchers.
    pub fn new(snapshot: &ImageState, explanation: &ImageExplanation) -> Self {
        let uploads = explanation.providers.iter().map(|report| {
            let state = upload_state(snapshot, &report.provider, &report.verdict);
            (report.provider.clone(), state)
        });
        Self {
            build: build_state(snapshot, &explanation.build),
            uploads: uploads.collect(),
            durations: snapshot.durations.clone(),
        }
    }
}

fn build_state(snapshot: &ImageState, verdict: &BuildVerdict) -> JobState {
    match verdict {
        BuildVerdict::NotConfigured => {
            blocked("the configuration of the builder does not have it".to_owned())
        }
        BuildVerdict::Imported(report) => import_state(snapshot, report),
        BuildVerdict::Paused { by } => blocked(match by {
            WhyPaused::Configuration => "it is paused in the configuration".to_owned(),
            WhyPaused::Person => format!(
                "it is paused; resume with `nodeyard image unpause {}`",
                snapshot.image
            ),
        }),
        BuildVerdict::NoFormats => blocked("no provider uses it".to_owned()),
        BuildVerdict::UnderWay { build, since, .. } => JobState::Running {
            build: *build,
            since: *since,
        },
        BuildVerdict::Resumes { build } => JobState::Running {
            build: Some(*build),
            since: snapshot.builds.get(build).map(|build| build.since),
        },
        BuildVerdict::UpToDate { .. } => JobState::Done,
        BuildVerdict::Waits { wait, .. } => waiting(None, wait),
        BuildVerdict::Begins { .. } => starting(None),
    }
}

fn import_state(snapshot: &ImageState, report: &ImportReport) -> JobState {
    match &report.verdict {
        ImportVerdict::Asks => starting(None),
        ImportVerdict::Nothing => nothing_to_import(snapshot, report),
        ImportVerdict::UpToDate { .. } => JobState::Done,
        ImportVerdict::Waits { wait, .. } => waiting(None, wait),
        ImportVerdict::UnderWay { .. } | ImportVerdict::Begins { .. } => starting(None),
    }
}

fn nothing_to_import(snapshot: &ImageState, report: &ImportReport) -> JobState {
    let zuul_builds = snapshot.zuul_builds.as_ref();
    match (zuul_builds, &report.error, report.next) {
        (Some(zuul_builds), Some(error), Some(until)) if zuul_builds.failures > 0 => {
            JobState::Retrying {
                build: None,
                failures: zuul_builds.failures,
                until,
                reason: format!("failed to ask Zuul for builds: {error}"),
            }
        }
        _ => blocked("Zuul has no build of it that can be used".to_owned()),
    }
}

fn upload_state(snapshot: &ImageState, to: &ProviderName, verdict: &UploadVerdict) -> JobState {
    match verdict {
        UploadVerdict::Paused => {
            blocked(format!("its upload to {to} is paused in the configuration"))
        }
        UploadVerdict::NoBuild => JobState::NoBuild,
        UploadVerdict::Done { .. } => JobState::Done,
        UploadVerdict::UnderWay { build } => JobState::Running {
            build: Some(*build),
            since: upload_began(snapshot, *build, to),
        },
        UploadVerdict::Settles(upload) => JobState::Running {
            build: Some(upload.build),
            since: upload_began(snapshot, upload.build, to),
        },
        UploadVerdict::Waits { build, wait } => waiting(Some(*build), wait),
        UploadVerdict::Begins { build } => starting(Some(*build)),
    }
}

fn upload_began(snapshot: &ImageState, build: BuildId, to: &ProviderName) -> Option<Timestamp> {
    let build = snapshot.builds.get(&build)?;
    let under_way = build.uploads_to(to).map(|(_, upload)| upload);
    let under_way = under_way.filter(|upload| upload.state == UploadState::Uploading);
    under_way.map(|upload| upload.since).max()
}

fn starting(build: Option<BuildId>) -> JobState {
    JobState::Running { build, since: None }
}

fn blocked(reason: String) -> JobState {
    JobState::Blocked { reason }
}

fn waiting(build: Option<BuildId>, wait: &WaitReason) -> JobState {
    match wait {
        WaitReason::BackOff {
            failures,
            until,
            reason,
        } => JobState::Retrying {
            build,
            failures: *failures,
            until: *until,
            reason: reason.clone(),
        },
        WaitReason::Worker { function } => JobState::NoWorker {
            reason: format!("no worker answers {function}"),
        },
        WaitReason::JobServer { reason } => JobState::NoWorker {
            reason: format!("no job server answers: {reason}"),
        },
    }
}
