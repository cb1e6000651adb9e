//! What happened, for metrics.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use nodeyard_driver::ResourceKind;
use nodeyard_model::{Label, Limits, PoolName, ProviderName, TenantName};

/// Is told what happens. All methods are called in the middle of work, so they must be quick.
pub trait Events: fmt::Debug + Send + Sync {
    /// One attempt to launch a node ended.
    fn launched(&self, _attempt: &LaunchAttempt<'_>) {}

    /// Leftovers in a cloud are deleted: resources without a record that were listed twice, or what carries no tags.
    fn leaked(&self, _provider: &ProviderName, _kind: &ResourceKind, _count: usize) {}

    /// A pool of this provider began to serve a request, so long after it was made.
    fn accepted(&self, _provider: &ProviderName, _waited: Duration) {}

    /// The last pool that could has declined a request.
    fn failed(&self) {}

    /// The limits of a provider's pools, whenever they change; without pools, the provider has gone.
    fn provider_limits(&self, _provider: &ProviderName, _pools: BTreeMap<PoolName, Limits>) {}

    /// The limits of all tenants, whenever they change.
    fn tenant_limits(&self, _limits: BTreeMap<TenantName, Limits>) {}

    /// A request was fulfilled by this provider, so long after it was made.
    fn fulfilled(&self, _provider: &ProviderName, _took: Duration) {}
}

#[derive(Debug, Clone, Copy)]
pub struct LaunchAttempt<'a> {
    pub provider: &'a ProviderName,
    pub label: &'a Label,
    pub zone: Option<&'a str>,
    pub requestor: Option<&'a str>,
    pub result: LaunchResult,
    pub took: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchResult {
    Ready,
    Quota,
    Capacity,
    /// The machine was not there within `launch-timeout`.
    CreateTimeout,
    /// Nobody answered on the machine.
    KeyScan,
    /// The store went away meanwhile.
    Session,
    Unknown,
}

/// Nobody wants to know.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoEvents;

impl Events for NoEvents {}
