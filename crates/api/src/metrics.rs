//! Metrics of a launcher.
//!
//! Events are recorded through a [`Metrics`] handle; gauges are computed from the cached views on demand. Prometheus
//! reads both at `/metrics`. Events are sent to statsd at once, gauges by
//! [`StatsdReporter`](crate::statsd::StatsdReporter).
//!
//! Prometheus series are labelled with providers, pools, labels and states, which the configuration bounds; ids,
//! requestors and zones are not used as labels.

pub(crate) mod exposition;
mod families;
pub(crate) mod histogram;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nodeyard_model::{Limits, PoolName, ProviderName, ResourceName, TenantName};
use nodeyard_reconcile::CountKeys;

use crate::counts::RecordCounts;
use crate::statsd::{Statsd, StatsdBatch, names};
use crate::views::StatusViews;
use histogram::Histogram;

/// Records events of a launcher. Cloning and recording are cheap and never block.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Arc<MetricsInner>);

#[derive(Debug, Default)]
struct MetricsInner {
    counters: Mutex<LauncherCounters>,
    statsd: Option<Statsd>,
}

/// Counts since the start of the process.
#[derive(Debug, Default)]
struct LauncherCounters {
    launches: BTreeMap<(ProviderName, LaunchOutcome), u64>,
    launch_times: BTreeMap<ProviderName, Histogram>,
    waits: BTreeMap<ProviderName, Histogram>,
    fulfilments: BTreeMap<ProviderName, Histogram>,
    failed_requests: u64,
    leaked: BTreeMap<(ProviderName, Box<str>), u64>,
    limits: BTreeMap<ProviderName, BTreeMap<PoolName, Limits>>,
    tenant_limits: BTreeMap<TenantName, Limits>,
    queues: BTreeMap<&'static str, Arc<dyn CountKeys>>,
}

/// One attempt to launch a node.
#[derive(Debug, Clone, Copy)]
pub struct LaunchSample<'a> {
    pub provider: &'a ProviderName,
    pub az: Option<&'a str>,
    /// The requestor that the node is launched for.
    pub requestor: Option<&'a str>,
    pub result: LaunchOutcome,
    pub duration: Duration,
}

/// The result of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LaunchOutcome {
    Ready,
    Quota,
    /// Our store session ended, and the node's lock with it.
    Session,
    HostKeys,
    Capacity,
    CreateTimeout,
    Unknown,
}

impl LaunchOutcome {
    /// Returns Nodepool's name for the result.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Quota => "error.quota",
            Self::Session => "error.zksession",
            Self::HostKeys => "error.keyscan",
            Self::Capacity => "error.capacity",
            Self::CreateTimeout => "error.servercreatetimeout",
            Self::Unknown => "error.unknown",
        }
    }
}

impl fmt::Display for LaunchOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Metrics {
    pub fn new(statsd: Option<Statsd>) -> Self {
        Self(Arc::new(MetricsInner {
            counters: Mutex::default(),
            statsd,
        }))
    }

    /// Records an attempt to launch a node.
    pub fn record_launch(&self, launch: LaunchSample<'_>) {
        {
            let mut counters = self.counters();
            let key = (launch.provider.clone(), launch.result);
            *counters.launches.entry(key).or_default() += 1;
            if launch.result == LaunchOutcome::Ready {
                let times = counters.launch_times.entry(launch.provider.clone());
                times.or_default().observe(launch.duration);
            }
        }
        self.send_statsd(|batch| {
            for name in names::launch(&launch) {
                batch.timing(&name, launch.duration);
                batch.count(&name, 1);
            }
        });
    }

    /// Records that a pool accepted a request, and how long after its creation.
    pub fn record_request_accepted(&self, provider: &ProviderName, waited: Duration) {
        let mut counters = self.counters();
        let waits = counters.waits.entry(provider.clone());
        waits.or_default().observe(waited);
    }

    /// Records that all nodes of a request are ready, and how long after its creation.
    pub fn record_request_fulfilled(&self, provider: &ProviderName, took: Duration) {
        let mut counters = self.counters();
        let fulfilments = counters.fulfilments.entry(provider.clone());
        fulfilments.or_default().observe(took);
    }

    /// Records a failed request.
    pub fn record_request_failed(&self) {
        self.counters().failed_requests += 1;
    }

    /// Records resources without a record that were deleted from a cloud. `metric_type` is a plural, such as `instances`.
    pub fn record_leaked(&self, provider: &ProviderName, metric_type: &str, count: u64) {
        let key = (provider.clone(), Box::from(metric_type));
        *self.counters().leaked.entry(key).or_default() += count;
        self.send_statsd(|batch| batch.count(&names::leaked(provider, metric_type), count));
    }

    /// Replaces the limits of a provider's pools. Without pools, the provider is removed.
    pub fn set_provider_limits(&self, provider: &ProviderName, pools: BTreeMap<PoolName, Limits>) {
        if pools.is_empty() {
            self.counters().limits.remove(provider);
        } else {
            self.send_statsd(|batch| max_servers(batch, provider, &pools));
            self.counters().limits.insert(provider.clone(), pools);
        }
    }

    /// Replaces the limits of all tenants.
    pub fn set_tenant_limits(&self, limits: BTreeMap<TenantName, Limits>) {
        self.send_statsd(|batch| tenant_limits(batch, &limits));
        self.counters().tenant_limits = limits;
    }

    /// Adds a work queue, whose keys are counted whenever metrics are read.
    pub fn add_queue(&self, name: &'static str, queue: Arc<dyn CountKeys>) {
        self.counters().queues.insert(name, queue);
    }

    /// Renders all metrics in the text format of Prometheus. Counts every node, so call it on a blocking thread.
    pub fn exposition(&self, views: &StatusViews) -> String {
        let counts = RecordCounts::take(views);
        families::all(&self.counters(), &counts, views)
    }

    /// Sends the limits again, because datagrams can be lost.
    pub(crate) fn repeat_limits(&self) {
        let counters = self.counters();
        self.send_statsd(|batch| {
            for (provider, pools) in &counters.limits {
                max_servers(batch, provider, pools);
            }
            tenant_limits(batch, &counters.tenant_limits);
        });
    }

    pub(crate) fn statsd(&self) -> Option<&Statsd> {
        self.0.statsd.as_ref()
    }

    fn send_statsd(&self, write: impl FnOnce(&mut StatsdBatch<'_>)) {
        if let Some(statsd) = self.statsd() {
            statsd.send(write);
        }
    }

    /// Nothing panics while it holds the lock, so a poisoned lock is usable.
    fn counters(&self) -> MutexGuard<'_, LauncherCounters> {
        let counters = self.0.counters.lock();
        counters.unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends the sum over the pools; a single pool without a limit makes it infinite.
fn max_servers(
    batch: &mut StatsdBatch<'_>,
    provider: &ProviderName,
    pools: &BTreeMap<PoolName, Limits>,
) {
    let name = names::max_servers(provider);
    let limits = pools
        .values()
        .map(|limits| limits.get(&ResourceName::INSTANCES));
    let sum = limits.reduce(|sum, limit| Some(sum? + limit?)).flatten();
    match sum {
        Some(sum) => batch.gauge(&name, sum),
        None => batch.gauge(&name, "inf"),
    }
}

fn tenant_limits(batch: &mut StatsdBatch<'_>, limits: &BTreeMap<TenantName, Limits>) {
    for (tenant, limits) in limits {
        for (resource, limit) in limits.iter() {
            batch.gauge(&names::tenant_limit(tenant, resource), limit);
        }
    }
}
