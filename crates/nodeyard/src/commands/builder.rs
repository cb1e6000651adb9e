//! The builder, wired: a worker, a steward where there is a store, the job servers at which they meet, and pages.

pub(crate) mod job_server;
mod pages;
mod recorder;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use nodeyard_api::builder::BuilderMetrics;
use nodeyard_builder::steward::{self, Steward};
use nodeyard_builder::worker::{self, Worker};
use nodeyard_config::Handle as ConfigHandle;
use nodeyard_gearman::GearmanEndpoint;
use nodeyard_gearman::server::JobServer;
use nodeyard_plan::images::Pace;
use nodeyard_store::Tree;
use tokio_util::sync::CancellationToken;

use crate::commands::knobs;
use crate::commands::launcher::{Drivers, follow, open_statsd};
use crate::host;
use job_server::JobServers;
use recorder::Recorder;

/// How many pieces of work are done at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hands {
    pub(crate) builds: usize,
    pub(crate) uploads: usize,
}

impl Default for Hands {
    fn default() -> Self {
        Self {
            builds: 1,
            uploads: 4,
        }
    }
}

/// Runs a builder until `stop`. Without a store it is a worker and nothing else; a store stays open. `begun` is
/// cancelled when the worker can be asked for something.
pub(crate) async fn run(
    tree: Option<Arc<dyn Tree>>,
    config: ConfigHandle,
    drivers: Arc<Drivers>,
    hands: Hands,
    begun: CancellationToken,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let first = config.config();
    let host = host::full_name().await;
    let JobServers { endpoints, own } = JobServers::of(&first).await?;
    let metrics = BuilderMetrics::new(open_statsd().await?, &host);
    let serving = CancellationToken::new();
    let address = own.as_ref().map(JobServer::local_addr);
    let job_server = own.as_ref().map(JobServer::handle);
    let server = own.map(|server| tokio::spawn(server.run(serving.clone())));
    let config = follow(config);
    let mut options = worker::Options::new(&*host, endpoints.clone());
    options.build_workers = hands.builds;
    options.upload_workers = hands.uploads;
    if let Some(limit) = knobs::seconds("NODEPOOL_TEST_FOLLOW_LIMIT") {
        options.follow_limit = limit;
    }
    let recorder = Arc::new(Recorder::new(metrics.clone()));
    let parts = worker::Parts {
        config: config.clone(),
        drivers,
        events: Arc::clone(&recorder) as _,
    };
    let (worker, mut handle) = Worker::new(options, parts);
    let pages = pages::bind(&first, metrics, handle.clone(), job_server).await?;
    let showing = pages::show(pages, serving.clone());
    let telling = async {
        // From now on images-dir is there, and ours.
        if handle.until_ready().await
            && let Some(address) = address
        {
            job_server::tell(&first, address);
        }
        begun.cancel();
    };
    let working = async {
        let (result, ()) = tokio::join!(worker.run(stop.clone()), telling);
        // A steward that nobody works for would only promise things.
        stop.cancel();
        result.context("the worker has ended")
    };
    let caring = async {
        let Some(tree) = tree else { return Ok(()) };
        let parts = steward::Parts {
            tree,
            config,
            events: recorder,
        };
        let (steward, _) = Steward::new(steward_options(&host, endpoints, hands), parts);
        let result = steward.run(stop.clone()).await;
        stop.cancel();
        result.context("the steward has ended")
    };
    let done = async {
        let (worked, cared) = tokio::join!(working, caring);
        serving.cancel();
        worked.and(cared)
    };
    let (result, ()) = tokio::join!(done, showing);
    if let Some(server) = server {
        // It has nothing left to lose.
        let _ = server.await;
    }
    result
}

fn steward_options(host: &str, servers: Vec<GearmanEndpoint>, hands: Hands) -> steward::Options {
    let mut options = steward::Options {
        hostname: host.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        servers,
        uploads: hands.uploads.max(1),
        cleans: true,
        timing: steward::Timing::default(),
        pace: Pace::default(),
    };
    shorten(&mut options);
    options
}

/// Tests of the daemon shorten the safety nets.
fn shorten(options: &mut steward::Options) {
    if let Some(interval) = knobs::seconds("NODEPOOL_TEST_BUILD_INTERVAL") {
        options.timing.eager_poll = interval;
        options.timing.retry = interval;
        options.pace.first_retry = interval;
        options.pace.longest_retry = interval.saturating_mul(10);
    }
    if let Some(interval) = knobs::seconds("NODEPOOL_TEST_BUILDER_CLEANUP_INTERVAL") {
        options.cleans = interval > Duration::ZERO;
        options.timing.pass = interval.max(Duration::from_millis(100));
        options.pace.linger = interval;
        options.timing.inquiry = interval.max(Duration::from_millis(100));
        options.timing.patience = options.timing.inquiry.saturating_mul(10);
    }
}
