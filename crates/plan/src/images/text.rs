//! Renders an [`ImageExplanation`] as text.
//!
//! Verdicts follow a prefix such as "build: " or "provider p: ", so they start in lower case and end without a full
//! stop. Times are relative to a moment that is passed in.

use std::fmt;

use nodeyard_model::Timestamp;

use super::verdict::{
    BuildVerdict, ImageExplanation, ImportReport, ImportVerdict, OnTrial, RemovalReason,
    RetentionVerdict, UploadVerdict, WaitReason, WhyBuild, WhyKept, WhyPaused,
};
use super::zuul_builds::{RejectReason, RejectedBuild};
use crate::canary::{Trial, TrialOutcome};
use crate::span::HumanDuration;

impl ImageExplanation {
    /// Renders the explanation with times relative to `now`.
    pub fn display_at(&self, now: Timestamp) -> impl fmt::Display {
        AtTime { value: self, now }
    }
}

/// Displays a value with times relative to a moment.
struct AtTime<'e, T> {
    value: &'e T,
    now: Timestamp,
}

impl<T> AtTime<'_, T> {
    fn at_same_time<'t, U>(&self, value: &'t U) -> AtTime<'t, U> {
        let now = self.now;
        AtTime { value, now }
    }

    fn ago(&self, time: Timestamp) -> HumanDuration {
        HumanDuration(self.now.since(time))
    }

    fn until(&self, time: Timestamp) -> HumanDuration {
        HumanDuration(time.since(self.now))
    }
}

impl fmt::Display for AtTime<'_, ImageExplanation> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ImageExplanation {
            image,
            build,
            builds,
            providers,
            uploads,
            canary: _,
            on_trial: _,
            again_at,
        } = self.value;
        writeln!(f, "image {image}")?;
        writeln!(f, "  next build: {}", self.at_same_time(build))?;
        for report in providers {
            let verdict = self.at_same_time(&report.verdict);
            writeln!(f, "  provider {}: {verdict}", report.provider)?;
            if let Some(launches) = &report.launches {
                writeln!(f, "    launches there use {launches}")?;
            }
        }
        for report in builds {
            let age = self.ago(report.since);
            let verdict = self.at_same_time(&report.verdict);
            let (build, state) = (report.build, report.state);
            writeln!(f, "  build {build}, {state} for {age}: {verdict}")?;
        }
        for report in uploads {
            let age = self.ago(report.since);
            let verdict = self.at_same_time(&report.verdict);
            let (upload, state) = (&report.upload, report.state);
            writeln!(f, "  upload {upload}, {state} for {age}: {verdict}")?;
        }
        self.write_trials(f)?;
        if let Some(at) = again_at {
            writeln!(f, "  next scheduled change in {}", self.until(*at))?;
        }
        Ok(())
    }
}

impl AtTime<'_, ImageExplanation> {
    fn write_trials(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ImageExplanation {
            image,
            canary,
            on_trial,
            ..
        } = self.value;
        if let Some(pinned) = canary.pinned {
            writeln!(
                f,
                "  pinned to build {pinned}; `nodeyard image unpin {image}` removes the pin"
            )?;
        }
        if let Some(OnTrial { build, successes }) = on_trial {
            let trial = canary.trials.get(build);
            let (succeeded, failed) = trial.map_or((0, 0), |trial| (trial.succeeded, trial.failed));
            writeln!(
                f,
                "  build {build} is on trial: {succeeded} of {successes} launches have succeeded, {failed} failed"
            )?;
        }
        for (build, trial) in &canary.trials {
            let Trial {
                succeeded, failed, ..
            } = trial;
            match &trial.ended {
                None if on_trial.is_some_and(|tried| tried.build == *build) => {}
                None => writeln!(
                    f,
                    "  build {build} is not on trial any more: {succeeded} launches had succeeded, {failed} failed"
                )?,
                Some(TrialOutcome::Passed { at }) => {
                    writeln!(f, "  build {build} passed its trial {} ago", self.ago(*at))?;
                }
                Some(TrialOutcome::RolledBack { at, reason, .. }) => {
                    let ago = self.ago(*at);
                    writeln!(
                        f,
                        "  build {build} was rolled back {ago} ago: {reason}\n    the next build replaces it; \
                         `nodeyard image build {image}` requests one, `nodeyard image unpin {image}` allows \
                         this one again"
                    )?;
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for AtTime<'_, BuildVerdict> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            BuildVerdict::NotConfigured => f.write_str(
                "never: the image is not in the configuration, so what is left of it is removed",
            ),
            BuildVerdict::Imported(report) => self.at_same_time(&**report).fmt(f),
            BuildVerdict::Paused {
                by: WhyPaused::Configuration,
            } => f.write_str("paused by `pause` in the configuration"),
            BuildVerdict::Paused {
                by: WhyPaused::Person,
            } => f.write_str("paused; resume with `image-unpause`"),
            BuildVerdict::NoFormats => {
                f.write_str("never: no provider uses the image, and `formats` is empty")
            }
            BuildVerdict::UnderWay {
                build,
                since,
                import,
            } => {
                f.write_str("under way")?;
                if let (Some(build), Some(since)) = (build, since) {
                    write!(f, " as {build} for {}", self.ago(*since))?;
                }
                let Some(import) = import else {
                    return Ok(());
                };
                if let ImportVerdict::UnderWay { zuul_build } = &import.verdict {
                    write!(f, ", fetched from Zuul's {zuul_build}")?;
                }
                self.at_same_time(&**import).write_query_result(f)
            }
            BuildVerdict::Resumes { build } => write!(
                f,
                "{build} was started but is unattended; its state is determined first"
            ),
            BuildVerdict::UpToDate { build, due } => {
                write!(f, "not before {build} is too old, in {}", self.until(*due))
            }
            BuildVerdict::Waits { why, wait } => {
                write!(
                    f,
                    "needed, since {}, but {}",
                    self.at_same_time(why),
                    self.at_same_time(wait)
                )
            }
            BuildVerdict::Begins { why } => write!(f, "begins, since {}", self.at_same_time(why)),
        }
    }
}

impl fmt::Display for AtTime<'_, ImportReport> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ImportReport {
            has_more, verdict, ..
        } = self.value;
        match verdict {
            ImportVerdict::Asks => f.write_str("Zuul is queried first")?,
            ImportVerdict::Nothing if *has_more => f.write_str(
                "none of the newest successful builds of the job can be used, and older ones are not checked",
            )?,
            ImportVerdict::Nothing => {
                f.write_str("Zuul has no successful build of the job that could be used")?;
            }
            ImportVerdict::UnderWay { zuul_build } => {
                write!(f, "Zuul's {zuul_build} is being fetched")?;
            }
            ImportVerdict::UpToDate { build, zuul_build } => {
                write!(
                    f,
                    "Zuul has nothing newer than {zuul_build}, which is {build}"
                )?;
            }
            ImportVerdict::Waits { zuul_build, wait } => {
                write!(f, "Zuul has {zuul_build}, but {}", self.at_same_time(wait))?;
            }
            ImportVerdict::Begins { zuul_build, .. } => {
                write!(f, "the import of Zuul's {zuul_build} begins")?;
            }
        }
        self.write_query_result(f)
    }
}

impl AtTime<'_, ImportReport> {
    /// Writes the result of the last query of Zuul.
    fn write_query_result(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ImportReport {
            asked,
            next,
            error,
            rejected,
            verdict,
            ..
        } = self.value;
        if let Some(asked) = asked {
            write!(f, "; queried {} ago", self.ago(*asked))?;
        }
        // Zuul is not queried while a build is fetched.
        let asks = !matches!(verdict, ImportVerdict::UnderWay { .. });
        if let Some(next) = next.filter(|_| asks) {
            write!(f, ", next query in {}", self.until(next))?;
        }
        if let Some(error) = error {
            write!(f, "\n    the last query failed: {error}")?;
        }
        for build in rejected {
            let RejectedBuild { zuul_build, why } = build;
            write!(
                f,
                "\n    Zuul's {zuul_build} is rejected: {}",
                self.at_same_time(why)
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for AtTime<'_, RejectReason> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            RejectReason::Bad { until, reason } => write!(
                f,
                "it is marked bad for {}, or until a build is requested: {reason}",
                self.until(*until)
            ),
            RejectReason::Incomplete { missing } => {
                let missing: Vec<&str> = missing.iter().map(|format| &**format).collect();
                write!(f, "it has no artifact for {}", missing.join(", "))
            }
            RejectReason::TooOld { age, limit } => write!(
                f,
                "it ended {} ago, and `max-age` is {}",
                HumanDuration(*age),
                HumanDuration(*limit)
            ),
            RejectReason::Invalid { reason } => {
                write!(f, "the entry that Zuul returned is invalid: {reason}")
            }
        }
    }
}

impl fmt::Display for AtTime<'_, WhyBuild> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            WhyBuild::Requested { since } => {
                write!(f, "it was requested {} ago", self.ago(*since))
            }
            WhyBuild::None => f.write_str("no build is ready"),
            WhyBuild::Old { build, age, limit } => write!(
                f,
                "{build} is {} old and the limit is {}",
                HumanDuration(*age),
                HumanDuration(*limit)
            ),
            WhyBuild::Formats { build, missing } => {
                let missing: Vec<&str> = missing.iter().map(|format| &**format).collect();
                write!(f, "{build} does not have {}", missing.join(", "))
            }
        }
    }
}

impl fmt::Display for AtTime<'_, WaitReason> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            WaitReason::BackOff {
                failures,
                until,
                reason,
            } => {
                let times = if *failures == 1 { "time" } else { "times" };
                let next = self.until(*until);
                write!(
                    f,
                    "it failed {failures} {times} in a row and is tried again in {next}: {reason}"
                )
            }
            WaitReason::Worker { function } => {
                write!(f, "no worker answers {function}; start a builder that can")?;
                // Builders withdraw these while their disk is full.
                let needs_space = ["image-build:", "image-import:"];
                if needs_space.iter().any(|kind| function.starts_with(kind)) {
                    f.write_str(", or free disk space if one runs")?;
                }
                Ok(())
            }
            WaitReason::JobServer { reason } => write!(f, "no job server answers: {reason}"),
        }
    }
}

impl fmt::Display for AtTime<'_, UploadVerdict> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            UploadVerdict::Paused => {
                f.write_str("uploads are paused by `pause` of the provider's diskimage")
            }
            UploadVerdict::NoBuild => f.write_str("there is no build to upload"),
            UploadVerdict::Done { build, since } => {
                write!(f, "has the newest build, {build}, for {}", self.ago(*since))
            }
            UploadVerdict::UnderWay { build } => write!(f, "{build} is being uploaded"),
            UploadVerdict::Settles(upload) => write!(
                f,
                "upload {} of {} was started but is unattended; its state is determined first",
                upload.upload, upload.build
            ),
            UploadVerdict::Waits {
                build,
                wait: WaitReason::Worker { function },
            } => write!(
                f,
                "{build} is to be uploaded, but no worker answers {function}; start the builder that has its files, or \
                 if they are gone build the image anew"
            ),
            UploadVerdict::Waits { build, wait } => {
                write!(
                    f,
                    "{build} is to be uploaded, but {}",
                    self.at_same_time(wait)
                )
            }
            UploadVerdict::Begins { build } => write!(f, "the upload of {build} begins"),
        }
    }
}

impl fmt::Display for AtTime<'_, RetentionVerdict> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            RetentionVerdict::Kept { rank, of } => {
                write!(f, "kept as number {rank} of the {of} newest")
            }
            RetentionVerdict::KeptAnyway { why } => f.write_str(match why {
                WhyKept::Pinned => "kept, since the image is pinned to it",
                WhyKept::InUse => "kept, since launches use it or would fall back on it",
                WhyKept::Newest => "kept as the newest, although it was rolled back",
            }),
            RetentionVerdict::KeptWithBuild => f.write_str("kept with its build"),
            RetentionVerdict::Pinned { by } => {
                let providers: std::collections::BTreeSet<&str> =
                    by.iter().map(|upload| upload.provider.as_str()).collect();
                let providers: Vec<&str> = providers.into_iter().collect();
                write!(
                    f,
                    "kept while its uploads to {} are there",
                    providers.join(", ")
                )
            }
            RetentionVerdict::Unreadable { uploads } => write!(
                f,
                "kept because {uploads} records of its uploads cannot be read; the log names them"
            ),
            RetentionVerdict::NotOurs => f.write_str(
                "not touched, since its provider is not in the configuration; `nodepool erase PROVIDER` removes its record",
            ),
            RetentionVerdict::UnderWay => f.write_str("in progress"),
            RetentionVerdict::Resumes => {
                f.write_str("unattended; its state is being determined")
            }
            RetentionVerdict::Lingers { until } => write!(
                f,
                "failed; removed in {}",
                self.until(*until)
            ),
            RetentionVerdict::Waits { why, wait } => {
                write!(f, "to be removed, since {why}, but {}", self.at_same_time(wait))
            }
            RetentionVerdict::UploadsFirst { why } => {
                write!(f, "removed after its uploads, since {why}")
            }
            RetentionVerdict::Removed { why } => write!(f, "removed, since {why}"),
        }
    }
}

impl fmt::Display for RemovalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ImageGone => "the image is not in the configuration",
            Self::NotTaken => "its provider no longer uses the image",
            Self::Surplus => "newer ones have replaced it",
            Self::RolledBack => "it was rolled back, and there is a newer one",
            Self::Failed => "it failed",
            Self::Deleting => "its deletion was requested",
        })
    }
}
