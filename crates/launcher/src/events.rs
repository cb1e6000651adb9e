//! Events of a launcher, for metrics.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use nodeyard_driver::ResourceKind;
use nodeyard_model::{Label, Limits, PoolName, ProviderName, TenantName};

/// Receives events. All methods are called in the middle of work, so they must be quick.
pub trait LauncherEvents: fmt::Debug + Send + Sync {
    /// Counts an ended attempt to launch a node.
    fn launched(&self, _attempt: &LaunchAttempt<'_>) {}

    /// Leftovers in a cloud are deleted: resources without a record that were listed twice, or what carries no tags.
    fn leaked(&self, _provider: &ProviderName, _kind: &ResourceKind, _count: usize) {}

    /// Counts a request that a pool of this provider accepted, with its wait since creation.
    fn accepted(&self, _provider: &ProviderName, _waited: Duration) {}

    /// Counts a request that failed because every pool declined it.
    fn failed(&self) {}

    /// Sets the limits of the pools of a provider. Without pools, the provider was removed.
    fn provider_limits(&self, _provider: &ProviderName, _pools: BTreeMap<PoolName, Limits>) {}

    /// Sets the limits of all tenants.
    fn tenant_limits(&self, _limits: BTreeMap<TenantName, Limits>) {}

    /// Counts a request that this provider fulfilled, with its time since creation.
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
pub struct NoLauncherEvents;

impl LauncherEvents for NoLauncherEvents {}
