//! The launcher's interfaces: web pages, HTTP API, Prometheus and statsd.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_api::metrics::LaunchSample;
use nodeyard_api::statsd::{self, StatsdReporter};
use nodeyard_api::{
    LaunchOutcome, Metrics, RenderedExplanation, RequestExplainer, Statsd, StatusViews,
    WebappServer, WebappSources, webapp,
};
use nodeyard_config::Config;
use nodeyard_driver::ResourceKind;
use nodeyard_launcher::{self as launcher, LaunchAttempt, LauncherEvents, LauncherHandle, history};
use nodeyard_model::{Limits, PoolName, ProviderName, RequestId, TenantName};
use nodeyard_store::Tree;
use nodeyard_store::registry::{self, Registry};
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::LauncherServices;
use super::http_api::LeaseServiceParts;

/// Whether to serve web pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WebPages {
    /// A port that is in use is an error.
    Required,
    /// If the port is in use, there are no web pages.
    Optional,
    Disabled,
}

/// Records events of the launcher as metrics.
#[derive(Debug)]
pub(super) struct LauncherMetricsRecorder(pub(super) Metrics);

impl LauncherEvents for LauncherMetricsRecorder {
    fn launched(&self, attempt: &LaunchAttempt<'_>) {
        let result = match attempt.result {
            launcher::LaunchResult::Ready => LaunchOutcome::Ready,
            launcher::LaunchResult::Quota => LaunchOutcome::Quota,
            launcher::LaunchResult::Capacity => LaunchOutcome::Capacity,
            launcher::LaunchResult::CreateTimeout => LaunchOutcome::CreateTimeout,
            launcher::LaunchResult::KeyScan => LaunchOutcome::HostKeys,
            launcher::LaunchResult::Session => LaunchOutcome::Session,
            launcher::LaunchResult::Unknown => LaunchOutcome::Unknown,
        };
        self.0.record_launch(LaunchSample {
            provider: attempt.provider,
            az: attempt.zone,
            requestor: attempt.requestor,
            result,
            duration: attempt.took,
        });
    }

    fn leaked(&self, provider: &ProviderName, kind: &ResourceKind, count: usize) {
        self.0.record_leaked(
            provider,
            kind.as_str(),
            u64::try_from(count).unwrap_or(u64::MAX),
        );
    }

    fn accepted(&self, provider: &ProviderName, waited: Duration) {
        self.0.record_request_accepted(provider, waited);
    }

    fn failed(&self) {
        self.0.record_request_failed();
    }

    fn provider_limits(&self, provider: &ProviderName, pools: BTreeMap<PoolName, Limits>) {
        self.0.set_provider_limits(provider, pools);
    }

    fn tenant_limits(&self, limits: BTreeMap<TenantName, Limits>) {
        self.0.set_tenant_limits(limits);
    }

    fn fulfilled(&self, provider: &ProviderName, took: Duration) {
        self.0.record_request_fulfilled(provider, took);
    }
}

/// Explains requests: asks the launcher first, then the store.
#[derive(Debug)]
pub(super) struct Explainer {
    launcher: LauncherHandle,
    tree: Arc<dyn Tree>,
}

/// Explains failed requests to the lease keeper.
#[async_trait]
impl nodeyard_lease::ExplainFailure for Explainer {
    async fn failure(&self, request: RequestId) -> Option<String> {
        let reasons = RequestExplainer::explain(self, request).await?;
        Some(reasons.text.trim().to_owned())
    }
}

#[async_trait]
impl RequestExplainer for Explainer {
    async fn explain(&self, request: RequestId) -> Option<RenderedExplanation> {
        if let Some(ended) = self.launcher.ended(request) {
            return reasons(&*ended);
        }
        if let Some(explanation) = self.launcher.explain(request).await {
            return reasons(&explanation);
        }
        let stored = history::read(&*self.tree, request).await;
        let stored =
            stored.inspect_err(|error| debug!(%error, "failed to read the stored explanation"));
        reasons(&stored.ok()??)
    }
}

fn reasons<E: fmt::Display + Serialize>(explanation: &E) -> Option<RenderedExplanation> {
    Some(RenderedExplanation {
        text: explanation.to_string(),
        json: serde_json::to_string(explanation).ok()?,
    })
}

/// Creates the metrics, with statsd if it is configured.
pub(super) async fn metrics() -> anyhow::Result<Metrics> {
    Ok(Metrics::new(statsd().await?))
}

/// Opens statsd, if `STATSD_HOST` or `STATSD_PORT` is set.
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

/// What the interfaces need.
pub(super) struct Interfaces<'a> {
    pub(super) first: &'a Config,
    /// The configuration and its changes.
    pub(super) config: watch::Receiver<Arc<Config>>,
    pub(super) services: LauncherServices,
    pub(super) registry: Registry,
    pub(super) records: registry::Views,
    pub(super) metrics: Metrics,
    pub(super) launcher: LauncherHandle,
    pub(super) hostname: &'a str,
}

/// Serves the pages and sends metrics until `stop`. Cancels `started` when the pages are served.
pub(super) async fn run(
    interfaces: Interfaces<'_>,
    started: CancellationToken,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let Interfaces {
        first,
        config,
        services,
        registry,
        records,
        metrics,
        launcher,
        hostname,
    } = interfaces;
    let views = StatusViews::open(&registry, records.clone())?;
    let reporter = StatsdReporter::new(metrics.clone(), views.clone(), &registry, hostname)?;
    let explainer = Arc::new(Explainer {
        tree: Arc::clone(registry.tree()),
        launcher: launcher.clone(),
    });
    let lease_parts = LeaseServiceParts {
        registry,
        records,
        views: views.clone(),
        metrics: metrics.clone(),
        config,
        explainer: Arc::clone(&explainer),
        ready: launcher.ready(),
        local_token: services.local_token,
        hostname,
    };
    let sources = WebappSources {
        views,
        metrics,
        ready: launcher.ready(),
        explain: explainer,
    };
    let options = webapp::Options {
        address: first.webapp.listen_address.clone(),
        port: first.webapp.port.0,
    };
    let webapp = match services.pages {
        WebPages::Disabled => None,
        WebPages::Required => Some(WebappServer::bind(options, sources).await?),
        WebPages::Optional => WebappServer::bind(options, sources)
            .await
            .inspect_err(|error| {
                warn!(
                    error = error as &dyn std::error::Error,
                    "failed to start the web pages"
                );
            })
            .ok(),
    };
    // After the web pages, because a default port of the API must not take one that is configured for them.
    let http_api = lease_parts.begin().await?;
    started.cancel();
    let showing = async {
        if let Some(webapp) = webapp {
            if let Ok(address) = webapp.local_addr() {
                info!(%address, "serving web pages");
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
