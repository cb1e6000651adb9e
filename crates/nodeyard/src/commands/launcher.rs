//! The launcher, wired: which drivers there are, where it runs, and how long it waits.

mod drivers;
mod outlook;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use nodeyard_config::{Config, Handle as ConfigHandle};
use nodeyard_driver_fake::{RemoteScan, URL_VARIABLE};
use nodeyard_launcher::{Clock, Launcher, Options, Parts, Timing};
use nodeyard_nodescan::{NetworkScanner, Scanner};
use nodeyard_store::Tree;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub(crate) use drivers::simulate;
pub(crate) use outlook::Pages;

use drivers::Drivers;
use outlook::Recorder;

/// Runs a launcher on a store until `stop`. The store stays open.
pub(crate) async fn run(
    tree: Arc<dyn Tree>,
    config: ConfigHandle,
    pages: Pages,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let metrics = outlook::metrics().await?;
    let options = options();
    let hostname = options.hostname.clone();
    let first = config.config();
    let cloud = std::env::var(URL_VARIABLE).ok();
    let scanner: Arc<dyn Scanner> = match &cloud {
        Some(url) => Arc::new(RemoteScan::new(url)?),
        None => Arc::new(NetworkScanner::default()),
    };
    let config = follow(config);
    let parts = Parts {
        tree: Arc::clone(&tree),
        drivers: Arc::new(Drivers::new(cloud, Arc::clone(&scanner), config.clone())),
        config,
        scanner,
        events: Arc::new(Recorder(metrics.clone())),
        clock: Clock::system(),
    };
    let (launcher, handle) = Launcher::new(options, parts);
    let working = async {
        let result = launcher.run(stop.clone()).await;
        // Without the launcher there is nothing to look at.
        stop.cancel();
        result
    };
    let shown = async {
        let result = outlook::run(
            &first,
            pages,
            tree,
            metrics,
            handle,
            &hostname,
            stop.clone(),
        )
        .await;
        if result.is_err() {
            stop.cancel();
        }
        result
    };
    let (result, shown) = tokio::join!(working, shown);
    shown?;
    result.context("the launcher has ended")
}

fn options() -> Options {
    let name = rustix::system::uname();
    let fqdn: Box<str> = name.nodename().to_string_lossy().into();
    let hostname = fqdn.split('.').next().unwrap_or_default().into();
    Options {
        hostname,
        fqdn,
        version: env!("CARGO_PKG_VERSION").into(),
        timing: timing(),
        policy: nodeyard_plan::Policy::default(),
    }
}

/// Tests of the daemon shorten the safety nets.
fn timing() -> Timing {
    let mut timing = Timing::default();
    for (variable, field) in [
        ("NODEPOOL_TEST_WATERMARK_SLEEP", &mut timing.pass),
        ("NODEPOOL_TEST_CLEANUP_INTERVAL", &mut timing.cleanup),
        ("NODEPOOL_TEST_DELETE_INTERVAL", &mut timing.delete_retry),
        ("NODEPOOL_TEST_LOCK_CLEANUP", &mut timing.lock_age),
        ("NODEPOOL_TEST_IMAGE_CHECK_TIMEOUT", &mut timing.cloud_check),
    ] {
        let Ok(text) = std::env::var(variable) else {
            continue;
        };
        let seconds = text.parse().ok();
        match seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
            Some(time) => *field = time,
            None => warn!(variable, text, "not a number of seconds; ignored"),
        }
    }
    timing
}

/// The configuration in force, as the launcher follows it.
fn follow(mut handle: ConfigHandle) -> watch::Receiver<Arc<Config>> {
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
