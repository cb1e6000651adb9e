//! What becomes of an image: when it is built, uploaded and deleted, and why not.
//!
//! [`decide`] takes the [`Picture`] of one image and says what is to be done ([`Action`]), what it makes of every
//! build, upload and provider ([`Explanation`]), and when time alone would change its mind. A steward carries the
//! actions out: for each it takes the lock, draws the picture again and asks again, so that a decision is never
//! older than the lock it is carried out under. Carrying out an action twice, or by two stewards, must be harmless.
//!
//! The order in which things go is upload, build, files. What holds it together:
//!
//! - The newest `retention` ready builds are kept, and for each provider as many of the newest ready uploads,
//!   whatever their builds: while new uploads fail, the old ones stay. What was taken back is not counted, and goes
//!   unless it is the newest. Kept beside them is what is pinned, and what launches use ([`Picture::launches`]): as
//!   long as a build is on trial, the one that it may have to be replaced by is there. So the upload that nodes boot
//!   from is removed only when somebody says so, or when no provider of the configuration takes the image any more.
//! - Records of a provider that the configuration does not have are never touched. They pin their build.
//! - A build is begun only when no other is under way, and one that lost its steward is settled first.

pub mod availability;
mod build;
mod import;
mod market;
mod picture;
mod progress;
mod remove;
mod steward_report;
mod text;
mod upload;
mod verdict;

use std::time::Duration;

use nodeyard_model::Timestamp;

pub use import::is_worth_more;
pub use market::{BadBuild, Market, Offer, PassedOver, Refusal, ZuulBuild};
pub use picture::{
    Answered, Build, ImagePolicy, Imports, Origin, Picture, Request, Services, Setback, Subject,
    Takes, Upload, UploadRef,
};
pub use progress::Progress;
pub use steward_report::{JobDurations, JobState, StewardReport};
pub use verdict::{
    Action, BuildReport, BuildVerdict, Explanation, Fate, ImportReport, ImportVerdict, OnTrial,
    Plan, ProviderReport, RemovalReason, UploadReport, UploadVerdict, Wait, WhyBuild, WhyKept,
    WhyPaused,
};

/// How long to wait where only time helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// After the first failure; doubled with each that follows.
    pub first_retry: Duration,
    pub longest_retry: Duration,
    /// For how long failed builds and uploads are left for people to see.
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
    fn retry_at(&self, setback: &Setback) -> Timestamp {
        if setback.uncounted > 0 {
            return setback.at;
        }
        let doublings = setback.failures.saturating_sub(1).min(31);
        let wait = self.first_retry.saturating_mul(1 << doublings);
        setback.at + wait.min(self.longest_retry)
    }
}

/// Judges one image.
pub fn decide(picture: &Picture, pace: &Pace, now: Timestamp) -> Plan {
    let judge = Judge::new(picture, pace, now);
    let mut plan = Plan::new(picture.image.clone());
    plan.explanation.canary = picture.canary.clone();
    plan.explanation.on_trial = on_trial(picture);
    build::judge(&judge, &mut plan);
    upload::judge(&judge, &mut plan);
    remove::judge(&judge, &mut plan);
    plan
}

fn on_trial(picture: &Picture) -> Option<OnTrial> {
    let successes = picture.policy.as_ref()?.canary?.successes;
    let build = picture.canary.on_trial(&picture.uploaded_builds())?;
    Some(OnTrial { build, successes })
}

/// The picture, and what all parts of the judgement need to know of it.
struct Judge<'p> {
    picture: &'p Picture,
    pace: &'p Pace,
    now: Timestamp,
}

impl<'p> Judge<'p> {
    fn new(picture: &'p Picture, pace: &'p Pace, now: Timestamp) -> Self {
        Self { picture, pace, now }
    }

    /// Whether an earlier failure of the same thing still counts.
    fn holds_back(&self, subject: &Subject) -> Option<Wait> {
        let setback = self.picture.setbacks.get(subject)?;
        let until = self.pace.retry_at(setback);
        (until > self.now).then(|| Wait::BackOff {
            failures: setback.failures,
            until,
            reason: setback.reason.clone(),
        })
    }

    /// Whether something that failed is still to be left for people to see.
    fn lingers_until(&self, since: Timestamp) -> Option<Timestamp> {
        let until = since + self.pace.linger;
        (until > self.now).then_some(until)
    }
}
