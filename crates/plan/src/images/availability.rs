//! Whether machines can boot from an image, will be able to, or will not: what requests that wait for an image go by.
//!
//! [`availability`] judges what stewards report. An image comes as long as one of them has it built or uploaded, or
//! tries again. Where nobody is there for it, somebody gets a moment to appear: builders start, and restart.

use std::fmt;
use std::time::Duration;

use nodeyard_model::{BuildId, ProviderName, Timestamp};
use serde::{Deserialize, Serialize};

use super::steward_report::{JobState, StewardReport};
use crate::span::Span;

/// A build or an upload that failed so often in a row is not waited for, until the next attempt is under way.
pub const MAX_FAILURES: u32 = 3;

/// What is known of an image at one provider.
#[derive(Debug, Clone)]
pub struct ImageEvidence<'a> {
    pub provider: &'a ProviderName,
    /// The provider has an upload that machines can boot from.
    pub is_uploaded: bool,
    pub reports: Vec<&'a StewardReport>,
    /// Since when nobody has been there to make the image; none if somebody was.
    pub unattended_since: Option<Timestamp>,
}

/// The answer to [`availability`].
#[derive(Debug, Clone, PartialEq)]
pub struct ImageVerdict {
    pub availability: ImageAvailability,
    /// Since when nobody has been there to make the image.
    pub unattended_since: Option<Timestamp>,
    /// When time alone changes the answer.
    pub again_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ImageAvailability {
    Ready,
    Pending(PendingImage),
    Unavailable { reason: String },
}

/// An image that is being made.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingImage {
    pub stage: ImageStage,
    /// How long this stage usually takes; none if there was none before.
    pub usual: Option<Duration>,
    /// How long what comes after it usually takes.
    pub then: Option<Duration>,
}

/// What has to happen next to an image that is being made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageStage {
    /// The build ends, and is uploaded.
    Build {
        build: Option<BuildId>,
        since: Option<Timestamp>,
    },
    /// The upload ends.
    Upload {
        build: Option<BuildId>,
        since: Option<Timestamp>,
    },
    /// The build is tried again.
    BuildRetry {
        failures: u32,
        until: Timestamp,
        reason: String,
    },
    /// The upload is tried again.
    UploadRetry {
        build: Option<BuildId>,
        failures: u32,
        until: Timestamp,
        reason: String,
    },
    /// Somebody appears who makes it.
    Worker { reason: String },
}

impl PendingImage {
    /// When machines should be able to boot from it, by how long that took before.
    pub fn expected(&self) -> Option<Timestamp> {
        let begin = match &self.stage {
            ImageStage::Build { since, .. } | ImageStage::Upload { since, .. } => (*since)?,
            ImageStage::BuildRetry { until, .. } | ImageStage::UploadRetry { until, .. } => *until,
            ImageStage::Worker { .. } => return None,
        };
        let takes = self.usual?.saturating_add(self.then.unwrap_or_default());
        Some(begin + takes)
    }
}

impl ImageStage {
    /// The build that is waited for.
    pub fn build(&self) -> Option<BuildId> {
        match self {
            Self::Build { build, .. }
            | Self::Upload { build, .. }
            | Self::UploadRetry { build, .. } => *build,
            Self::BuildRetry { .. } | Self::Worker { .. } => None,
        }
    }

    /// Whether there is a build, and only its upload is missing.
    pub fn is_upload(&self) -> bool {
        matches!(self, Self::Upload { .. } | Self::UploadRetry { .. })
    }

    /// Describes the stage; it reads after the name of the image.
    pub(crate) fn told_at<'a>(
        &'a self,
        provider: &'a ProviderName,
        now: Timestamp,
    ) -> impl fmt::Display + 'a {
        struct StageText<'a>(&'a ImageStage, &'a ProviderName, Timestamp);
        impl fmt::Display for StageText<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let Self(stage, provider, now) = self;
                let after = |until: &Timestamp| Span(until.since(*now));
                match stage {
                    ImageStage::Build { build, .. } => {
                        f.write_str("is being built")?;
                        of_build(f, *build)
                    }
                    ImageStage::Upload { build, .. } => {
                        write!(f, "is being uploaded to {provider}")?;
                        of_build(f, *build)
                    }
                    ImageStage::BuildRetry {
                        failures,
                        until,
                        reason,
                    } => {
                        let times = Times(*failures);
                        let after = after(until);
                        write!(
                            f,
                            "failed to build {times}, is tried again in {after}: {reason}"
                        )
                    }
                    ImageStage::UploadRetry {
                        build,
                        failures,
                        until,
                        reason,
                    } => {
                        let times = Times(*failures);
                        let after = after(until);
                        write!(f, "failed to upload to {provider} {times}")?;
                        of_build(f, *build)?;
                        write!(f, ", is tried again in {after}: {reason}")
                    }
                    ImageStage::Worker { reason } => write!(f, "waits for a builder: {reason}"),
                }
            }
        }
        StageText(self, provider, now)
    }
}

fn of_build(f: &mut fmt::Formatter<'_>, build: Option<BuildId>) -> fmt::Result {
    build.map_or(Ok(()), |build| write!(f, " (build {build})"))
}

/// A count, as people say it.
struct Times(u32);

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("once"),
            count => write!(f, "{count} times"),
        }
    }
}

/// How an image stands at a provider as far as one report says.
#[derive(Debug, PartialEq)]
enum Prospect {
    Pending(PendingImage),
    NoWorker(String),
    Unavailable(String),
}

/// Decides whether an image is there, comes, or does not. For `grace` nobody has to be there to make it.
pub fn availability(evidence: &ImageEvidence<'_>, grace: Duration, now: Timestamp) -> ImageVerdict {
    if evidence.is_uploaded {
        return settled(ImageAvailability::Ready);
    }
    let prospects = evidence.reports.iter();
    let best = prospects
        .map(|report| prospect(report, evidence.provider))
        .min_by_key(|prospect| match prospect {
            Prospect::Pending(_) => 0,
            Prospect::NoWorker(_) => 1,
            Prospect::Unavailable(_) => 2,
        });
    let reason = match best {
        Some(Prospect::Pending(pending)) => return settled(ImageAvailability::Pending(pending)),
        Some(Prospect::Unavailable(reason)) => {
            return settled(ImageAvailability::Unavailable { reason });
        }
        Some(Prospect::NoWorker(reason)) => reason,
        None => "no builder looks after it".to_owned(),
    };
    let since = evidence.unattended_since.unwrap_or(now);
    let until = since + grace;
    let waits = until > now;
    ImageVerdict {
        availability: if waits {
            let stage = ImageStage::Worker { reason };
            ImageAvailability::Pending(PendingImage {
                stage,
                usual: None,
                then: None,
            })
        } else {
            ImageAvailability::Unavailable { reason }
        },
        unattended_since: Some(since),
        again_at: waits.then_some(until),
    }
}

fn settled(availability: ImageAvailability) -> ImageVerdict {
    ImageVerdict {
        availability,
        unattended_since: None,
        again_at: None,
    }
}

fn prospect(report: &StewardReport, provider: &ProviderName) -> Prospect {
    let StewardReport {
        build,
        uploads,
        durations,
    } = report;
    let usual_upload = durations.usual_upload(provider);
    let upload = |stage| {
        Prospect::Pending(PendingImage {
            stage,
            usual: usual_upload,
            then: None,
        })
    };
    let own = match uploads.get(provider) {
        None => {
            return Prospect::Unavailable(match build {
                JobState::Blocked { reason } => reason.clone(),
                _ => format!("the configuration of the builder has no upload of it to {provider}"),
            });
        }
        Some(JobState::NoBuild) => {
            return of_build_state(build, report, provider)
                .unwrap_or_else(|| Prospect::NoWorker("there is no build of it".to_owned()));
        }
        Some(JobState::Running { build, since }) => {
            return upload(ImageStage::Upload {
                build: *build,
                since: *since,
            });
        }
        // Its record is about to be seen.
        Some(JobState::Done) => {
            return upload(ImageStage::Upload {
                build: None,
                since: None,
            });
        }
        Some(JobState::Retrying {
            build,
            failures,
            until,
            reason,
        }) if *failures < MAX_FAILURES => {
            return upload(ImageStage::UploadRetry {
                build: *build,
                failures: *failures,
                until: *until,
                reason: reason.clone(),
            });
        }
        Some(JobState::Blocked { reason }) => return Prospect::Unavailable(reason.clone()),
        Some(JobState::Retrying {
            failures, reason, ..
        }) => Prospect::Unavailable(format!(
            "it failed to upload to {provider} {failures} times in a row: {reason}"
        )),
        Some(JobState::NoWorker { reason }) => Prospect::NoWorker(reason.clone()),
    };
    // The next build is uploaded, too.
    match of_build_state(build, report, provider) {
        Some(next @ Prospect::Pending(_)) => next,
        _ => own,
    }
}

/// None if no build is to be made.
fn of_build_state(
    state: &JobState,
    report: &StewardReport,
    provider: &ProviderName,
) -> Option<Prospect> {
    let pending = |stage| {
        Prospect::Pending(PendingImage {
            stage,
            usual: report.durations.usual_build(),
            then: report.durations.usual_upload(provider),
        })
    };
    Some(match state {
        JobState::Done | JobState::NoBuild => return None,
        JobState::Running { build, since } => pending(ImageStage::Build {
            build: *build,
            since: *since,
        }),
        JobState::Retrying {
            failures,
            until,
            reason,
            ..
        } if *failures < MAX_FAILURES => pending(ImageStage::BuildRetry {
            failures: *failures,
            until: *until,
            reason: reason.clone(),
        }),
        JobState::Retrying {
            failures, reason, ..
        } => Prospect::Unavailable(format!(
            "it failed to build {failures} times in a row: {reason}"
        )),
        JobState::NoWorker { reason } => Prospect::NoWorker(reason.clone()),
        JobState::Blocked { reason } => Prospect::Unavailable(reason.clone()),
    })
}
