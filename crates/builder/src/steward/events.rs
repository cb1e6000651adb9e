//! Events of a steward, for metrics.

use std::fmt;
use std::time::Duration;

use nodeyard_model::{ImageName, ProviderName};

use crate::jobs::FormatInfo;

/// Receives the events of a steward. Methods must not block.
pub trait StewardEvents: fmt::Debug + Send + Sync {
    /// A build of this steward ended.
    fn built(&self, _build: &BuildEnded<'_>) {}

    /// Zuul was polled; `answered` is whether that succeeded.
    fn polled(&self, _image: &ImageName, _answered: bool) {}

    /// An image was downloaded; `bytes` is the size.
    fn fetched(&self, _image: &ImageName, _bytes: u64) {}

    /// An upload succeeded after `took`.
    fn uploaded(&self, _image: &ImageName, _provider: &ProviderName, _took: Duration) {}

    /// The build state of an image changed.
    fn building(&self, _image: &ImageName, _state: WorkState) {}

    /// The upload state of an image at a provider changed.
    fn uploading(&self, _image: &ImageName, _provider: &ProviderName, _state: WorkState) {}

    /// The image got a pending build request, or has none any more.
    fn requested(&self, _image: &ImageName, _waits: bool) {}
}

#[derive(Debug, Clone, Copy)]
pub struct BuildEnded<'a> {
    pub image: &'a ImageName,
    pub took: Duration,
    /// The files, or `None` if the build failed.
    pub formats: Option<&'a [(&'a str, &'a FormatInfo)]>,
    /// The exit code of the build program; 1 for other failures.
    pub exit_code: i32,
}

/// The state of work, with the numbers of Nodepool's metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkState {
    Idle = 0,
    Building = 1,
    Uploading = 2,
    Paused = 3,
}

/// Discards all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoopStewardEvents;

impl StewardEvents for NoopStewardEvents {}
