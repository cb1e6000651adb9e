//! What a launcher counts.
//!
//! Things that happen are recorded through a [`Metrics`] handle; things that exist are counted from the views
//! when somebody asks. Prometheus reads both at `/metrics`; statsd is told of the former at once, of the latter
//! by [`crate::statsd::Reporter`].
//!
//! For Prometheus the labels of a series are providers, pools, labels, states and the like: there are as many as
//! the configuration has. Ids, requestors and zones are not among them.

pub(crate) mod exposition;
mod families;
pub(crate) mod histogram;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nodeyard_model::{Limits, PoolName, ProviderName, ResourceName, TenantName};
use nodeyard_reconcile::CountKeys;

use crate::census::Census;
use crate::statsd::{Batch, Statsd, names};
use crate::views::Views;
use histogram::Histogram;

/// Records what happens. Cloning is cheap, and so is recording: nothing waits.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    recorded: Mutex<Recorded>,
    statsd: Option<Statsd>,
}

/// Since the start of the process.
#[derive(Debug, Default)]
struct Recorded {
    launches: BTreeMap<(ProviderName, LaunchResult), u64>,
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
pub struct Launch<'a> {
    pub provider: &'a ProviderName,
    pub az: Option<&'a str>,
    /// Who asked for the node.
    pub requestor: Option<&'a str>,
    pub result: LaunchResult,
    pub duration: Duration,
}

/// How a launch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LaunchResult {
    Ready,
    Quota,
    /// Our session ended, and the node's lock with it.
    Session,
    HostKeys,
    Capacity,
    CreateTimeout,
    Unknown,
}

impl LaunchResult {
    /// In Nodepool's words.
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

impl fmt::Display for LaunchResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Metrics {
    pub fn new(statsd: Option<Statsd>) -> Self {
        Self(Arc::new(Inner {
            recorded: Mutex::default(),
            statsd,
        }))
    }

    pub fn launched(&self, launch: Launch<'_>) {
        {
            let mut recorded = self.recorded();
            let key = (launch.provider.clone(), launch.result);
            *recorded.launches.entry(key).or_default() += 1;
            if launch.result == LaunchResult::Ready {
                let times = recorded.launch_times.entry(launch.provider.clone());
                times.or_default().observe(launch.duration);
            }
        }
        self.tell(|batch| {
            for name in names::launch(&launch) {
                batch.timing(&name, launch.duration);
                batch.count(&name, 1);
            }
        });
    }

    /// A pool has begun to work on a request, so long after it was made.
    pub fn request_accepted(&self, provider: &ProviderName, waited: Duration) {
        let mut recorded = self.recorded();
        let waits = recorded.waits.entry(provider.clone());
        waits.or_default().observe(waited);
    }

    /// All nodes of a request are ready, so long after it was made.
    pub fn request_fulfilled(&self, provider: &ProviderName, took: Duration) {
        let mut recorded = self.recorded();
        let fulfilments = recorded.fulfilments.entry(provider.clone());
        fulfilments.or_default().observe(took);
    }

    pub fn request_failed(&self) {
        self.recorded().failed_requests += 1;
    }

    /// Resources without a record were removed from a cloud. `kind` is a plural, such as `instances`.
    pub fn leaked(&self, provider: &ProviderName, kind: &str, count: u64) {
        let key = (provider.clone(), Box::from(kind));
        *self.recorded().leaked.entry(key).or_default() += count;
        self.tell(|batch| batch.count(&names::leaked(provider, kind), count));
    }

    /// The limits of a provider's pools, in place of those told before; without any pool, it is forgotten.
    pub fn provider_limits(&self, provider: &ProviderName, pools: BTreeMap<PoolName, Limits>) {
        if pools.is_empty() {
            self.recorded().limits.remove(provider);
        } else {
            self.tell(|batch| max_servers(batch, provider, &pools));
            self.recorded().limits.insert(provider.clone(), pools);
        }
    }

    /// The limits of all tenants, in place of those told before.
    pub fn tenant_limits(&self, limits: BTreeMap<TenantName, Limits>) {
        self.tell(|batch| tenant_limits(batch, &limits));
        self.recorded().tenant_limits = limits;
    }

    /// Adds a work queue, whose keys are counted whenever metrics are read.
    pub fn add_queue(&self, name: &'static str, queue: Arc<dyn CountKeys>) {
        self.recorded().queues.insert(name, queue);
    }

    /// Everything, in the text format of Prometheus. Looks at every node, so it belongs on a thread that may
    /// be busy for a while.
    pub fn exposition(&self, views: &Views) -> String {
        let census = Census::take(views);
        families::all(&self.recorded(), &census, views)
    }

    /// Sends the limits once more: datagrams get lost.
    pub(crate) fn repeat_limits(&self) {
        let recorded = self.recorded();
        self.tell(|batch| {
            for (provider, pools) in &recorded.limits {
                max_servers(batch, provider, pools);
            }
            tenant_limits(batch, &recorded.tenant_limits);
        });
    }

    pub(crate) fn statsd(&self) -> Option<&Statsd> {
        self.0.statsd.as_ref()
    }

    fn tell(&self, write: impl FnOnce(&mut Batch<'_>)) {
        if let Some(statsd) = self.statsd() {
            statsd.send(write);
        }
    }

    /// Nothing panics while it holds the lock, so poison is ignored.
    fn recorded(&self) -> MutexGuard<'_, Recorded> {
        let recorded = self.0.recorded.lock();
        recorded.unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sum over the pools; a single pool without limit makes it infinite.
fn max_servers(batch: &mut Batch<'_>, provider: &ProviderName, pools: &BTreeMap<PoolName, Limits>) {
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

fn tenant_limits(batch: &mut Batch<'_>, limits: &BTreeMap<TenantName, Limits>) {
    for (tenant, limits) in limits {
        for (resource, limit) in limits.iter() {
            batch.gauge(&names::tenant_limit(tenant, resource), limit);
        }
    }
}
