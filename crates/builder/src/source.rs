//! Image sources: the ways to build an image.
//!
//! A [`Source`] creates files. The worker handles everything else: disk space, time limits and what happens to the files.
//! docs/image-sources.md shows how to write a source.
//!
//! * `dib`: runs diskimage-builder in the same way as Nodepool.
//! * `command`: runs any program that follows a small contract.
//!
//! Both are run by `process`, which writes their output to the [`BuildConsole`] and kills all their processes at the end.

mod command;
mod console;
mod dib;
mod leftovers;
pub(crate) mod process;
mod progress;
mod redact;
mod sudo;

use std::fmt;
use std::io;
use std::path::PathBuf;

use async_trait::async_trait;
use nodeyard_config as config;
use nodeyard_image::ImageId;
use nodeyard_model::ImageName;
use tokio_util::sync::CancellationToken;

pub use command::CommandSource;
pub use console::{BuildConsole, LogLimits, LogState, prune_logs};
pub use dib::DibSource;
pub use leftovers::kill_leftovers;
pub use redact::Redactor;

/// Builds images.
#[async_trait]
pub trait Source: fmt::Debug + Send + Sync {
    /// Creates the files of an order, [`BuildOrder::file`] for each of its formats.
    ///
    /// `stop` is cancelled on timeout or when the worker stops. Then, and also when the future is dropped, everything that
    /// was started must end soon. The caller removes files that are left after an error.
    async fn make(
        &self,
        order: &BuildOrder,
        console: &mut BuildConsole,
        stop: &CancellationToken,
    ) -> Result<(), SourceError>;
}

/// Describes the image to build.
#[derive(Debug, Clone)]
pub struct BuildOrder {
    pub image: ImageName,
    pub id: ImageId,
    /// The path of the files without their extension. No existing file name begins with it.
    pub base: PathBuf,
    /// Sorted, never empty.
    pub formats: Vec<Box<str>>,
    /// The search path for elements, from the configuration.
    pub elements_path: Option<Box<str>>,
}

impl BuildOrder {
    /// Returns the path of the file for a format.
    pub fn file(&self, format: &str) -> PathBuf {
        let mut path = self.base.clone().into_os_string();
        path.push(".");
        path.push(format);
        path.into()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("invalid build command: it is empty or has an unclosed quote")]
    NotACommand,
    #[error("failed to start {program}; it must be installed and executable on this worker")]
    Start {
        program: Box<str>,
        #[source]
        source: io::Error,
    },
    #[error("{program} ended with exit code {code}")]
    Exit { program: Box<str>, code: i32 },
    #[error("{program} was ended by signal {signal}")]
    Signal { program: Box<str>, signal: i32 },
    /// The caller cancelled the build.
    #[error("the build was stopped")]
    Stopped,
    /// The caller cancelled the build, but some processes are still running.
    #[error(
        "processes of the build are still running because they belong to another user and `sudo -n kill` is not permitted: {processes}"
    )]
    StillRuns { processes: Box<str> },
    /// An error of a source that does not run a program.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl SourceError {
    /// Returns the exit code; negative for a signal, as in Python.
    pub fn exit_code(&self) -> Option<i32> {
        match self {
            Self::Exit { code, .. } => Some(*code),
            Self::Signal { signal, .. } => Some(-signal),
            _ => None,
        }
    }
}

/// Creates the source that is configured for an image.
pub fn from_config(build: &config::BuildConfig) -> Box<dyn Source> {
    match build.builder {
        config::BuilderKind::Dib => Box::new(DibSource::new(build)),
        config::BuilderKind::Command => Box::new(CommandSource::new(build)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of docs/image-sources.md.
    #[derive(Debug)]
    struct Fetch {
        from: PathBuf,
    }

    #[async_trait]
    impl Source for Fetch {
        async fn make(
            &self,
            order: &BuildOrder,
            console: &mut BuildConsole,
            stop: &CancellationToken,
        ) -> Result<(), SourceError> {
            for (done, format) in order.formats.iter().enumerate() {
                console.write_line(&format!("copying {format}")).await;
                let copy = tokio::fs::copy(self.from.with_extension(&**format), order.file(format));
                tokio::select! {
                    copied = copy => copied.map_err(|error| SourceError::Other(error.into()))?,
                    () = stop.cancelled() => return Err(SourceError::Stopped),
                };
                console.progress(done as u64 + 1, order.formats.len() as u64);
            }
            Ok(())
        }
    }

    #[tokio::test]
    async fn an_example_source_builds_an_image() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("golden.raw"), "image").unwrap();
        let log = BuildConsole::open(path("log"), LogLimits::default(), Redactor::default());
        let mut console = log.await.unwrap();
        let order = BuildOrder {
            image: "a".parse().unwrap(),
            id: "1".parse().unwrap(),
            base: path("a-1.2"),
            formats: vec!["raw".into()],
            elements_path: None,
        };
        let source: Box<dyn Source> = Box::new(Fetch {
            from: path("golden"),
        });
        let stop = CancellationToken::new();
        source.make(&order, &mut console, &stop).await.unwrap();
        assert_eq!(std::fs::read(path("a-1.2.raw")).unwrap(), b"image");
        assert_eq!(console.state().borrow().progress, Some((1, 1)));
    }
}
