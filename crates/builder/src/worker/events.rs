//! What a worker has done, for metrics.

use std::fmt;
use std::time::Duration;

use nodeyard_model::{ImageName, ProviderName};

/// Is told what happens. All methods are called in the middle of work, so they must be quick.
pub trait WorkerEvents: fmt::Debug + Send + Sync {
    /// A build has ended, whoever asked for it.
    fn built(&self, _image: &ImageName, _took: Duration, _succeeded: bool) {}

    /// An upload has ended, whoever asked for it.
    fn uploaded(
        &self,
        _image: &ImageName,
        _provider: &ProviderName,
        _took: Duration,
        _succeeded: bool,
    ) {
    }
}

/// Nobody wants to know.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoopWorkerEvents;

impl WorkerEvents for NoopWorkerEvents {}
