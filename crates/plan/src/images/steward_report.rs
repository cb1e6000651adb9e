//! What a steward reports of an image to launchers: how its build and its uploads stand.
//!
//! A launcher cannot know whether a worker answers, nor how long earlier builds took; stewards do. The report says
//! nothing that changes by itself from one moment to the next, so that it is written only when something happens.

use std::collections::BTreeMap;
use std::time::Duration;

use nodeyard_model::{BuildId, ProviderName, Timestamp, UploadState};
use serde::{Deserialize, Serialize};

use super::picture::Picture;
use super::verdict::{
    BuildVerdict, Explanation, ImportReport, ImportVerdict, UploadVerdict, Wait, WhyPaused,
};

/// How many durations are remembered of a build or of the uploads to a provider.
const REMEMBERED: usize = 5;

/// How an image stands, as one steward sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct StewardReport {
    pub build: JobState,
    /// To each provider that takes the image.
    pub uploads: BTreeMap<ProviderName, JobState>,
    #[serde(default)]
    pub durations: JobDurations,
}

/// How a build or an upload stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// There is nothing to do.
    Done,
    /// There is no build that could be uploaded.
    NoBuild,
    /// A job is under way, or about to be.
    Running {
        build: Option<BuildId>,
        since: Option<Timestamp>,
    },
    /// It failed and is tried again.
    Retrying {
        build: Option<BuildId>,
        failures: u32,
        until: Timestamp,
        reason: String,
    },
    /// Nobody is there to do it.
    NoWorker { reason: String },
    /// It is not done until somebody changes something.
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

    /// How long a build usually takes; none if none is known to have ended well.
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
    /// Says in a launcher's words what the plan made of a picture.
    pub fn new(picture: &Picture, explanation: &Explanation) -> Self {
        let uploads = explanation.providers.iter().map(|report| {
            let state = upload_state(picture, &report.provider, &report.verdict);
            (report.provider.clone(), state)
        });
        Self {
            build: build_state(picture, &explanation.build),
            uploads: uploads.collect(),
            durations: picture.durations.clone(),
        }
    }
}

fn build_state(picture: &Picture, verdict: &BuildVerdict) -> JobState {
    match verdict {
        BuildVerdict::NotConfigured => {
            blocked("the configuration of the builder does not have it".to_owned())
        }
        BuildVerdict::Imported(report) => import_state(picture, report),
        BuildVerdict::Paused { by } => blocked(match by {
            WhyPaused::Configuration => "it is paused in the configuration".to_owned(),
            WhyPaused::Person => format!(
                "it is paused; `nodeyard image unpause {}` has it built again",
                picture.image
            ),
        }),
        BuildVerdict::NoFormats => blocked("no provider takes it".to_owned()),
        BuildVerdict::UnderWay { build, since, .. } => JobState::Running {
            build: *build,
            since: *since,
        },
        BuildVerdict::Resumes { build } => JobState::Running {
            build: Some(*build),
            since: picture.builds.get(build).map(|build| build.since),
        },
        BuildVerdict::UpToDate { .. } => JobState::Done,
        BuildVerdict::Waits { wait, .. } => waiting(None, wait),
        BuildVerdict::Begins { .. } => starting(None),
    }
}

fn import_state(picture: &Picture, report: &ImportReport) -> JobState {
    match &report.verdict {
        ImportVerdict::Asks => starting(None),
        ImportVerdict::Nothing => nothing_to_import(picture, report),
        ImportVerdict::UpToDate { .. } => JobState::Done,
        ImportVerdict::Waits { wait, .. } => waiting(None, wait),
        ImportVerdict::UnderWay { .. } | ImportVerdict::Begins { .. } => starting(None),
    }
}

fn nothing_to_import(picture: &Picture, report: &ImportReport) -> JobState {
    let market = picture.market.as_ref();
    match (market, &report.error, report.next) {
        (Some(market), Some(error), Some(until)) if market.failures > 0 => JobState::Retrying {
            build: None,
            failures: market.failures,
            until,
            reason: format!("failed to ask Zuul for builds: {error}"),
        },
        _ => blocked("Zuul has no build of it that can be used".to_owned()),
    }
}

fn upload_state(picture: &Picture, to: &ProviderName, verdict: &UploadVerdict) -> JobState {
    match verdict {
        UploadVerdict::Paused => {
            blocked(format!("its upload to {to} is paused in the configuration"))
        }
        UploadVerdict::NoBuild => JobState::NoBuild,
        UploadVerdict::Done { .. } => JobState::Done,
        UploadVerdict::UnderWay { build } => JobState::Running {
            build: Some(*build),
            since: upload_began(picture, *build, to),
        },
        UploadVerdict::Settles(upload) => JobState::Running {
            build: Some(upload.build),
            since: upload_began(picture, upload.build, to),
        },
        UploadVerdict::Waits { build, wait } => waiting(Some(*build), wait),
        UploadVerdict::Begins { build } => starting(Some(*build)),
    }
}

fn upload_began(picture: &Picture, build: BuildId, to: &ProviderName) -> Option<Timestamp> {
    let build = picture.builds.get(&build)?;
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

fn waiting(build: Option<BuildId>, wait: &Wait) -> JobState {
    match wait {
        Wait::BackOff {
            failures,
            until,
            reason,
        } => JobState::Retrying {
            build,
            failures: *failures,
            until: *until,
            reason: reason.clone(),
        },
        Wait::Worker { function } => JobState::NoWorker {
            reason: format!("no worker answers {function}"),
        },
        Wait::JobServer { reason } => JobState::NoWorker {
            reason: format!("no job server answers: {reason}"),
        },
    }
}
