//! Decides whether machines can boot from an image now, later or not at all. Requests that wait for an image depend on
//! it.
//!
//! [`availability`] combines the [`StewardReport`]s of all builders. An image is pending while one of them has a build
//! or an upload under way or scheduled. Without an active builder it stays pending for a grace period, since builders
//! start and restart.

use std::fmt;
use std::time::Duration;

use nodeyard_model::{BuildId, ProviderName, Timestamp};
use serde::{Deserialize, Serialize};

use super::steward_report::{JobState, StewardReport};
use crate::span::HumanDuration;

/// After this many failures in a row a build or an upload counts as unavailable until the next attempt is under way.
pub const MAX_FAILURES: u32 = 3;

/// The known state of an image at one provider.
#[derive(Debug, Clone)]
pub struct ImageEvidence<'a> {
    pub provider: &'a ProviderName,
    /// The provider has an upload that machines can boot from.
    pub is_uploaded: bool,
    pub reports: Vec<&'a StewardReport>,
    /// Since when no worker could make the image. None if one could.
    pub unattended_since: Option<Timestamp>,
}

/// The answer to [`availability`].
#[derive(Debug, Clone, PartialEq)]
pub struct ImageVerdict {
    pub availability: ImageAvailability,
    /// Since when no worker could make the image.
    pub unattended_since: Option<Timestamp>,
    /// When to evaluate again without any other change.
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
    /// How long this stage usually takes. None if no earlier duration is known.
    pub usual: Option<Duration>,
    /// How long the following stages usually take.
    pub then: Option<Duration>,
}

/// The next step of an image that is being made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageStage {
    /// The build finishes and is uploaded.
    Build {
        build: Option<BuildId>,
        since: Option<Timestamp>,
    },
    /// The upload finishes.
    Upload {
        build: Option<BuildId>,
        since: Option<Timestamp>,
    },
    /// The build is retried.
    BuildRetry {
        failures: u32,
        until: Timestamp,
        reason: String,
    },
    /// The upload is retried.
    UploadRetry {
        build: Option<BuildId>,
        failures: u32,
        until: Timestamp,
        reason: String,
    },
    /// A worker that can make the image connects.
    Worker { reason: String },
}

impl PendingImage {
    /// Returns when the image should be ready, estimated from earlier durations.
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
    /// Returns the build whose completion or upload is pending.
    pub fn build(&self) -> Option<BuildId> {
        match self {
            Self::Build { build, .. }
            | Self::Upload { build, .. }
            | Self::UploadRetry { build, .. } => *build,
            Self::BuildRetry { .. } | Self::Worker { .. } => None,
        }
    }

    /// Returns whether only the upload is pending.
    pub fn is_upload(&self) -> bool {
        matches!(self, Self::Upload { .. } | Self::UploadRetry { .. })
    }

    /// Describes the stage; it reads after the name of the image.
    pub(crate) fn display_at<'a>(
        &'a self,
        provider: &'a ProviderName,
        now: Timestamp,
    ) -> impl fmt::Display + 'a {
        struct StageText<'a>(&'a ImageStage, &'a ProviderName, Timestamp);
        impl fmt::Display for StageText<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let Self(stage, provider, now) = self;
                let after = |until: &Timestamp| HumanDuration(until.since(*now));
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

/// Displays a count as "once" or "n times".
struct Times(u32);

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("once"),
            count => write!(f, "{count} times"),
        }
    }
}

/// The availability of an image at a provider according to one report.
#[derive(Debug, PartialEq)]
enum Prospect {
    Pending(PendingImage),
    NoWorker(String),
    Unavailable(String),
}

/// Decides whether an image is ready, pending or unavailable. Without a worker it stays pending for `grace`.
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
        None => "no builder manages it".to_owned(),
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

/// Returns None if no build is due.
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
