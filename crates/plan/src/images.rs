//! Decides when an image is built, uploaded and deleted, with the reasons.
//!
//! [`decide`] takes an [`ImageState`] and returns a [`Plan`]: the [`Action`]s that are due, an [`ImageExplanation`] of
//! every build, upload and provider, and when to decide again without any other change. A steward executes an action
//! under its lock after reading the state and deciding again, so a decision is never older than the lock it is
//! executed under. Actions are idempotent.
//!
//! Uploads are deleted before their build, and the build before its files. The invariants:
//!
//! - The newest `retention` ready builds are kept and, for each provider, as many of the newest ready uploads of any
//!   build, so the old uploads stay while new ones fail. Rolled-back builds do not count and are removed unless
//!   newest. Pinned builds and those that launches use ([`ImageState::launches`]) are kept as well, so the fallback of
//!   a build on trial exists. The upload that nodes boot from is removed only on request, or when no configured
//!   provider uses the image any more.
//! - Records of a provider that is not in the configuration are never modified. Their build is kept.
//! - A build starts only when no other is under way. A build without a steward is settled first.

pub mod availability;
mod build;
mod import;
mod progress;
mod remove;
mod state;
mod steward_report;
mod text;
mod upload;
mod verdict;
mod zuul_builds;

use std::time::Duration;

use nodeyard_model::Timestamp;

pub use import::is_worth_more;
pub use progress::ImageJobProgress;
pub use state::{
    AvailableFunctions, BackoffState, BuildSnapshot, ImageBuildRequest, ImageOrigin, ImagePolicy,
    ImageState, Imports, Services, Subject, UploadRef, UploadSnapshot, UploadTarget,
};
pub use steward_report::{JobDurations, JobState, StewardReport};
pub use verdict::{
    Action, BuildReport, BuildVerdict, ImageExplanation, ImportReport, ImportVerdict, OnTrial,
    Plan, ProviderReport, RemovalReason, RetentionVerdict, UploadReport, UploadVerdict, WaitReason,
    WhyBuild, WhyKept, WhyPaused,
};
pub use zuul_builds::{BadBuild, Offer, RejectReason, RejectedBuild, ZuulBuildList, ZuulSource};

/// Delays between retries, and how long failures stay visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// The delay after the first failure. It doubles with each failure that follows.
    pub first_retry: Duration,
    pub longest_retry: Duration,
    /// How long the records of failed builds and uploads are kept for inspection.
    pub linger: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            first_retry: Duration::from_secs(60),
            longest_retry: Duration::from_secs(60 * 60),
            linger: Duration::from_secs(60),
        }
    }
}

impl Pace {
    fn retry_at(&self, backoff: &BackoffState) -> Timestamp {
        if backoff.uncounted > 0 {
            return backoff.at;
        }
        let doublings = backoff.failures.saturating_sub(1).min(31);
        let wait = self.first_retry.saturating_mul(1 << doublings);
        backoff.at + wait.min(self.longest_retry)
    }
}

/// Decides what to do about one image.
pub fn decide(snapshot: &ImageState, pace: &Pace, now: Timestamp) -> Plan {
    let inputs = DecideInputs::new(snapshot, pace, now);
    let mut plan = Plan::new(snapshot.image.clone());
    plan.explanation.canary = snapshot.canary.clone();
    plan.explanation.on_trial = on_trial(snapshot);
    build::decide(&inputs, &mut plan);
    upload::decide(&inputs, &mut plan);
    remove::decide(&inputs, &mut plan);
    plan
}

fn on_trial(snapshot: &ImageState) -> Option<OnTrial> {
    let successes = snapshot.policy.as_ref()?.canary?.successes;
    let build = snapshot.canary.on_trial(&snapshot.uploaded_builds())?;
    Some(OnTrial { build, successes })
}

/// The inputs that all parts of the decision share.
struct DecideInputs<'p> {
    snapshot: &'p ImageState,
    pace: &'p Pace,
    now: Timestamp,
}

impl<'p> DecideInputs<'p> {
    fn new(snapshot: &'p ImageState, pace: &'p Pace, now: Timestamp) -> Self {
        Self {
            snapshot,
            pace,
            now,
        }
    }

    /// Returns the backoff of an earlier failure that has not expired.
    fn active_backoff(&self, subject: &Subject) -> Option<WaitReason> {
        let backoff = self.snapshot.backoffs.get(subject)?;
        let until = self.pace.retry_at(backoff);
        (until > self.now).then(|| WaitReason::BackOff {
            failures: backoff.failures,
            until,
            reason: backoff.reason.clone(),
        })
    }

    /// Returns until when a failed record is kept for inspection.
    fn retained_until(&self, since: Timestamp) -> Option<Timestamp> {
        let until = since + self.pace.linger;
        (until > self.now).then_some(until)
    }
}
