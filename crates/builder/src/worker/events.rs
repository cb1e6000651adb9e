//! Events of a worker, for metrics.

use std::fmt;
use std::time::Duration;

use nodeyard_model::{ImageName, ProviderName};

/// Receives the events of a worker. Methods must not block.
pub trait WorkerEvents: fmt::Debug + Send + Sync {
    /// A build ended.
    fn built(&self, _image: &ImageName, _took: Duration, _succeeded: bool) {}

    /// An upload ended.
    fn uploaded(
        &self,
        _image: &ImageName,
        _provider: &ProviderName,
        _took: Duration,
        _succeeded: bool,
    ) {
    }
}

/// Discards all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoopWorkerEvents;

impl WorkerEvents for NoopWorkerEvents {}
