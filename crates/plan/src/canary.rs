//! Which build of an image launches use, and which one they are a test of.
//!
//! Without a trial it is the newest, unless that was taken back or a person says otherwise. With one, which is opt-in:
//!
//! - On trial is the newest build that was not taken back, until enough launches from it have succeeded. It serves a
//!   share of the launches and is the only one that is judged; if too many of them fail, it is taken back by itself.
//! - The other launches use the build that is trusted most: the newest that has proved itself or, while none has, the
//!   oldest, which has been in use for the longest time. So a build that is overtaken before its trial has ended never
//!   serves more than its share.
//!
//! A build that was taken back is used only where there is nothing else, so that an image never disappears. A person can
//! pin an image to a build, or take the newest one back, with or without a trial.
//!
//! [`CanaryState::launches`] is the one place where this is decided: launchers act on it, retention keeps what it
//! names, and people are told it.

use std::collections::BTreeMap;
use std::fmt;

use nodeyard_model::{BuildId, Timestamp};
use serde::{Deserialize, Serialize};

/// One failure may be anything.
const FEWEST_FAILURES: u32 = 2;

/// How builds of an image are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CanaryPolicy {
    /// Launches in a hundred that use the build on trial.
    pub share: u32,
    /// Launches that have to succeed.
    pub successes: u32,
    /// Failures in a hundred launches above which it is taken back.
    pub failure_limit: u32,
}

impl CanaryPolicy {
    /// From the numbers of a configuration.
    pub fn new(share: u64, successes: u64, failure_limit: u64) -> Self {
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Self {
            share: number(share),
            successes: number(successes),
            failure_limit: number(failure_limit),
        }
    }
}

/// What is known of an image's builds, and kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct CanaryState {
    /// The build that a person wants to be used.
    pub pinned: Option<BuildId>,
    pub trials: BTreeMap<BuildId, Trial>,
}

/// How a build does.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Trial {
    pub succeeded: u32,
    pub failed: u32,
    pub ended: Option<Ended>,
}

/// How a trial has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    Passed {
        at: Timestamp,
    },
    TakenBack {
        at: Timestamp,
        reason: String,
        /// When it had proved itself before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        passed: Option<Timestamp>,
    },
}

/// The builds of an image that have an upload, the newest first.
#[derive(Debug, Clone, Copy)]
pub struct Uploaded<'b> {
    /// To whatever provider.
    pub anywhere: &'b [BuildId],
    /// To the provider in question.
    pub here: &'b [BuildId],
}

/// Which builds the launches of a provider use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Launches {
    pub build: BuildId,
    pub why: WhyUsed,
    /// The build that some of them use instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial: Option<Share>,
    /// The build that a person wants to be used, and that has no upload here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<BuildId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Share {
    pub build: BuildId,
    /// In a hundred launches.
    pub share: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhyUsed {
    Pinned,
    Newest,
    /// All that are newer were taken back.
    NotTakenBack,
    /// It has proved itself, and none that is newer has.
    Proven,
    /// None has proved itself.
    Oldest,
    /// All were taken back.
    NothingElse,
}

/// A launch that has ended.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'l> {
    pub build: BuildId,
    /// Why it failed, if it did.
    pub failure: Option<&'l str>,
}

impl CanaryState {
    fn ended(&self, build: BuildId) -> Option<&Ended> {
        self.trials.get(&build)?.ended.as_ref()
    }

    pub fn is_taken_back(&self, build: BuildId) -> bool {
        matches!(self.ended(build), Some(Ended::TakenBack { .. }))
    }

    fn has_passed(&self, build: BuildId) -> bool {
        match self.ended(build) {
            Some(Ended::Passed { .. }) => true,
            Some(Ended::TakenBack { passed, .. }) => passed.is_some(),
            None => false,
        }
    }

    /// The build that launches are a test of. `anywhere` are those that have an upload, the newest first.
    pub fn on_trial(&self, anywhere: &[BuildId]) -> Option<BuildId> {
        let mut usable = anywhere.iter().copied();
        let newest = usable.find(|build| !self.is_taken_back(*build))?;
        (!self.has_passed(newest)).then_some(newest)
    }

    /// Which builds the launches of a provider use; none if it has no upload.
    pub fn launches(
        &self,
        uploaded: Uploaded<'_>,
        policy: Option<&CanaryPolicy>,
    ) -> Option<Launches> {
        let pinned = self.pinned;
        if let Some(pinned) = pinned.filter(|pinned| uploaded.here.contains(pinned)) {
            return Some(Launches {
                build: pinned,
                why: WhyUsed::Pinned,
                trial: None,
                missing: None,
            });
        }
        let missing = pinned;
        let launches = self.by_merit(uploaded, policy)?;
        Some(Launches {
            missing,
            ..launches
        })
    }

    /// Which builds they would use if nothing was pinned.
    pub(crate) fn by_merit(
        &self,
        uploaded: Uploaded<'_>,
        policy: Option<&CanaryPolicy>,
    ) -> Option<Launches> {
        let Uploaded { anywhere, here } = uploaded;
        let usable = here.iter().copied();
        let usable: Vec<BuildId> = usable.filter(|build| !self.is_taken_back(*build)).collect();
        let newest = usable.first().copied();
        let build = match (newest, policy) {
            (None, _) => self.most_trusted(here)?,
            (Some(newest), None) => newest,
            (Some(_), Some(_)) => self.most_trusted(&usable)?,
        };
        let why = if newest.is_none() {
            WhyUsed::NothingElse
        } else if here.first() == Some(&build) {
            WhyUsed::Newest
        } else if newest == Some(build) {
            WhyUsed::NotTakenBack
        } else if self.has_passed(build) {
            WhyUsed::Proven
        } else {
            WhyUsed::Oldest
        };
        let trial = policy.and_then(|policy| {
            let tried = self.on_trial(anywhere)?;
            let share = policy.share;
            let is_here = tried != build && usable.contains(&tried);
            is_here.then_some(Share {
                build: tried,
                share,
            })
        });
        Some(Launches {
            build,
            why,
            trial,
            missing: None,
        })
    }

    /// The newest that has proved itself, or else the oldest.
    fn most_trusted(&self, newest_first: &[BuildId]) -> Option<BuildId> {
        let mut builds = newest_first.iter();
        let proven = builds.find(|build| self.has_passed(**build));
        proven.or(newest_first.last()).copied()
    }

    /// A launch has ended. Returns how the trial of its build has ended, if that is now.
    ///
    /// Only the build on trial is judged, and it is taken back only if its provider has another to go back to.
    pub fn record(
        &mut self,
        launch: Launch<'_>,
        uploaded: Uploaded<'_>,
        policy: &CanaryPolicy,
        now: Timestamp,
    ) -> Option<&Ended> {
        let Launch { build, failure } = launch;
        if self.on_trial(uploaded.anywhere) != Some(build) {
            return None;
        }
        let mut here = uploaded.here.iter();
        let has_other = here.any(|other| *other != build && !self.is_taken_back(*other));
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
            trial.ended = Some(Ended::TakenBack {
                at: now,
                reason: format!("{failed} of {all} launches failed, the last one with: {failure}"),
                passed: None,
            });
        } else if succeeded >= policy.successes {
            trial.ended = Some(Ended::Passed { at: now });
        }
        trial.ended.as_ref()
    }

    /// A person takes a build back.
    pub fn take_back(&mut self, build: BuildId, reason: &str, now: Timestamp) {
        let trial = self.trials.entry(build).or_default();
        let passed = match trial.ended {
            Some(Ended::Passed { at }) => Some(at),
            Some(Ended::TakenBack { passed, .. }) => passed,
            None => None,
        };
        trial.ended = Some(Ended::TakenBack {
            at: now,
            reason: reason.to_owned(),
            passed,
        });
    }

    /// Forgets what a person has said, and that builds were taken back: those that had proved themselves have, the
    /// others are tried anew.
    pub fn unpin(&mut self) {
        self.pinned = None;
        self.trials.retain(|_, trial| match trial.ended {
            Some(Ended::TakenBack { passed, .. }) => {
                trial.ended = passed.map(|at| Ended::Passed { at });
                passed.is_some()
            }
            Some(Ended::Passed { .. }) | None => true,
        });
    }

    /// Forgets a build that is gone.
    pub fn forget(&mut self, build: BuildId) {
        self.trials.remove(&build);
        self.pinned = self.pinned.filter(|pinned| *pinned != build);
    }
}

impl Launches {
    /// The build that one launch uses. `dice` is at least 0 and less than 1.
    pub fn pick(&self, dice: f64) -> BuildId {
        match self.trial {
            Some(Share { build, share }) if dice * 100.0 < f64::from(share) => build,
            _ => self.build,
        }
    }
}

/// As in "launches use …".
impl fmt::Display for Launches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let build = self.build;
        write!(f, "{build}")?;
        f.write_str(match self.why {
            WhyUsed::Pinned => ", which the image is pinned to",
            WhyUsed::Newest => ", the newest",
            WhyUsed::NotTakenBack => ", the newest that was not taken back",
            WhyUsed::Proven => ", the newest that has proved itself",
            WhyUsed::Oldest => ", the oldest, since none has proved itself",
            WhyUsed::NothingElse => {
                ", although it was taken back, since there is nothing else; a new build would help"
            }
        })?;
        if let Some(Share { build, share }) = self.trial {
            write!(f, "; {share} in a hundred try {build}")?;
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
