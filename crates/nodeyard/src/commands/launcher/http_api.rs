//! The HTTP API and the keeper of leases beside a launcher.

use std::sync::Arc;

use anyhow::Context as _;
use nodeyard_api::{Metrics, Views};
use nodeyard_config::{Api, Config};
use nodeyard_http_api::{HttpApi, LocalToken, Sources};
use nodeyard_lease::{LeaseDependencies, LeaseKeeper, Leases, Options};
use nodeyard_model::Clock;
use nodeyard_store::registry::{self, Registry};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::outlook::Explainer;

/// What leases are made from.
pub(super) struct Leasing<'a> {
    pub(super) registry: Registry,
    pub(super) records: registry::Views,
    pub(super) views: Views,
    pub(super) metrics: Metrics,
    pub(super) config: watch::Receiver<Arc<Config>>,
    pub(super) explainer: Arc<Explainer>,
    pub(super) ready: watch::Receiver<bool>,
    /// Allows everything.
    pub(super) local_token: Option<LocalToken>,
    pub(super) hostname: &'a str,
}

/// A keeper, and an API that has its port.
pub(super) struct Serving {
    keeper: LeaseKeeper,
    api: Option<HttpApi>,
}

impl Leasing<'_> {
    /// Takes the port. One that is taken already is an error where `api` is configured, and costs only the API where
    /// it is not: several launchers may run on a host.
    pub(super) async fn begin(self) -> anyhow::Result<Serving> {
        let wanted = self.config.borrow().api != Api::default();
        let leases = Leases::open(LeaseDependencies {
            tree: Arc::clone(self.registry.tree()),
            views: self.records,
            clock: Clock::system(),
            explain: Arc::clone(&self.explainer) as _,
        })?;
        self.metrics.add_queue("leases", leases.queue());
        let keeper = LeaseKeeper::new(Options::new(self.hostname), &leases);
        let sources = Sources {
            registry: self.registry,
            views: self.views,
            leases,
            config: self.config,
            explain: self.explainer,
            ready: self.ready,
            local_token: self.local_token,
        };
        let api = match HttpApi::bind(sources).await {
            Err(error) if !wanted => {
                warn!(
                    error = &error as &dyn std::error::Error,
                    remedy = "set `api.port` to a free port",
                    "failed to start the HTTP API, which is not configured; continuing without it"
                );
                None
            }
            api => Some(api?),
        };
        Ok(Serving { keeper, api })
    }
}

impl Serving {
    /// Answers requests and keeps leases until `stop`.
    pub(super) async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let answering = async {
            if let Some(api) = self.api {
                if let Ok(address) = api.local_addr() {
                    info!(%address, "HTTP API");
                }
                api.run(stop.clone()).await;
            }
        };
        let keeping = async {
            let kept = self.keeper.run(stop.clone()).await;
            if kept.is_err() {
                stop.cancel();
            }
            kept
        };
        let ((), kept) = tokio::join!(answering, keeping);
        kept.context("the keeper of leases has ended")
    }
}
