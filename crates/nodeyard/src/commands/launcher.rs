//! The launcher, wired: which drivers there are, where it runs, and how long it waits.

mod drivers;
mod http_api;
mod outlook;
mod stacks;

use std::sync::Arc;

use anyhow::Context as _;
use nodeyard_config::{Config, Handle as ConfigHandle};
use nodeyard_driver_fake::{RemoteScan, URL_VARIABLE};
use nodeyard_http_api::LocalToken;
use nodeyard_launcher::{Launcher, Options, Parts, Timing};
use nodeyard_model::Clock;
use nodeyard_nodescan::{NetworkScanner, Scanner};
use nodeyard_store::Tree;
use nodeyard_store::registry::{Registry, Views};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(crate) use outlook::Pages;

pub(crate) use drivers::Drivers;
pub(crate) use outlook::statsd as open_statsd;
use outlook::{Outlook, Recorder};

use crate::commands::knobs;
use crate::host;

/// What others may see of a launcher.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) pages: Pages,
    /// For commands on this host.
    pub(crate) local_token: Option<LocalToken>,
}

/// Runs a launcher on a store until `stop`. The store stays open. `begun` is cancelled when it can be seen.
pub(crate) async fn run(
    tree: Arc<dyn Tree>,
    config: ConfigHandle,
    tools: Tools,
    served: Served,
    begun: CancellationToken,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let metrics = outlook::metrics().await?;
    let options = options().await;
    let hostname = options.hostname.clone();
    let first = config.config();
    let registry = Registry::new(Arc::clone(&tree));
    let records = Views::open(&registry)?;
    let Tools { drivers, scanner } = tools;
    let config = follow(config);
    let parts = Parts {
        tree,
        views: records.clone(),
        config: config.clone(),
        drivers,
        scanner,
        events: Arc::new(Recorder(metrics.clone())),
        clock: Clock::system(),
    };
    let (launcher, handle) = Launcher::new(options, parts);
    let working = async {
        let result = Box::pin(launcher.run(stop.clone())).await;
        // Without the launcher there is nothing to look at.
        stop.cancel();
        result
    };
    let shown = async {
        let outlook = Outlook {
            first: &first,
            config,
            served,
            registry,
            records,
            metrics,
            launcher: handle.clone(),
            hostname: &hostname,
        };
        let result = outlook::run(outlook, begun, stop.clone()).await;
        if result.is_err() {
            stop.cancel();
        }
        result
    };
    let work = async { tokio::join!(working, shown) };
    let (result, shown) = tokio::select! {
        results = work => results,
        Err(error) = stacks::answer(handle.clone()) => return Err(error),
    };
    shown?;
    result.context("the launcher has ended")
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

/// What makes drivers, and what looks at the machines they make.
#[derive(Clone)]
pub(crate) struct Tools {
    pub(crate) drivers: Arc<Drivers>,
    scanner: Arc<dyn Scanner>,
}

impl Tools {
    /// `config` is for what drivers have to know of more than their own provider.
    pub(crate) fn new(config: watch::Receiver<Arc<Config>>) -> anyhow::Result<Self> {
        let cloud = std::env::var(URL_VARIABLE).ok();
        let scanner: Arc<dyn Scanner> = match &cloud {
            Some(url) => Arc::new(RemoteScan::new(url)?),
            None => Arc::new(NetworkScanner::default()),
        };
        Ok(Self {
            drivers: Arc::new(Drivers::new(cloud, Arc::clone(&scanner), config)),
            scanner,
        })
    }
}

/// Tests of the daemon shorten the safety nets.
pub(crate) fn timing() -> Timing {
    let mut timing = Timing::default();
    for (variable, field) in [
        ("NODEPOOL_TEST_WATERMARK_SLEEP", &mut timing.pass),
        ("NODEPOOL_TEST_CLEANUP_INTERVAL", &mut timing.cleanup),
        ("NODEPOOL_TEST_DELETE_INTERVAL", &mut timing.delete_retry),
        ("NODEPOOL_TEST_LOCK_CLEANUP", &mut timing.lock_age),
        ("NODEPOOL_TEST_IMAGE_CHECK_TIMEOUT", &mut timing.cloud_check),
    ] {
        if let Some(time) = knobs::seconds(variable) {
            *field = time;
        }
    }
    timing
}

/// The configuration in force, as a service follows it.
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
