//! Metrics of a builder: the work of its worker for Prometheus, and the builds and uploads that its steward has
//! seen for statsd, under Nodepool's names.

mod families;
pub(crate) mod pages;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nodeyard_model::{ImageName, ProviderName, now};

use crate::metrics::histogram::Histogram;
use crate::statsd::Statsd;
use crate::statsd::names::escape;

/// Records the metrics of a builder. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct BuilderMetrics {
    statsd: Option<Statsd>,
    /// The full host name, escaped as a part of metric names.
    host: String,
    counters: Arc<Mutex<WorkerCounters>>,
}

/// Counts of the worker of this process, since its start.
#[derive(Debug, Default)]
struct WorkerCounters {
    builds: BTreeMap<(ImageName, bool), u64>,
    build_times: BTreeMap<ImageName, Histogram>,
    uploads: BTreeMap<(ImageName, ProviderName, bool), u64>,
    upload_times: BTreeMap<ProviderName, Histogram>,
}

/// What the pages of a builder render.
#[derive(Debug, Clone)]
pub struct BuilderPageSources {
    pub metrics: BuilderMetrics,
    pub worker: Arc<dyn WorkerStatusSource>,
    /// None where the process runs no job server.
    pub job_server: Option<Arc<dyn JobServerStatusSource>>,
}

/// Reports the status of the worker of this process.
pub trait WorkerStatusSource: fmt::Debug + Send + Sync {
    /// Returns None before the worker has started, and after it has stopped.
    fn status(&self) -> Option<WorkerStatus>;
}

/// What a worker is doing.
#[derive(Debug, Clone, Default)]
pub struct WorkerStatus {
    /// Connections to job servers.
    pub connections: usize,
    pub building: usize,
    pub uploading: usize,
    /// How many functions are offered, by the part of their names before the colon.
    pub functions: BTreeMap<Box<str>, usize>,
    pub images: BTreeMap<ImageName, ImageUsage>,
}

/// The images that a worker holds of one name.
#[derive(Debug, Clone, Copy, Default)]
pub struct ImageUsage {
    pub images: usize,
    /// Their size on disk.
    pub bytes: u64,
}

/// Reports the status of the job server of this process.
pub trait JobServerStatusSource: fmt::Debug + Send + Sync {
    fn status(&self) -> JobServerStatus;
}

/// What a job server is doing.
#[derive(Debug, Clone, Default)]
pub struct JobServerStatus {
    pub connections: usize,
    pub functions: usize,
    pub waiting: usize,
    pub running: usize,
    /// The size of the payloads of its jobs.
    pub bytes: usize,
    /// Counts of events since the server's start.
    pub events: Vec<(&'static str, u64)>,
}

impl BuilderMetrics {
    pub fn new(statsd: Option<Statsd>, host: &str) -> Self {
        Self {
            statsd,
            host: escape(host).into_owned(),
            counters: Arc::default(),
        }
    }

    /// Records a finished build of the worker of this process.
    pub fn record_worker_build(&self, image: &ImageName, took: Duration, succeeded: bool) {
        let mut counters = self.counters();
        let ended = counters.builds.entry((image.clone(), succeeded));
        *ended.or_default() += 1;
        if succeeded {
            let times = counters.build_times.entry(image.clone());
            times.or_insert_with(Histogram::of_images).observe(took);
        }
    }

    /// Records a finished upload of the worker of this process.
    pub fn record_worker_upload(
        &self,
        image: &ImageName,
        provider: &ProviderName,
        took: Duration,
        succeeded: bool,
    ) {
        let mut counters = self.counters();
        let key = (image.clone(), provider.clone(), succeeded);
        *counters.uploads.entry(key).or_default() += 1;
        if succeeded {
            let times = counters.upload_times.entry(provider.clone());
            times.or_insert_with(Histogram::of_images).observe(took);
        }
    }

    /// Sends the metrics of a finished build. `exit_code` is that of the build program; `sizes` are those of the files
    /// on disk, by format.
    pub fn send_build<'a>(
        &self,
        image: &ImageName,
        took: Duration,
        exit_code: i32,
        sizes: impl Iterator<Item = (&'a str, u64)>,
    ) {
        let Some(statsd) = &self.statsd else { return };
        let image = format!("nodepool.dib_image_build.{}", escape(image.as_str()));
        let ended = now().as_secs() as u64;
        statsd.send(|batch| {
            for (format, size) in sizes {
                batch.gauge(&format!("{image}.{}.size", escape(format)), size);
            }
            batch.timing(&format!("{image}.status.duration"), took);
            let rc = format!("{image}.status.rc");
            if exit_code < 0 {
                // statsd adds a gauge with a sign to the value before.
                batch.gauge(&rc, 0);
            }
            batch.gauge(&rc, exit_code);
            batch.gauge(&format!("{image}.status.last_build"), ended);
        });
    }

    /// Sends the metrics of a finished upload.
    pub fn send_upload(&self, image: &ImageName, provider: &ProviderName, took: Duration) {
        let Some(statsd) = &self.statsd else { return };
        let (image, provider) = (escape(image.as_str()), escape(provider.as_str()));
        let key = format!("nodepool.image_update.{image}.{provider}");
        statsd.send(|batch| {
            batch.timing(&key, took);
            batch.count(&key, 1);
        });
    }

    /// Counts a poll of Zuul for builds of an image.
    pub fn count_poll(&self, image: &ImageName, answered: bool) {
        let outcome = if answered { "ok" } else { "error" };
        self.count_of_zuul_image(image, &format!("poll.{outcome}"), 1);
    }

    /// Counts bytes of an image that were downloaded from a Zuul job.
    pub fn count_downloaded(&self, image: &ImageName, bytes: u64) {
        self.count_of_zuul_image(image, "download.bytes", bytes);
    }

    fn count_of_zuul_image(&self, image: &ImageName, what: &str, count: u64) {
        let Some(statsd) = &self.statsd else { return };
        let key = format!("nodepool.zuul_image.{}.{what}", escape(image.as_str()));
        statsd.send(|batch| batch.count(&key, count));
    }

    /// Sends the build state of an image in Nodepool's numbers: 0 idle, 1 building, 3 paused.
    pub fn send_build_state(&self, image: &ImageName, state: u8) {
        let (host, image) = (&self.host, escape(image.as_str()));
        self.gauge(
            &format!("nodepool.builder.{host}.image.{image}.build.state"),
            state,
        );
    }

    /// Sends the upload state of an image in Nodepool's numbers: 0 idle, 2 uploading, 3 paused.
    pub fn send_upload_state(&self, image: &ImageName, provider: &ProviderName, state: u8) {
        let (host, image, provider) = (
            &self.host,
            escape(image.as_str()),
            escape(provider.as_str()),
        );
        let key = format!("nodepool.builder.{host}.image.{image}.provider.{provider}.upload.state");
        self.gauge(&key, state);
    }

    /// Sends whether a build of the image is requested.
    pub fn send_build_requested(&self, image: &ImageName, requested: bool) {
        let image = escape(image.as_str());
        let key = format!("nodepool.image.{image}.image_build_requests");
        self.gauge(&key, u8::from(requested));
    }

    /// Sends the number of images with a build request.
    pub fn send_build_requests(&self, images: usize) {
        if let Some(statsd) = &self.statsd {
            statsd.send(|batch| batch.gauge("nodepool.image_build_requests", images));
        }
    }

    /// Nothing panics while it holds the lock, so a poisoned lock is usable.
    fn counters(&self) -> MutexGuard<'_, WorkerCounters> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gauge(&self, key: &str, value: u8) {
        if let Some(statsd) = &self.statsd {
            statsd.send(|batch| batch.gauge(key, value));
        }
    }
}
