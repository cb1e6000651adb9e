//! Runs the HTTP API and the lease keeper beside a launcher.

use std::sync::Arc;

use anyhow::Context as _;
use nodeyard_api::{Metrics, StatusViews};
use nodeyard_config::{ApiConfig, Config};
use nodeyard_http_api::{ApiSources, HttpApi, LocalToken};
use nodeyard_lease::{LeaseDependencies, LeaseKeeper, Leases, Options};
use nodeyard_model::Clock;
use nodeyard_store::registry::{self, Registry};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::interfaces::Explainer;

/// What leases and the HTTP API need.
pub(super) struct LeaseServiceParts<'a> {
    pub(super) registry: Registry,
    pub(super) records: registry::Views,
    pub(super) views: StatusViews,
    pub(super) metrics: Metrics,
    pub(super) config: watch::Receiver<Arc<Config>>,
    pub(super) explainer: Arc<Explainer>,
    pub(super) ready: watch::Receiver<bool>,
    /// The local token, which allows everything.
    pub(super) local_token: Option<LocalToken>,
    pub(super) hostname: &'a str,
}

/// The lease keeper, and the HTTP API with its open port.
pub(super) struct LeaseService {
    keeper: LeaseKeeper,
    api: Option<HttpApi>,
}

impl LeaseServiceParts<'_> {
    /// Opens the port. If `api` is not configured, a port that is in use is not an error, because several launchers may
    /// run on a host.
    pub(super) async fn begin(self) -> anyhow::Result<LeaseService> {
        let wanted = self.config.borrow().api != ApiConfig::default();
        let leases = Leases::open(LeaseDependencies {
            tree: Arc::clone(self.registry.tree()),
            views: self.records,
            clock: Clock::system(),
            explain: Arc::clone(&self.explainer) as _,
        })?;
        self.metrics.add_queue("leases", leases.queue());
        let keeper = LeaseKeeper::new(Options::new(self.hostname), &leases);
        let sources = ApiSources {
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
        Ok(LeaseService { keeper, api })
    }
}

impl LeaseService {
    /// Serves the API and keeps leases until `stop`.
    pub(super) async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let answering = async {
            if let Some(api) = self.api {
                if let Ok(address) = api.local_addr() {
                    info!(%address, "serving the HTTP API");
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
        kept.context("the lease keeper failed")
    }
}
