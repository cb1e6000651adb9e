//! Runs the builder: a worker, a steward if there is a store, the job servers that connect them, and web pages.

pub(crate) mod job_server;
mod pages;
mod recorder;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use nodeyard_api::builder::BuilderMetrics;
use nodeyard_builder::steward::{self, Steward};
use nodeyard_builder::worker::{self, Worker};
use nodeyard_config::ConfigHandle;
use nodeyard_driver_common::DriverKinds;
use nodeyard_gearman::GearmanEndpoint;
use nodeyard_plan::images::Pace;
use nodeyard_store::Tree;
use tokio_util::sync::CancellationToken;

use crate::commands::launcher::{follow, open_statsd};
use crate::commands::test_intervals;
use crate::host;
use job_server::JobServers;
use recorder::BuilderMetricsRecorder;

/// The number of concurrent builds and uploads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkerCounts {
    pub(crate) builds: usize,
    pub(crate) uploads: usize,
}

impl Default for WorkerCounts {
    fn default() -> Self {
        Self {
            builds: 1,
            uploads: 4,
        }
    }
}

/// Runs a builder until `stop`; the store stays open. Without a store only a worker runs. `started` is cancelled when the
/// worker accepts jobs.
pub(crate) async fn run(
    tree: Option<Arc<dyn Tree>>,
    config: ConfigHandle,
    drivers: DriverKinds,
    workers: WorkerCounts,
    started: CancellationToken,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let first = config.config();
    let host = host::full_name().await;
    let JobServers { endpoints, own } = JobServers::of(&first).await?;
    let metrics = BuilderMetrics::new(open_statsd().await?, &host);
    let serving = CancellationToken::new();
    let job_server = own.as_ref().map(|own| own.server.handle());
    let server = own.map(|server| tokio::spawn(server.run(serving.clone())));
    let config = follow(config);
    let mut options = worker::Options::new(&*host, endpoints.clone());
    options.build_workers = workers.builds;
    options.upload_workers = workers.uploads;
    if let Some(limit) = test_intervals::seconds("NODEPOOL_TEST_FOLLOW_LIMIT") {
        options.follow_limit = limit;
    }
    if let Some(interval) = test_intervals::seconds("NODEPOOL_TEST_BUILD_INTERVAL") {
        options.unable_pause = interval;
    }
    let recorder = Arc::new(BuilderMetricsRecorder::new(metrics.clone()));
    let parts = worker::WorkerDependencies {
        config: config.clone(),
        drivers,
        events: Arc::clone(&recorder) as _,
    };
    let (worker, mut handle) = Worker::new(options, parts);
    let pages = pages::bind(&first, metrics, handle.clone(), job_server).await?;
    let serving_pages = pages::serve(pages, serving.clone());
    let announcing = async {
        handle.until_ready().await;
        started.cancel();
    };
    let working = async {
        let (result, ()) = tokio::join!(worker.run(stop.clone()), announcing);
        // Stops the steward, which cannot build without this worker.
        stop.cancel();
        result.context("the worker failed")
    };
    let stewarding = async {
        let Some(tree) = tree else { return Ok(()) };
        let parts = steward::StewardDependencies {
            tree,
            config,
            events: recorder,
        };
        let (steward, _) = Steward::new(steward_options(&host, endpoints, workers), parts);
        let result = steward.run(stop.clone()).await;
        stop.cancel();
        result.context("the steward failed")
    };
    let done = async {
        let (worked, stewarded) = tokio::join!(working, stewarding);
        serving.cancel();
        worked.and(stewarded)
    };
    let (result, ()) = tokio::join!(done, serving_pages);
    if let Some(server) = server {
        // A panic of the server does not matter any more.
        let _ = server.await;
    }
    result
}

fn steward_options(
    host: &str,
    servers: Vec<GearmanEndpoint>,
    workers: WorkerCounts,
) -> steward::Options {
    let mut options = steward::Options {
        hostname: host.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        servers,
        uploads: workers.uploads.max(1),
        cleans: true,
        timing: steward::StewardTiming::default(),
        pace: Pace::default(),
    };
    shorten_intervals(&mut options);
    options
}

/// Shortens intervals in tests of the daemon.
fn shorten_intervals(options: &mut steward::Options) {
    if let Some(interval) = test_intervals::seconds("NODEPOOL_TEST_BUILD_INTERVAL") {
        options.timing.eager_poll = interval;
        options.timing.retry_pause = interval;
        options.pace.first_retry = interval;
        options.pace.longest_retry = interval.saturating_mul(10);
    }
    if let Some(interval) = test_intervals::seconds("NODEPOOL_TEST_BUILDER_CLEANUP_INTERVAL") {
        options.cleans = interval > Duration::ZERO;
        options.timing.full_scan = interval.max(Duration::from_millis(100));
        options.pace.linger = interval;
        options.timing.recovery_poll = interval.max(Duration::from_millis(100));
        options.timing.lost_after = options.timing.recovery_poll.saturating_mul(10);
    }
}
