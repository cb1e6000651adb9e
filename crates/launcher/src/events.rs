//! Events of a launcher, for metrics.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use nodeyard_driver::ResourceKind;
use nodeyard_model::{Label, Limits, PoolName, ProviderName, TenantName};

/// Receives events. All methods are called in the middle of work, so they must be quick.
pub trait Events: fmt::Debug + Send + Sync {
    /// One attempt to launch a node ended.
    fn launched(&self, _attempt: &LaunchAttempt<'_>) {}

    /// Leftovers in a cloud are deleted: resources without a record that were listed twice, or what carries no tags.
    fn leaked(&self, _provider: &ProviderName, _kind: &ResourceKind, _count: usize) {}

    /// A pool of this provider accepted a request, so long after its creation.
    fn accepted(&self, _provider: &ProviderName, _waited: Duration) {}

    /// A request failed: every pool declined it.
    fn failed(&self) {}

    /// The limits of a provider's pools changed. Without pools, the provider was removed.
    fn provider_limits(&self, _provider: &ProviderName, _pools: BTreeMap<PoolName, Limits>) {}

    /// The limits of all tenants changed.
    fn tenant_limits(&self, _limits: BTreeMap<TenantName, Limits>) {}

    /// This provider fulfilled a request, so long after its creation.
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
    /// The machine was not up within `launch-timeout`.
    CreateTimeout,
    /// The machine did not answer.
    KeyScan,
    /// The store's session ended.
    Session,
    Unknown,
}

/// Ignores all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoEvents;

impl Events for NoEvents {}
