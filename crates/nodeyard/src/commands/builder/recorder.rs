//! Records events of the worker and the steward as metrics.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nodeyard_api::builder::BuilderMetrics;
use nodeyard_builder::steward::{self, BuildEnded, WorkState};
use nodeyard_builder::worker;
use nodeyard_model::{ImageName, ProviderName};

/// Records events as metrics.
#[derive(Debug)]
pub(super) struct BuilderMetricsRecorder {
    metrics: BuilderMetrics,
    requested: Mutex<BTreeSet<ImageName>>,
}

impl BuilderMetricsRecorder {
    pub(super) fn new(metrics: BuilderMetrics) -> Self {
        Self {
            metrics,
            requested: Mutex::default(),
        }
    }
}

impl worker::WorkerEvents for BuilderMetricsRecorder {
    fn built(&self, image: &ImageName, took: Duration, succeeded: bool) {
        self.metrics.record_worker_build(image, took, succeeded);
    }

    fn uploaded(
        &self,
        image: &ImageName,
        provider: &ProviderName,
        took: Duration,
        succeeded: bool,
    ) {
        self.metrics
            .record_worker_upload(image, provider, took, succeeded);
    }
}

impl steward::StewardEvents for BuilderMetricsRecorder {
    fn built(&self, build: &BuildEnded<'_>) {
        let sizes = build.formats.unwrap_or_default().iter();
        let sizes = sizes.map(|(format, info)| (*format, info.allocated));
        self.metrics
            .send_build(build.image, build.took, build.exit_code, sizes);
    }

    fn uploaded(&self, image: &ImageName, provider: &ProviderName, took: Duration) {
        self.metrics.send_upload(image, provider, took);
    }

    fn polled(&self, image: &ImageName, answered: bool) {
        self.metrics.count_poll(image, answered);
    }

    fn fetched(&self, image: &ImageName, bytes: u64) {
        self.metrics.count_downloaded(image, bytes);
    }

    fn building(&self, image: &ImageName, state: WorkState) {
        self.metrics.send_build_state(image, state as u8);
    }

    fn uploading(&self, image: &ImageName, provider: &ProviderName, state: WorkState) {
        self.metrics.send_upload_state(image, provider, state as u8);
    }

    fn requested(&self, image: &ImageName, waits: bool) {
        self.metrics.send_build_requested(image, waits);
        let mut requested = self
            .requested
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if waits {
            requested.insert(image.clone());
        } else {
            requested.remove(image);
        }
        self.metrics.send_build_requests(requested.len());
    }
}
