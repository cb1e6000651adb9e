//! Starts, registers, replaces and stops providers and pools according to the configuration.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_config as config;
use nodeyard_driver_common::quantity;
use nodeyard_model::{
    ComponentState, Label, Limits, PoolComponent, PoolName, ProviderName, TenantName, coded,
};
use nodeyard_plan::{Drains, LabelPolicy, LabelReadiness, PoolKey};
use nodeyard_store::TreePath;
use nodeyard_store::registry::Registration;
use nodeyard_store::view::Change;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::cloud_polls::CloudPolls;
use super::{Dispatcher, Timer};
use crate::background;
use crate::context::Context;
use crate::error::StartError;
use crate::provider::Provider;
use crate::report::TaskReport;
use crate::roster;
use nodeyard_operations::drain::DrainScope;

/// How long the first attempt to start a provider may take before requests wait for the provider. Until then no
/// request is declined.
const SLOW_START: Duration = Duration::from_secs(10);

/// A running provider, or the substitute of one that did not start.
pub(super) struct RunningProvider {
    pub(super) provider: Arc<Provider>,
    pub(super) polls: CloudPolls,
    pools: BTreeMap<PoolName, AnnouncedPool>,
    ended: CancellationToken,
}

/// A pool in the registry.
struct AnnouncedPool {
    component: PoolComponent,
    registration: Registration,
    /// Some request waits for room.
    waiting: bool,
}

impl RunningProvider {
    /// Unregisters the pools. Tasks in progress continue.
    pub(super) async fn end(self) {
        self.ended.cancel();
        for pool in self.pools.into_values() {
            pool.registration.end().await;
        }
    }

    /// Unregisters the pools when their successors are registered. Without a registered pool of this provider, other
    /// pools may serve requests that name it.
    async fn give_way(self, successors: Vec<watch::Receiver<Option<TreePath>>>) {
        self.ended.cancel();
        for mut successor in successors {
            // It fails if the successor ends first.
            let _ = successor.wait_for(Option::is_some).await;
        }
        self.end().await;
    }
}

impl Dispatcher {
    /// Takes over the configuration in force.
    pub(super) fn apply_config(&mut self) {
        let config = Arc::clone(&self.config.borrow_and_update());
        self.labels = config
            .labels
            .iter()
            .map(|(name, label)| (Label::new(name.as_str()), policy(label)))
            .collect();
        self.scheduler.set_ready_nodes(&self.labels);
        let waiting = config.labels.iter().filter(|(_, of)| of.wait_for_image);
        let waiting = waiting.map(|(name, _)| Label::new(name.as_str()));
        self.scheduler.set_labels_that_wait(waiting.collect());
        let tenants = config.tenant_resource_limits.iter();
        let tenants: BTreeMap<TenantName, Limits> = tenants
            .map(|(name, limits)| (TenantName::new(name.as_str()), tenant_limits(limits)))
            .collect();
        self.ctx.events.tenant_limits(tenants.clone());
        self.scheduler.set_tenant_limits(tenants);
        let gone: Vec<ProviderName> = self
            .providers
            .keys()
            .chain(self.starting.keys())
            .filter(|name| !config.providers.contains_key(name.as_str()))
            .cloned()
            .collect();
        for name in gone {
            self.remove_provider(&name);
        }
        for provider in config.providers.values() {
            let name = match ProviderName::new(provider.name()) {
                Ok(name) => name,
                Err(error) => {
                    error!(%error, "ignoring provider with invalid name");
                    continue;
                }
            };
            let running = self.providers.get(&name).map(|running| &running.provider);
            let current = running.filter(|running| running.config == *provider);
            if current.is_none_or(|current| !current.is_unreachable) {
                self.failed_providers.remove(&name);
            }
            if current.is_some_and(|current| !current.is_unreachable) {
                self.starting.remove(&name);
            } else {
                self.start(name, provider.clone());
            }
        }
        self.timers.within(Duration::ZERO, Timer::Expiry);
        self.note_ready();
    }

    fn remove_provider(&mut self, name: &ProviderName) {
        self.starting.remove(name);
        self.failed_providers.remove(name);
        if let Some(running) = self.providers.remove(name) {
            info!(provider = %name, "provider was removed from the configuration");
            self.scheduler.remove_provider(name);
            self.requeue_revoked();
            self.ctx.events.provider_limits(name, BTreeMap::new());
            self.ctx.tasks.spawn(running.end());
        }
    }

    /// Starts a provider in the background; what runs under its name goes on until then.
    fn start(&mut self, name: ProviderName, provider: config::Provider) {
        self.starts += 1;
        let attempt = self.starts;
        self.starting.insert(name.clone(), attempt);
        let ctx = self.ctx.clone();
        let options = self.options.clone();
        let kinds = self.kinds.clone();
        let panicked = TaskReport::Started {
            provider: name.clone(),
            attempt,
            result: Err(StartError::Panicked),
        };
        let on = name.clone();
        let work = async move {
            let start = Provider::start(provider, &kinds, &ctx, &options);
            let result = tokio::select! {
                result = start => result,
                () = ctx.stop.cancelled() => return,
            };
            ctx.report(TaskReport::Started {
                provider: name,
                attempt,
                result: result.map(Arc::new),
            });
        };
        self.timers.within(SLOW_START, Timer::Start(on.clone()));
        self.ctx.spawn(on, work, panicked);
    }

    /// Replaces a provider by one with the current state of its cloud. Its pools get new ids, so they may serve
    /// requests that the old ones declined.
    pub(super) fn renew(&mut self, provider: &Provider) {
        let name = &provider.name;
        // Its successor is on the way already.
        if self.starting.contains_key(name) || self.failed_providers.contains_key(name) {
            return;
        }
        info!(provider = %name, "broken label works again; restarting provider");
        self.start(name.clone(), provider.config.clone());
    }

    pub(super) fn start_again(&mut self, name: &ProviderName) {
        let has_failed = self.failed_providers.contains_key(name);
        if self.starting.contains_key(name) {
            if !has_failed {
                self.note_failure(name, "its cloud has not answered yet".to_owned());
            }
            return;
        }
        let config = Arc::clone(&self.config.borrow());
        match config.providers.get(name.as_str()) {
            Some(provider) if has_failed => self.start(name.clone(), provider.clone()),
            _ => {}
        }
    }

    /// Notes why a provider did not start. Its pools are registered, so that requests wait for them, unless those of its
    /// last configuration are still at work.
    fn note_failure(&mut self, name: &ProviderName, reason: String) {
        let config = Arc::clone(&self.config.borrow());
        let config = config.providers.get(name.as_str());
        let running = self.providers.get(name).map(|running| &running.provider);
        let is_at_work = running.is_some_and(|running| !running.is_unreachable);
        let is_known = running.is_some_and(|running| Some(&running.config) == config);
        if is_known && !is_at_work {
            self.set_unreachable(name, &reason);
        } else if let Some(config) = config.filter(|_| !is_at_work)
            // What makes this fail is why the provider did not start.
            && let Ok(substitute) = Provider::unreachable(
                config.clone(),
                &self.kinds,
                &self.ctx,
                &self.options,
                &reason,
            )
        {
            self.run_provider(Arc::new(substitute));
        }
        self.failed_providers.insert(name.clone(), reason);
        self.note_ready();
    }

    /// Has the pools of a provider that does not start say why.
    fn set_unreachable(&mut self, name: &ProviderName, reason: &str) {
        let Some(running) = self.providers.get(name) else {
            return;
        };
        for pool in running.provider.pools.values() {
            for label in pool.labels() {
                let reason = reason.into();
                let readiness = LabelReadiness::Unreachable { reason };
                self.scheduler.set_readiness(&pool.key, label, readiness);
            }
        }
    }

    pub(super) fn started(
        &mut self,
        name: &ProviderName,
        attempt: u64,
        result: Result<Arc<Provider>, StartError>,
    ) {
        if self.starting.get(name) != Some(&attempt) {
            return;
        }
        self.starting.remove(name);
        let provider = match result {
            Ok(provider) => provider,
            Err(error) => {
                let reason = coded(&error);
                let error = &error as &dyn std::error::Error;
                warn!(provider = %name, error, "failed to start provider; retrying");
                self.note_failure(name, reason);
                let retry = self.ctx.timing.start_retry;
                self.timers.within(retry, Timer::Start(name.clone()));
                return;
            }
        };
        self.failed_providers.remove(name);
        info!(provider = %name, driver = provider.config.driver.name(), "started provider");
        self.run_provider(provider);
        self.timers.within(Duration::ZERO, Timer::CloudCheck);
        self.note_ready();
    }

    /// Registers the pools of a provider in place of those that run under its name, and begins its work.
    fn run_provider(&mut self, provider: Arc<Provider>) {
        let name = &provider.name;
        let old = self.providers.remove(name);
        let setup = provider.setup(self.scheduler.provider(name));
        if old.is_some() {
            self.scheduler.remove_provider(name);
            // What the old pools hold without nodes is for the new ones, which have other limits, perhaps.
            self.requeue_revoked();
        }
        // Nodes of a provider that did not start are not cleaned up: they could not be deleted.
        if !provider.is_unreachable {
            self.scheduler.set_provider(name, setup);
        }
        for setup in provider.pool_setups() {
            self.scheduler.set_own_pool(setup);
        }
        let limits = provider.settings.pools.iter();
        let limits = limits.map(|(pool, settings)| (pool.clone(), settings.limits.clone()));
        self.ctx.events.provider_limits(name, limits.collect());
        let ended = CancellationToken::new();
        if provider.driver.roster().is_some() {
            self.supervise(&provider, &ended, roster::run);
        }
        self.supervise(&provider, &ended, background::run);
        let pools = self.announce_pools(&provider);
        if let Some(old) = old {
            let successors = pools.values().map(|pool| pool.registration.path());
            self.ctx.tasks.spawn(old.give_way(successors.collect()));
        }
        let name = name.clone();
        let running = RunningProvider {
            provider,
            polls: CloudPolls::default(),
            pools,
            ended,
        };
        self.providers.insert(name, running);
        self.images_changed(&Change::Everything);
        self.apply_drains();
    }

    /// Spawns work that goes on until the provider has `ended`.
    fn supervise<F>(
        &self,
        provider: &Arc<Provider>,
        ended: &CancellationToken,
        run: impl Fn(Context, Arc<Provider>, CancellationToken) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let name = provider.name.clone();
        let (ctx, provider, ended) = (self.ctx.clone(), Arc::clone(provider), ended.clone());
        let work = move || run(ctx.clone(), Arc::clone(&provider), ended.clone());
        self.ctx.supervise(name, work);
    }

    fn announce_pools(&self, provider: &Provider) -> BTreeMap<PoolName, AnnouncedPool> {
        let mut pools = BTreeMap::new();
        for (name, pool) in &provider.pools {
            let mut component = PoolComponent::new(
                self.options.hostname.clone(),
                pool.id.clone(),
                name.clone(),
                provider.name.clone(),
            );
            component.state = ComponentState::Running;
            component.version = Some(self.options.version.clone());
            component.supported_labels = pool.labels().cloned().collect();
            if let Some(settings) = provider.settings.pools.get(name) {
                component.priority = settings.priority;
            }
            component.paused = provider.is_unreachable || self.is_drained(&pool.key);
            component.cluster.clone_from(&provider.cluster);
            match self.ctx.registry.components().register_pool(&component) {
                Ok(registration) => {
                    let announced = AnnouncedPool {
                        component,
                        registration,
                        waiting: false,
                    };
                    pools.insert(name.clone(), announced);
                }
                Err(error) => error!(
                    pool = %pool.key,
                    error = &error as &dyn std::error::Error,
                    "failed to register pool"
                ),
            }
        }
        pools
    }

    /// Lets the registry know whether a pool waits for room.
    pub(super) fn announce(&mut self, key: &PoolKey, waiting: bool) {
        let drained = self.is_drained(key);
        let Some(running) = self.providers.get_mut(&key.provider) else {
            return;
        };
        let is_unreachable = running.provider.is_unreachable;
        let Some(pool) = running.pools.get_mut(&key.pool) else {
            return;
        };
        pool.waiting = waiting;
        let paused = waiting || drained || is_unreachable;
        if pool.component.paused != paused {
            pool.component.paused = paused;
            pool.registration.update(&pool.component);
        }
    }

    pub(super) fn announce_all(&mut self) {
        let pools: Vec<(PoolKey, bool)> = self.pools().collect();
        for (key, waiting) in pools {
            self.announce(&key, waiting);
        }
    }

    /// Returns our pools, and whether each waits for room.
    pub(super) fn pools(&self) -> impl Iterator<Item = (PoolKey, bool)> {
        self.providers.iter().flat_map(|(provider, running)| {
            let pools = running.pools.iter();
            pools.map(|(pool, announced)| {
                (
                    PoolKey::new(provider.clone(), pool.clone()),
                    announced.waiting,
                )
            })
        })
    }

    /// Returns whether all our pools are registered. The last registered pool that declines a request fails it, so no
    /// pool declines while a provider that may be able to serve it is starting or being registered. A provider that
    /// failed to start is represented by a substitute.
    pub(super) fn is_complete(&self) -> bool {
        let mut announced = self
            .providers
            .values()
            .flat_map(|running| running.pools.values());
        let is_seen = |id| self.scheduler.registered().any(|other| other == id);
        self.has_tried_all() && announced.all(|pool| is_seen(&pool.component.id))
    }

    /// Returns whether every provider has started or failed once.
    fn has_tried_all(&self) -> bool {
        let mut starting = self.starting.keys();
        starting.all(|name| self.failed_providers.contains_key(name))
    }

    /// Returns whether a pool belongs to a provider that did not start.
    pub(super) fn is_unreachable(&self, key: &PoolKey) -> bool {
        let running = self.providers.get(&key.provider);
        running.is_some_and(|running| running.provider.is_unreachable)
    }

    pub(super) fn is_drained(&self, key: &PoolKey) -> bool {
        self.drain_of(key).is_some()
    }

    /// Applies the drains of our pools and labels.
    pub(super) fn apply_drains(&mut self) {
        let pools = self.pools().filter_map(|(key, _)| {
            let scope = self.drain_of(&key)?;
            Some((key, scope.to_string().into()))
        });
        let drains = self.drains.items().into_iter();
        let labels = drains.filter_map(|drain| match &drain.id {
            DrainScope::Label(label) => Some((label.clone(), drain.id.to_string().into())),
            _ => None,
        });
        let drains = Drains {
            pools: pools.collect(),
            labels: labels.collect(),
        };
        self.scheduler.set_drains(drains);
    }

    /// Returns the drain that applies to a whole pool.
    fn drain_of(&self, key: &PoolKey) -> Option<DrainScope> {
        if self.drains.is_empty() {
            return None;
        }
        let mut drains = self.drains.items().into_iter().map(|drain| drain.id);
        drains.find(|scope| scope.covers(&self.options.hostname, key))
    }

    /// Reports readiness after every provider has started or failed once.
    pub(super) fn note_ready(&self) {
        if self.has_tried_all() {
            self.ready
                .send_if_modified(|ready| !std::mem::replace(ready, true));
        }
    }
}

fn policy(label: &config::LabelConfig) -> LabelPolicy {
    LabelPolicy {
        min_ready: usize::try_from(label.min_ready).unwrap_or(0),
        max_ready_age: label.max_ready_age.0.map(|age| *age),
    }
}

fn tenant_limits(limits: &config::TenantLimits) -> Limits {
    let named = &limits.named;
    let named = [
        ("cores", named.max_cores),
        ("instances", named.max_servers),
        ("ram", named.max_ram),
        ("volumes", named.max_volumes),
        ("volume-gb", named.max_volume_gb),
    ];
    let named = named
        .into_iter()
        .filter_map(|(name, limit)| Some((name, limit.0?)));
    let others = limits
        .resources
        .iter()
        .map(|(name, limit)| (name.as_str(), *limit));
    named
        .chain(others)
        .map(|(name, limit)| (name.into(), quantity(limit)))
        .collect()
}
