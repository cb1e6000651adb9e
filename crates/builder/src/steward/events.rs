//! What happened, for metrics.

use std::fmt;
use std::time::Duration;

use nodeyard_model::{ImageName, ProviderName};

use crate::jobs::FormatInfo;

/// Is told what happens. All methods are called in the middle of work, so they must be quick.
pub trait StewardEvents: fmt::Debug + Send + Sync {
    /// A build ended that this steward has waited for.
    fn built(&self, _build: &BuildEnded<'_>) {}

    /// Zuul was asked what it has, and has answered or not.
    fn polled(&self, _image: &ImageName, _answered: bool) {}

    /// So many bytes were fetched for an image.
    fn fetched(&self, _image: &ImageName, _bytes: u64) {}

    /// An upload is ready, so long after it was begun.
    fn uploaded(&self, _image: &ImageName, _provider: &ProviderName, _took: Duration) {}

    /// An image is built, or not any more, or paused. Told when it changes.
    fn building(&self, _image: &ImageName, _state: WorkState) {}

    /// An image is uploaded to a provider, or not any more, or paused. Told when it changes.
    fn uploading(&self, _image: &ImageName, _provider: &ProviderName, _state: WorkState) {}

    /// Somebody waits for a build of the image, or not any more. Told when it changes.
    fn requested(&self, _image: &ImageName, _waits: bool) {}
}

#[derive(Debug, Clone, Copy)]
pub struct BuildEnded<'a> {
    pub image: &'a ImageName,
    pub took: Duration,
    /// None if it failed.
    pub formats: Option<&'a [(&'a str, &'a FormatInfo)]>,
    /// Of its program; 1 if it failed in another way.
    pub exit_code: i32,
}

/// What is being done, in the numbers of Nodepool's metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkState {
    Idle = 0,
    Building = 1,
    Uploading = 2,
    Paused = 3,
}

/// Nobody wants to know.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoopStewardEvents;

impl StewardEvents for NoopStewardEvents {}
