//! The explanation for people.
//!
//! Verdicts read after "build: ", "provider p: " and the like: they start in lower case and end without a full
//! stop. Times are told as seen from a moment that is passed in.

use std::fmt;

use nodeyard_model::Timestamp;

use super::market::{PassedOver, Refusal};
use super::verdict::{
    BuildVerdict, Explanation, Fate, ImportReport, ImportVerdict, OnTrial, RemovalReason,
    UploadVerdict, Wait, WhyBuild, WhyKept, WhyPaused,
};
use crate::canary::{Ended, Trial};
use crate::span::Span;

impl Explanation {
    /// The explanation as text, told at this moment.
    pub fn told_at(&self, now: Timestamp) -> impl fmt::Display {
        Told { what: self, now }
    }
}

/// Something, as it is told at a moment.
struct Told<'e, T> {
    what: &'e T,
    now: Timestamp,
}

impl<T> Told<'_, T> {
    fn tell<'t, U>(&self, what: &'t U) -> Told<'t, U> {
        let now = self.now;
        Told { what, now }
    }

    fn ago(&self, time: Timestamp) -> Span {
        Span(self.now.since(time))
    }

    fn until(&self, time: Timestamp) -> Span {
        Span(time.since(self.now))
    }
}

impl fmt::Display for Told<'_, Explanation> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explanation {
            image,
            build,
            builds,
            providers,
            uploads,
            canary: _,
            on_trial: _,
            again_at,
        } = self.what;
        writeln!(f, "image {image}")?;
        writeln!(f, "  next build: {}", self.tell(build))?;
        for report in providers {
            let verdict = self.tell(&report.verdict);
            writeln!(f, "  provider {}: {verdict}", report.provider)?;
            if let Some(launches) = &report.launches {
                writeln!(f, "    launches there use {launches}")?;
            }
        }
        for report in builds {
            let age = self.ago(report.since);
            let fate = self.tell(&report.fate);
            let (build, state) = (report.build, report.state);
            writeln!(f, "  build {build}, {state} for {age}: {fate}")?;
        }
        for report in uploads {
            let age = self.ago(report.since);
            let fate = self.tell(&report.fate);
            let (upload, state) = (&report.upload, report.state);
            writeln!(f, "  upload {upload}, {state} for {age}: {fate}")?;
        }
        self.tell_trials(f)?;
        if let Some(at) = again_at {
            writeln!(f, "  time alone changes something in {}", self.until(*at))?;
        }
        Ok(())
    }
}

impl Told<'_, Explanation> {
    fn tell_trials(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explanation {
            image,
            canary,
            on_trial,
            ..
        } = self.what;
        if let Some(pinned) = canary.pinned {
            writeln!(
                f,
                "  pinned to build {pinned}; `nodeyard image unpin {image}` lets it go"
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
                Some(Ended::Passed { at }) => {
                    writeln!(f, "  build {build} has proved itself {} ago", self.ago(*at))?;
                }
                Some(Ended::TakenBack { at, reason, .. }) => {
                    let ago = self.ago(*at);
                    writeln!(
                        f,
                        "  build {build} was taken back {ago} ago: {reason}\n    the next build takes its place; \
                         `nodeyard image build {image}` asks for one, `nodeyard image unpin {image}` lets this one \
                         be used again"
                    )?;
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for Told<'_, BuildVerdict> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            BuildVerdict::NotConfigured => f.write_str(
                "never: the image is not in the configuration, so what is left of it is removed",
            ),
            BuildVerdict::Imported(report) => self.tell(&**report).fmt(f),
            BuildVerdict::Paused {
                by: WhyPaused::Configuration,
            } => f.write_str("paused by `pause` in the configuration"),
            BuildVerdict::Paused {
                by: WhyPaused::Person,
            } => f.write_str("paused; `image-unpause` lets it go on"),
            BuildVerdict::NoFormats => {
                f.write_str("never: no provider takes the image, and `formats` names none")
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
                self.tell(&**import).tell_answer(f)
            }
            BuildVerdict::Resumes { build } => write!(
                f,
                "{build} was begun and nobody looks after it; finding out what became of it comes first"
            ),
            BuildVerdict::UpToDate { build, due } => {
                write!(f, "not before {build} is too old, in {}", self.until(*due))
            }
            BuildVerdict::Waits { why, wait } => {
                write!(
                    f,
                    "needed, since {}, but {}",
                    self.tell(why),
                    self.tell(wait)
                )
            }
            BuildVerdict::Begins { why } => write!(f, "begins, since {}", self.tell(why)),
        }
    }
}

impl fmt::Display for Told<'_, ImportReport> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ImportReport {
            has_more, verdict, ..
        } = self.what;
        match verdict {
            ImportVerdict::Asks => f.write_str("Zuul is asked first")?,
            ImportVerdict::Nothing if *has_more => f.write_str(
                "none of the newest successful builds of the job can be used, and older ones are not looked at",
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
                write!(f, "Zuul has {zuul_build}, but {}", self.tell(wait))?;
            }
            ImportVerdict::Begins { zuul_build, .. } => {
                write!(f, "the import of Zuul's {zuul_build} begins")?;
            }
        }
        self.tell_answer(f)
    }
}

impl Told<'_, ImportReport> {
    /// What Zuul said when it was last asked.
    fn tell_answer(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ImportReport {
            asked,
            next,
            error,
            passed_over,
            verdict,
            ..
        } = self.what;
        if let Some(asked) = asked {
            write!(f, "; asked {} ago", self.ago(*asked))?;
        }
        // While something is fetched nobody asks.
        let asks = !matches!(verdict, ImportVerdict::UnderWay { .. });
        if let Some(next) = next.filter(|_| asks) {
            write!(f, ", again in {}", self.until(next))?;
        }
        if let Some(error) = error {
            write!(f, "\n    Zuul did not answer the last time: {error}")?;
        }
        for build in passed_over {
            let PassedOver { zuul_build, why } = build;
            write!(
                f,
                "\n    Zuul's {zuul_build} is passed over: {}",
                self.tell(why)
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Told<'_, Refusal> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            Refusal::Bad { until, reason } => write!(
                f,
                "it is of no use and is left alone for {}, or until somebody asks for a build: {reason}",
                self.until(*until)
            ),
            Refusal::Incomplete { missing } => {
                let missing: Vec<&str> = missing.iter().map(|format| &**format).collect();
                write!(f, "it has no artifact for {}", missing.join(", "))
            }
            Refusal::TooOld { age, limit } => write!(
                f,
                "it ended {} ago, and `max-age` is {}",
                Span(*age),
                Span(*limit)
            ),
            Refusal::Flawed { reason } => {
                write!(f, "what Zuul says of it makes no sense: {reason}")
            }
        }
    }
}

impl fmt::Display for Told<'_, WhyBuild> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            WhyBuild::Requested { since } => {
                write!(f, "somebody asked for it {} ago", self.ago(*since))
            }
            WhyBuild::None => f.write_str("no build is ready"),
            WhyBuild::Old { build, age, limit } => write!(
                f,
                "{build} is {} old and the limit is {}",
                Span(*age),
                Span(*limit)
            ),
            WhyBuild::Formats { build, missing } => {
                let missing: Vec<&str> = missing.iter().map(|format| &**format).collect();
                write!(f, "{build} does not have {}", missing.join(", "))
            }
        }
    }
}

impl fmt::Display for Told<'_, Wait> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            Wait::BackOff {
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
            Wait::Worker { function } => {
                write!(f, "no worker answers {function}; start a builder that can")?;
                // Builders withdraw these while their disk is full.
                let needs_space = ["image-build:", "image-import:"];
                if needs_space.iter().any(|kind| function.starts_with(kind)) {
                    f.write_str(", or free disk space if one runs")?;
                }
                Ok(())
            }
            Wait::JobServer { reason } => write!(f, "no job server answers: {reason}"),
        }
    }
}

impl fmt::Display for Told<'_, UploadVerdict> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
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
                "upload {} of {} was begun and nobody looks after it; finding out what became of it comes first",
                upload.upload, upload.build
            ),
            UploadVerdict::Waits {
                build,
                wait: Wait::Worker { function },
            } => write!(
                f,
                "{build} is to be uploaded, but no worker answers {function}; start the builder that has its files, or \
                 if they are gone build the image anew"
            ),
            UploadVerdict::Waits { build, wait } => {
                write!(f, "{build} is to be uploaded, but {}", self.tell(wait))
            }
            UploadVerdict::Begins { build } => write!(f, "the upload of {build} begins"),
        }
    }
}

impl fmt::Display for Told<'_, Fate> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            Fate::Kept { rank, of } => {
                write!(f, "kept as number {rank} of the {of} newest")
            }
            Fate::KeptAnyway { why } => f.write_str(match why {
                WhyKept::Pinned => "kept, since somebody has pinned the image to it",
                WhyKept::InUse => "kept, since launches use it or would fall back on it",
                WhyKept::Newest => "kept as the newest, although it was taken back",
            }),
            Fate::KeptWithBuild => f.write_str("kept with its build"),
            Fate::Pinned { by } => {
                let providers: std::collections::BTreeSet<&str> =
                    by.iter().map(|upload| upload.provider.as_str()).collect();
                let providers: Vec<&str> = providers.into_iter().collect();
                write!(
                    f,
                    "kept while its uploads to {} are there",
                    providers.join(", ")
                )
            }
            Fate::Unreadable { uploads } => write!(
                f,
                "kept because {uploads} records of its uploads cannot be read; the log names them"
            ),
            Fate::NotOurs => f.write_str(
                "left alone, since its provider is not in the configuration; `nodepool erase PROVIDER` forgets it",
            ),
            Fate::UnderWay => f.write_str("somebody works on it"),
            Fate::Resumes => {
                f.write_str("nobody looks after it; finding out what became of it")
            }
            Fate::Lingers { until } => write!(
                f,
                "failed; removed in {}",
                self.until(*until)
            ),
            Fate::Waits { why, wait } => {
                write!(f, "to be removed, since {why}, but {}", self.tell(wait))
            }
            Fate::UploadsFirst { why } => {
                write!(f, "removed after its uploads, since {why}")
            }
            Fate::Removed { why } => write!(f, "removed, since {why}"),
        }
    }
}

impl fmt::Display for RemovalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ImageGone => "the image is not in the configuration",
            Self::NotTaken => "its provider does not take the image any more",
            Self::Surplus => "newer ones have taken its place",
            Self::TakenBack => "it was taken back, and there is a newer one",
            Self::Failed => "it failed",
            Self::Deleting => "its deletion was asked for",
        })
    }
}
