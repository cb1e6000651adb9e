//! Runs the launcher with its drivers, web pages and APIs.

mod drivers;
mod http_api;
mod interfaces;
mod status_log;

use std::sync::Arc;

use anyhow::Context as _;
use nodeyard_config::{Config, ConfigHandle};
use nodeyard_driver_common::DriverKinds;
use nodeyard_driver_fake::{RemoteScan, URL_VARIABLE};
use nodeyard_http_api::LocalToken;
use nodeyard_launcher::{Launcher, LauncherParts, LauncherTiming, Options};
use nodeyard_model::Clock;
use nodeyard_nodescan::{NetworkScanner, Scanner};
use nodeyard_store::Tree;
use nodeyard_store::registry::{Registry, Views};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(crate) use interfaces::WebPages;

pub(crate) use interfaces::statsd as open_statsd;
use interfaces::{Interfaces, LauncherMetricsRecorder};

use crate::commands::test_intervals;
use crate::host;

/// What the launcher serves.
#[derive(Debug)]
pub(crate) struct LauncherServices {
    pub(crate) pages: WebPages,
    /// The local token, for commands on this host.
    pub(crate) local_token: Option<LocalToken>,
}

/// Runs a launcher on a store until `stop`; the store stays open. `started` is cancelled when the launcher's pages are
/// served.
pub(crate) async fn run(
    tree: Arc<dyn Tree>,
    config: ConfigHandle,
    tools: LauncherTools,
    services: LauncherServices,
    started: CancellationToken,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let metrics = interfaces::metrics().await?;
    let options = options().await;
    let hostname = options.hostname.clone();
    let first = config.config();
    let registry = Registry::new(Arc::clone(&tree));
    let records = Views::open(&registry)?;
    let LauncherTools { drivers, scanner } = tools;
    let config = follow(config);
    let parts = LauncherParts {
        tree,
        views: records.clone(),
        config: config.clone(),
        drivers,
        scanner,
        events: Arc::new(LauncherMetricsRecorder(metrics.clone())),
        clock: Clock::system(),
    };
    let (launcher, handle) = Launcher::new(options, parts);
    let working = async {
        let result = Box::pin(launcher.run(stop.clone())).await;
        // Stops the pages, which need the launcher.
        stop.cancel();
        result
    };
    let shown = async {
        let interfaces = Interfaces {
            first: &first,
            config,
            services,
            registry,
            records,
            metrics,
            launcher: handle.clone(),
            hostname: &hostname,
        };
        let result = interfaces::run(interfaces, started, stop.clone()).await;
        if result.is_err() {
            stop.cancel();
        }
        result
    };
    let work = async { tokio::join!(working, shown) };
    let (result, shown) = tokio::select! {
        results = work => results,
        Err(error) = status_log::run(handle.clone()) => return Err(error),
    };
    shown?;
    result.context("the launcher failed")
}

async fn options() -> Options {
    Options {
        hostname: host::name().into(),
        fqdn: host::full_name().await.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        timing: timing(),
        policy: nodeyard_plan::Policy::default(),
    }
}

/// Creates drivers, and scans the machines that they launch.
#[derive(Clone)]
pub(crate) struct LauncherTools {
    pub(crate) drivers: DriverKinds,
    scanner: Arc<dyn Scanner>,
}

impl LauncherTools {
    /// Creates the tools. `config` is for drivers that need more than their own section.
    pub(crate) fn new(config: watch::Receiver<Arc<Config>>) -> anyhow::Result<Self> {
        let cloud = std::env::var(URL_VARIABLE).ok();
        let scanner: Arc<dyn Scanner> = match &cloud {
            Some(url) => Arc::new(RemoteScan::new(url)?),
            None => Arc::new(NetworkScanner::default()),
        };
        Ok(Self {
            drivers: drivers::kinds(cloud, &scanner, config),
            scanner,
        })
    }
}

/// Shortens intervals in tests of the daemon.
pub(crate) fn timing() -> LauncherTiming {
    let mut timing = LauncherTiming::default();
    for (variable, field) in [
        ("NODEPOOL_TEST_WATERMARK_SLEEP", &mut timing.pass),
        ("NODEPOOL_TEST_CLEANUP_INTERVAL", &mut timing.cleanup),
        ("NODEPOOL_TEST_DELETE_INTERVAL", &mut timing.delete_retry),
        ("NODEPOOL_TEST_LOCK_CLEANUP", &mut timing.lock_age),
        ("NODEPOOL_TEST_IMAGE_CHECK_TIMEOUT", &mut timing.cloud_check),
    ] {
        if let Some(time) = test_intervals::seconds(variable) {
            *field = time;
        }
    }
    timing
}

/// Returns the current configuration and its changes.
pub(crate) fn follow(mut handle: ConfigHandle) -> watch::Receiver<Arc<Config>> {
    let (sender, receiver) = watch::channel(handle.config());
    tokio::spawn(async move {
        while let Some(config) = handle.changed().await {
            if sender.send(config).is_err() {
                return;
            }
        }
    });
    receiver
}
