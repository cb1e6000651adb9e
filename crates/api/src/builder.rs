//! What a builder counts: for Prometheus what its worker has done, and for statsd, by Nodepool's names, what its
//! steward has seen done.

mod families;
pub(crate) mod pages;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nodeyard_model::{ImageName, ProviderName, now};

use crate::metrics::histogram::Histogram;
use crate::statsd::Statsd;
use crate::statsd::names::raw as name;

/// Cloning is cheap.
#[derive(Debug, Clone)]
pub struct BuilderMetrics {
    statsd: Option<Statsd>,
    /// The full host name, as a part of names.
    host: String,
    recorded: Arc<Mutex<Recorded>>,
}

/// By the worker of this process, since its start.
#[derive(Debug, Default)]
struct Recorded {
    builds: BTreeMap<(ImageName, bool), u64>,
    build_times: BTreeMap<ImageName, Histogram>,
    uploads: BTreeMap<(ImageName, ProviderName, bool), u64>,
    upload_times: BTreeMap<ProviderName, Histogram>,
}

/// What the pages of a builder are made from.
#[derive(Debug, Clone)]
pub struct Sources {
    pub metrics: BuilderMetrics,
    pub worker: Arc<dyn LookAtWorker>,
    /// None where the process runs no job server.
    pub job_server: Option<Arc<dyn LookAtJobServer>>,
}

/// Sees what a worker is doing.
pub trait LookAtWorker: fmt::Debug + Send + Sync {
    /// None before it has begun, and after it has ended.
    fn look(&self) -> Option<WorkerNow>;
}

/// What a worker is doing.
#[derive(Debug, Clone, Default)]
pub struct WorkerNow {
    /// To job servers.
    pub connections: usize,
    pub building: usize,
    pub uploading: usize,
    /// How many functions are offered, by the part of their names before the colon.
    pub functions: BTreeMap<Box<str>, usize>,
    pub images: BTreeMap<ImageName, ImagesHeld>,
}

/// How much a worker holds of an image.
#[derive(Debug, Clone, Copy, Default)]
pub struct ImagesHeld {
    pub images: usize,
    /// On disk.
    pub bytes: u64,
}

/// Sees what a job server is doing.
pub trait LookAtJobServer: fmt::Debug + Send + Sync {
    fn look(&self) -> JobServerNow;
}

/// What a job server is doing.
#[derive(Debug, Clone, Default)]
pub struct JobServerNow {
    pub connections: usize,
    pub functions: usize,
    pub waiting: usize,
    pub running: usize,
    /// Of the payloads of jobs.
    pub bytes: usize,
    /// How often what has happened since its start.
    pub events: Vec<(&'static str, u64)>,
}

impl BuilderMetrics {
    pub fn new(statsd: Option<Statsd>, host: &str) -> Self {
        Self {
            statsd,
            host: name(host).into_owned(),
            recorded: Arc::default(),
        }
    }

    /// The worker of this process has ended a build.
    pub fn worker_built(&self, image: &ImageName, took: Duration, succeeded: bool) {
        let mut recorded = self.recorded();
        let ended = recorded.builds.entry((image.clone(), succeeded));
        *ended.or_default() += 1;
        if succeeded {
            let times = recorded.build_times.entry(image.clone());
            times.or_insert_with(Histogram::of_images).observe(took);
        }
    }

    /// The worker of this process has ended an upload.
    pub fn worker_uploaded(
        &self,
        image: &ImageName,
        provider: &ProviderName,
        took: Duration,
        succeeded: bool,
    ) {
        let mut recorded = self.recorded();
        let key = (image.clone(), provider.clone(), succeeded);
        *recorded.uploads.entry(key).or_default() += 1;
        if succeeded {
            let times = recorded.upload_times.entry(provider.clone());
            times.or_insert_with(Histogram::of_images).observe(took);
        }
    }

    /// A build has ended that the steward waited for, its program with this exit code; `sizes` are those of its files on disk, by format.
    pub fn built<'a>(
        &self,
        image: &ImageName,
        took: Duration,
        exit_code: i32,
        sizes: impl Iterator<Item = (&'a str, u64)>,
    ) {
        let Some(statsd) = &self.statsd else { return };
        let image = format!("nodepool.dib_image_build.{}", name(image.as_str()));
        let ended = now().as_secs() as u64;
        statsd.send(|batch| {
            for (format, size) in sizes {
                batch.gauge(&format!("{image}.{}.size", name(format)), size);
            }
            batch.timing(&format!("{image}.status.duration"), took);
            let rc = format!("{image}.status.rc");
            if exit_code < 0 {
                // With a sign it would change the value from before.
                batch.gauge(&rc, 0);
            }
            batch.gauge(&rc, exit_code);
            batch.gauge(&format!("{image}.status.last_build"), ended);
        });
    }

    pub fn uploaded(&self, image: &ImageName, provider: &ProviderName, took: Duration) {
        let Some(statsd) = &self.statsd else { return };
        let (image, provider) = (name(image.as_str()), name(provider.as_str()));
        let key = format!("nodepool.image_update.{image}.{provider}");
        statsd.send(|batch| {
            batch.timing(&key, took);
            batch.count(&key, 1);
        });
    }

    /// Zuul was asked for builds of an image.
    pub fn polled(&self, image: &ImageName, answered: bool) {
        let outcome = if answered { "ok" } else { "error" };
        self.count_of_zuul_image(image, &format!("poll.{outcome}"), 1);
    }

    /// So many bytes of an image came from a job of Zuul.
    pub fn fetched(&self, image: &ImageName, bytes: u64) {
        self.count_of_zuul_image(image, "download.bytes", bytes);
    }

    fn count_of_zuul_image(&self, image: &ImageName, what: &str, count: u64) {
        let Some(statsd) = &self.statsd else { return };
        let key = format!("nodepool.zuul_image.{}.{what}", name(image.as_str()));
        statsd.send(|batch| batch.count(&key, count));
    }

    /// `state` in the numbers of Nodepool: 0 idle, 1 building, 3 paused.
    pub fn building(&self, image: &ImageName, state: u8) {
        let (host, image) = (&self.host, name(image.as_str()));
        self.gauge(
            &format!("nodepool.builder.{host}.image.{image}.build.state"),
            state,
        );
    }

    /// `state` in the numbers of Nodepool: 0 idle, 2 uploading, 3 paused.
    pub fn uploading(&self, image: &ImageName, provider: &ProviderName, state: u8) {
        let (host, image, provider) = (&self.host, name(image.as_str()), name(provider.as_str()));
        let key = format!("nodepool.builder.{host}.image.{image}.provider.{provider}.upload.state");
        self.gauge(&key, state);
    }

    /// Whether somebody waits for a build of the image.
    pub fn requested(&self, image: &ImageName, waits: bool) {
        let image = name(image.as_str());
        let key = format!("nodepool.image.{image}.image_build_requests");
        self.gauge(&key, u8::from(waits));
    }

    /// How many images somebody waits for.
    pub fn all_requested(&self, images: usize) {
        if let Some(statsd) = &self.statsd {
            statsd.send(|batch| batch.gauge("nodepool.image_build_requests", images));
        }
    }

    /// Nothing panics while it holds the lock, so poison is ignored.
    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gauge(&self, key: &str, value: u8) {
        if let Some(statsd) = &self.statsd {
            statsd.send(|batch| batch.gauge(key, value));
        }
    }
}
