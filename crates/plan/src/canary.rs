//! Which build of an image launches use, and which build is on trial.
//!
//! Without a trial launches use the newest build, unless it was rolled back or another is pinned. With a trial, which is
//! opt-in:
//!
//! - On trial is the newest build that was not rolled back, until enough launches from it have succeeded. It serves a
//!   share of the launches and is the only one that is evaluated; if too many of them fail, it is rolled back automatically.
//! - The other launches use the newest build that passed its trial or, while none has, the
//!   oldest, which has been in use for the longest time. So a build that is overtaken before its trial has ended never
//!   serves more than its share.
//!
//! A build that was rolled back is used only where there is no other, so that an image never disappears. An operator can
//! pin an image to a build, or roll the newest one back, with or without a trial.
//!
//! [`CanaryState::launches`] is the one place where this is decided: launchers, retention and `explain` all use it.

use std::collections::BTreeMap;
use std::fmt;

use nodeyard_model::{BuildId, Timestamp};
use serde::{Deserialize, Serialize};

/// A single failure may be unrelated to the build.
const FEWEST_FAILURES: u32 = 2;

/// How builds of an image are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CanaryPolicy {
    /// Launches in a hundred that use the build on trial.
    pub share: u32,
    /// Launches that have to succeed.
    pub successes: u32,
    /// Failures in a hundred launches above which it is rolled back.
    pub failure_limit: u32,
}

impl CanaryPolicy {
    /// Converts the numbers of a configuration.
    pub fn new(share: u64, successes: u64, failure_limit: u64) -> Self {
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Self {
            share: number(share),
            successes: number(successes),
            failure_limit: number(failure_limit),
        }
    }
}

/// The stored trials and the pin of an image.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct CanaryState {
    /// The build that an operator pinned.
    pub pinned: Option<BuildId>,
    pub trials: BTreeMap<BuildId, Trial>,
}

/// The results of launches from a build on trial.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Trial {
    pub succeeded: u32,
    pub failed: u32,
    pub ended: Option<TrialOutcome>,
}

/// The result of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrialOutcome {
    Passed {
        at: Timestamp,
    },
    #[serde(rename = "taken-back")]
    RolledBack {
        at: Timestamp,
        reason: String,
        /// When it passed its trial, if it did before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        passed: Option<Timestamp>,
    },
}

/// The builds of an image that have an upload, the newest first.
#[derive(Debug, Clone, Copy)]
pub struct Uploaded<'b> {
    /// To any provider.
    pub anywhere: &'b [BuildId],
    /// To the provider in question.
    pub here: &'b [BuildId],
}

/// Which builds the launches of a provider use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LaunchBuilds {
    pub build: BuildId,
    pub why: WhyUsed,
    /// The build that some of them use instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial: Option<TrialShare>,
    /// The pinned build, if it has no upload here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<BuildId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TrialShare {
    pub build: BuildId,
    /// In a hundred launches.
    pub share: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhyUsed {
    Pinned,
    Newest,
    /// All newer ones were rolled back.
    #[serde(rename = "not-taken-back")]
    NotRolledBack,
    /// It is the newest that passed its trial.
    Proven,
    /// None passed its trial.
    Oldest,
    /// All were rolled back.
    NothingElse,
}

/// A launch that has ended.
#[derive(Debug, Clone, Copy)]
pub struct CanaryLaunch<'l> {
    pub build: BuildId,
    /// Why it failed, if it did.
    pub failure: Option<&'l str>,
}

impl CanaryState {
    fn ended(&self, build: BuildId) -> Option<&TrialOutcome> {
        self.trials.get(&build)?.ended.as_ref()
    }

    pub fn is_rolled_back(&self, build: BuildId) -> bool {
        matches!(self.ended(build), Some(TrialOutcome::RolledBack { .. }))
    }

    fn has_passed(&self, build: BuildId) -> bool {
        match self.ended(build) {
            Some(TrialOutcome::Passed { .. }) => true,
            Some(TrialOutcome::RolledBack { passed, .. }) => passed.is_some(),
            None => false,
        }
    }

    /// Returns the build on trial. `anywhere` are the builds that have an upload, the newest first.
    pub fn on_trial(&self, anywhere: &[BuildId]) -> Option<BuildId> {
        let mut usable = anywhere.iter().copied();
        let newest = usable.find(|build| !self.is_rolled_back(*build))?;
        (!self.has_passed(newest)).then_some(newest)
    }

    /// Returns which builds the launches of a provider use. None if it has no upload.
    pub fn launches(
        &self,
        uploaded: Uploaded<'_>,
        policy: Option<&CanaryPolicy>,
    ) -> Option<LaunchBuilds> {
        let pinned = self.pinned;
        if let Some(pinned) = pinned.filter(|pinned| uploaded.here.contains(pinned)) {
            return Some(LaunchBuilds {
                build: pinned,
                why: WhyUsed::Pinned,
                trial: None,
                missing: None,
            });
        }
        let missing = pinned;
        let launches = self.launches_unpinned(uploaded, policy)?;
        Some(LaunchBuilds {
            missing,
            ..launches
        })
    }

    /// Returns which builds the launches of a provider would use without a pin.
    pub(crate) fn launches_unpinned(
        &self,
        uploaded: Uploaded<'_>,
        policy: Option<&CanaryPolicy>,
    ) -> Option<LaunchBuilds> {
        let Uploaded { anywhere, here } = uploaded;
        let usable = here.iter().copied();
        let usable: Vec<BuildId> = usable
            .filter(|build| !self.is_rolled_back(*build))
            .collect();
        let newest = usable.first().copied();
        let build = match (newest, policy) {
            (None, _) => self.newest_proven(here)?,
            (Some(newest), None) => newest,
            (Some(_), Some(_)) => self.newest_proven(&usable)?,
        };
        let why = if newest.is_none() {
            WhyUsed::NothingElse
        } else if here.first() == Some(&build) {
            WhyUsed::Newest
        } else if newest == Some(build) {
            WhyUsed::NotRolledBack
        } else if self.has_passed(build) {
            WhyUsed::Proven
        } else {
            WhyUsed::Oldest
        };
        let trial = policy.and_then(|policy| {
            let tried = self.on_trial(anywhere)?;
            let share = policy.share;
            let is_here = tried != build && usable.contains(&tried);
            is_here.then_some(TrialShare {
                build: tried,
                share,
            })
        });
        Some(LaunchBuilds {
            build,
            why,
            trial,
            missing: None,
        })
    }

    /// Returns the newest build that passed its trial, or else the oldest.
    fn newest_proven(&self, newest_first: &[BuildId]) -> Option<BuildId> {
        let mut builds = newest_first.iter();
        let proven = builds.find(|build| self.has_passed(**build));
        proven.or(newest_first.last()).copied()
    }

    /// Records the result of a launch. Returns the outcome of the trial of its build if this launch ended it.
    ///
    /// Only the build on trial is evaluated, and it is rolled back only if its provider has another build.
    pub fn record(
        &mut self,
        launch: CanaryLaunch<'_>,
        uploaded: Uploaded<'_>,
        policy: &CanaryPolicy,
        now: Timestamp,
    ) -> Option<&TrialOutcome> {
        let CanaryLaunch { build, failure } = launch;
        if self.on_trial(uploaded.anywhere) != Some(build) {
            return None;
        }
        let mut here = uploaded.here.iter();
        let has_other = here.any(|other| *other != build && !self.is_rolled_back(*other));
        let trial = self.trials.entry(build).or_default();
        match failure {
            None => trial.succeeded = trial.succeeded.saturating_add(1),
            Some(_) => trial.failed = trial.failed.saturating_add(1),
        }
        let Trial {
            succeeded, failed, ..
        } = *trial;
        let (failed_wide, all) = (u64::from(failed), u64::from(failed) + u64::from(succeeded));
        let too_many = failed_wide * 100 > u64::from(policy.failure_limit) * all;
        if failed >= FEWEST_FAILURES && too_many && has_other {
            let failure = failure.unwrap_or("another reason");
            trial.ended = Some(TrialOutcome::RolledBack {
                at: now,
                reason: format!("{failed} of {all} launches failed, the last one with: {failure}"),
                passed: None,
            });
        } else if succeeded >= policy.successes {
            trial.ended = Some(TrialOutcome::Passed { at: now });
        }
        trial.ended.as_ref()
    }

    /// Rolls a build back at the request of an operator.
    pub fn roll_back(&mut self, build: BuildId, reason: &str, now: Timestamp) {
        let trial = self.trials.entry(build).or_default();
        let passed = match trial.ended {
            Some(TrialOutcome::Passed { at }) => Some(at),
            Some(TrialOutcome::RolledBack { passed, .. }) => passed,
            None => None,
        };
        trial.ended = Some(TrialOutcome::RolledBack {
            at: now,
            reason: reason.to_owned(),
            passed,
        });
    }

    /// Removes the pin and all rollbacks. Builds that passed their trial before keep that outcome; the others are tried
    /// again.
    pub fn unpin(&mut self) {
        self.pinned = None;
        self.trials.retain(|_, trial| match trial.ended {
            Some(TrialOutcome::RolledBack { passed, .. }) => {
                trial.ended = passed.map(|at| TrialOutcome::Passed { at });
                passed.is_some()
            }
            Some(TrialOutcome::Passed { .. }) | None => true,
        });
    }

    /// Removes a deleted build from the state.
    pub fn forget(&mut self, build: BuildId) {
        self.trials.remove(&build);
        self.pinned = self.pinned.filter(|pinned| *pinned != build);
    }
}

impl LaunchBuilds {
    /// Returns the build that one launch uses. `dice` is at least 0 and less than 1.
    pub fn pick(&self, dice: f64) -> BuildId {
        match self.trial {
            Some(TrialShare { build, share }) if dice * 100.0 < f64::from(share) => build,
            _ => self.build,
        }
    }
}

/// As in "launches use …".
impl fmt::Display for LaunchBuilds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let build = self.build;
        write!(f, "{build}")?;
        f.write_str(match self.why {
            WhyUsed::Pinned => ", which the image is pinned to",
            WhyUsed::Newest => ", the newest",
            WhyUsed::NotRolledBack => ", the newest that was not rolled back",
            WhyUsed::Proven => ", the newest that passed its trial",
            WhyUsed::Oldest => ", the oldest, since none passed its trial",
            WhyUsed::NothingElse => {
                ", although it was rolled back, since there is no other; build the image again"
            }
        })?;
        if let Some(TrialShare { build, share }) = self.trial {
            write!(f, "; {share} % of them try {build}")?;
        }
        if let Some(missing) = self.missing {
            write!(
                f,
                "; {missing}, which the image is pinned to, has no upload there"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
