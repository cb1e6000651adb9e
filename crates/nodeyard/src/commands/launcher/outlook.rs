//! What others see of the launcher: its pages, the HTTP API, Prometheus, statsd.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_api::metrics::Launch;
use nodeyard_api::statsd::{self, Reporter};
use nodeyard_api::{
    Explain, LaunchResult, Metrics, Reasons, Sources, Statsd, Views, Webapp, webapp,
};
use nodeyard_config::Config;
use nodeyard_driver::ResourceKind;
use nodeyard_launcher::{self as launcher, Events, Handle, LaunchAttempt, history};
use nodeyard_model::{Limits, PoolName, ProviderName, RequestId, TenantName};
use nodeyard_store::Tree;
use nodeyard_store::registry::{self, Registry};
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::Served;
use super::http_api::Leasing;

/// Whether there are pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    /// A port that is taken is an error.
    Wanted,
    /// A port that is taken costs only the pages.
    Offered,
    Off,
}

/// Counts what the launcher tells.
#[derive(Debug)]
pub(super) struct Recorder(pub(super) Metrics);

impl Events for Recorder {
    fn launched(&self, attempt: &LaunchAttempt<'_>) {
        let result = match attempt.result {
            launcher::LaunchResult::Ready => LaunchResult::Ready,
            launcher::LaunchResult::Quota => LaunchResult::Quota,
            launcher::LaunchResult::Capacity => LaunchResult::Capacity,
            launcher::LaunchResult::CreateTimeout => LaunchResult::CreateTimeout,
            launcher::LaunchResult::KeyScan => LaunchResult::HostKeys,
            launcher::LaunchResult::Session => LaunchResult::Session,
            launcher::LaunchResult::Unknown => LaunchResult::Unknown,
        };
        self.0.launched(Launch {
            provider: attempt.provider,
            az: attempt.zone,
            requestor: attempt.requestor,
            result,
            duration: attempt.took,
        });
    }

    fn leaked(&self, provider: &ProviderName, kind: &ResourceKind, count: usize) {
        self.0.leaked(
            provider,
            kind.as_str(),
            u64::try_from(count).unwrap_or(u64::MAX),
        );
    }

    fn accepted(&self, provider: &ProviderName, waited: Duration) {
        self.0.request_accepted(provider, waited);
    }

    fn failed(&self) {
        self.0.request_failed();
    }

    fn provider_limits(&self, provider: &ProviderName, pools: BTreeMap<PoolName, Limits>) {
        self.0.provider_limits(provider, pools);
    }

    fn tenant_limits(&self, limits: BTreeMap<TenantName, Limits>) {
        self.0.tenant_limits(limits);
    }

    fn fulfilled(&self, provider: &ProviderName, took: Duration) {
        self.0.request_fulfilled(provider, took);
    }
}

/// Asks the launcher itself, which knows what is and what was, and then the store.
#[derive(Debug)]
pub(super) struct Explainer {
    launcher: Handle,
    tree: Arc<dyn Tree>,
}

/// What the keeper of leases tells of a request that failed.
#[async_trait]
impl nodeyard_lease::ExplainFailure for Explainer {
    async fn failure(&self, request: RequestId) -> Option<String> {
        let reasons = Explain::explain(self, request).await?;
        Some(reasons.text.trim().to_owned())
    }
}

#[async_trait]
impl Explain for Explainer {
    async fn explain(&self, request: RequestId) -> Option<Reasons> {
        if let Some(ended) = self.launcher.ended(request) {
            return reasons(&*ended);
        }
        if let Some(explanation) = self.launcher.explain(request).await {
            return reasons(&explanation);
        }
        let stored = history::read(&*self.tree, request).await;
        let stored = stored.inspect_err(|error| debug!(%error, "the store does not explain"));
        reasons(&stored.ok()??)
    }
}

fn reasons<E: fmt::Display + Serialize>(explanation: &E) -> Option<Reasons> {
    Some(Reasons {
        text: explanation.to_string(),
        json: serde_json::to_string(explanation).ok()?,
    })
}

/// Metrics, sent to statsd where there is one.
pub(super) async fn metrics() -> anyhow::Result<Metrics> {
    Ok(Metrics::new(statsd().await?))
}

/// The way to statsd, if `STATSD_HOST` or `STATSD_PORT` says where it is.
pub(crate) async fn statsd() -> anyhow::Result<Option<Statsd>> {
    let variable = |name| std::env::var(name).ok();
    let (host, port) = (variable("STATSD_HOST"), variable("STATSD_PORT"));
    Ok(
        match statsd::Options::from_variables(host.as_deref(), port.as_deref())? {
            Some(options) => Some(Statsd::open(&options).await?),
            None => None,
        },
    )
}

/// What is shown, and of what.
pub(super) struct Outlook<'a> {
    pub(super) first: &'a Config,
    /// The configuration in force.
    pub(super) config: watch::Receiver<Arc<Config>>,
    pub(super) served: Served,
    pub(super) registry: Registry,
    pub(super) records: registry::Views,
    pub(super) metrics: Metrics,
    pub(super) launcher: Handle,
    pub(super) hostname: &'a str,
}

/// Serves the pages and sends the gauges until `stop`. Where there is neither, nothing is watched for them.
/// Cancels `begun` when the pages can be seen.
pub(super) async fn run(
    outlook: Outlook<'_>,
    begun: CancellationToken,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let Outlook {
        first,
        config,
        served,
        registry,
        records,
        metrics,
        launcher,
        hostname,
    } = outlook;
    let views = Views::open(&registry, records.clone())?;
    let reporter = Reporter::new(metrics.clone(), views.clone(), &registry, hostname)?;
    let explainer = Arc::new(Explainer {
        tree: Arc::clone(registry.tree()),
        launcher: launcher.clone(),
    });
    let leasing = Leasing {
        registry,
        records,
        views: views.clone(),
        metrics: metrics.clone(),
        config,
        explainer: Arc::clone(&explainer),
        ready: launcher.ready(),
        local_token: served.local_token,
        hostname,
    };
    let sources = Sources {
        views,
        metrics,
        ready: launcher.ready(),
        explain: explainer,
    };
    let options = webapp::Options {
        address: first.webapp.listen_address.clone(),
        port: first.webapp.port.0,
    };
    let webapp = match served.pages {
        Pages::Off => None,
        Pages::Wanted => Some(Webapp::bind(options, sources).await?),
        Pages::Offered => Webapp::bind(options, sources)
            .await
            .inspect_err(|error| warn!(error = error as &dyn std::error::Error, "no web pages"))
            .ok(),
    };
    // After the web pages: an API that is not configured must not take a port that is configured for them.
    let http_api = leasing.begin().await?;
    begun.cancel();
    let showing = async {
        if let Some(webapp) = webapp {
            if let Ok(address) = webapp.local_addr() {
                info!(%address, "web pages");
            }
            webapp.run(stop.clone()).await;
        }
    };
    let ((), (), kept) = tokio::join!(
        showing,
        reporter.run(stop.clone()),
        http_api.run(stop.clone())
    );
    kept
}
