//! What comes around by itself: clean-up and looks at clouds; and answers to questions.

use std::sync::Arc;

use nodeyard_driver::{Resource, ResourceKind, Target};
use nodeyard_model::{NodeState, ProviderName, RequestId, Resources, Timestamp, UploadKey};
use nodeyard_plan::leaks::{self, Leaks, Owner, Uploads};
use nodeyard_plan::{Zone, expiry, orphans};
use nodeyard_store::registry::ImageId;
use tracing::{debug, error, info, warn};

use super::{Dispatcher, Timer};
use crate::context::Context;
use crate::drain::{self, Scope};
use crate::handle::{DrainStatus, PoolStatus, Query, Status};
use crate::launch;
use crate::provider::{Provider, cloud_readiness};
use crate::report::{Inventory, Report};
use crate::settings::ImageSettings;
use crate::settle;

impl Dispatcher {
    /// Sets the clocks going.
    pub(super) fn begin_rounds(&mut self) {
        let timing = self.ctx.timing;
        self.timers.after(timing.pass, Timer::Pass);
        self.timers.after(timing.cleanup, Timer::Cleanup);
        self.timers.after(timing.cloud_check, Timer::CloudCheck);
        self.note_ready();
    }

    pub(super) fn timer(&mut self, timer: Timer) {
        match timer {
            Timer::Release(pool, request) => self.release(&pool, request),
            Timer::Retry {
                request,
                missing,
                zone,
            } => {
                if self.serving.contains_key(&request) {
                    self.retry(request, &missing, zone.as_ref());
                }
            }
            Timer::Settle(node) => {
                self.settling.remove(&node);
            }
            Timer::Recover(request) => {
                self.recovering.remove(&request);
            }
            Timer::Start(provider) => self.start_again(&provider),
            Timer::Assign(key) => {
                self.deferred.insert(key);
            }
            Timer::Pass => {
                self.feed_everything();
                self.images_changed();
                self.timers.after(self.ctx.timing.pass, Timer::Pass);
            }
            Timer::Cleanup => self.clean_up(),
            Timer::CloudCheck => {
                for provider in self.running() {
                    self.look_at_cloud(provider, false);
                }
                self.timers
                    .within(self.ctx.timing.cloud_check, Timer::CloudCheck);
            }
            Timer::Expiry => self.expire(),
            Timer::KeepReady => self.ready_nodes.pausing = false,
            Timer::Look => self.look_at_waiting(),
        }
    }

    fn running(&self) -> Vec<Arc<Provider>> {
        let running = self.providers.values();
        running
            .map(|running| Arc::clone(&running.provider))
            .collect()
    }

    fn clean_up(&mut self) {
        self.expire();
        for (node, state) in orphans::find(&self.world).nodes {
            if state == NodeState::Deleted {
                self.settle(node);
            }
        }
        for provider in self.running() {
            self.look_at_cloud(provider, true);
        }
        let ctx = self.ctx.clone();
        self.tasks.spawn(async move {
            let work = async {
                remove_old_locks(&ctx).await?;
                ctx.registry.nodes().delete_nameless_ghosts().await
            };
            let removed = tokio::select! {
                removed = work => removed,
                () = ctx.stop.cancelled() => return,
            };
            if let Err(error) = removed {
                debug!(%error, "old locks of requests or empty records could not be removed");
            }
            ctx.report(Report::CleanedUp);
        });
    }

    fn expire(&mut self) {
        let max_hold_age = self.config.borrow().max_hold_age.map(|age| *age);
        let now = self.ctx.clock.now();
        let plan = expiry::plan(&self.world, &self.labels, max_hold_age, now);
        for expired in plan.expired {
            let work = settle::retire(self.ctx.clone(), expired.node, expired.reason.to_string());
            self.tasks.spawn(work);
        }
        if let Some(at) = plan.again_at {
            self.timers.within(at.since(now), Timer::Expiry);
        }
    }

    /// A cloud has refused what we thought it had room for.
    pub(super) fn check_cloud_of(&self, request: RequestId) {
        if let Some(key) = self.world.taken_by(request) {
            self.check_cloud(&key.provider);
        }
    }

    /// A cloud is not as we thought it was.
    pub(super) fn check_cloud(&self, provider: &ProviderName) {
        if let Some(running) = self.providers.get(provider) {
            self.look_at_cloud(Arc::clone(&running.provider), false);
        }
    }

    fn look_at_cloud(&self, provider: Arc<Provider>, tidy: bool) {
        if !provider.launches() {
            return;
        }
        let ctx = self.ctx.clone();
        self.tasks.spawn(async move {
            let look = async {
                let mut readiness = Vec::new();
                let mut zones = Vec::new();
                for (pool, settings) in &provider.settings.pools {
                    if let Some(found) = told(&provider, provider.driver.zones(pool).await) {
                        let found = found.iter().map(|zone| Zone::from(&**zone));
                        zones.push((pool.clone(), found.collect()));
                    }
                    for (label, settings) in &settings.labels {
                        let driver = &*provider.driver;
                        match cloud_readiness(driver, pool, label, settings, &ctx.clock).await {
                            Ok(ready) => readiness.push((pool.clone(), label.clone(), ready)),
                            Err(error) => debug!(%pool, %label, %error, "no word about an image"),
                        }
                    }
                }
                if tidy && let Err(error) = provider.driver.tidy(ctx.clock.now()).await {
                    warn!(provider = %provider.name, %error, "a cloud could not be tidied up");
                }
                let limits = told(&provider, provider.driver.limits().await);
                let resources = told(&provider, provider.driver.list().await);
                Report::Inventory(Box::new(Inventory {
                    limits,
                    resources,
                    readiness,
                    zones,
                    provider,
                }))
            };
            tokio::select! {
                report = look => ctx.report(report),
                () = ctx.stop.cancelled() => {}
            }
        });
    }

    pub(super) fn take_inventory(&mut self, inventory: Inventory) {
        let Inventory {
            provider,
            limits,
            resources,
            readiness,
            zones,
        } = inventory;
        let provider = &provider;
        let current = self.providers.get(&provider.name);
        if !current.is_some_and(|running| Arc::ptr_eq(&running.provider, provider)) {
            return;
        }
        for (pool, zones) in zones {
            if let Some(run) = provider.pools.get(&pool) {
                self.world.set_zones(&run.key, zones);
            }
        }
        for (pool, label, readiness) in readiness {
            let Some(run) = provider.pools.get(&pool) else {
                continue;
            };
            let managed = provider
                .label(&pool, &label)
                .is_some_and(|settings| matches!(settings.image, ImageSettings::Managed(_)));
            if !managed && run.is_sound(&label) {
                self.world.set_readiness(&run.key, &label, readiness);
            }
        }
        let Some(resources) = resources else { return };
        if let Some(limits) = limits {
            let foreign = self.foreign(provider, &resources);
            self.world
                .set_provider_quota(&provider.name, provider.counted(limits), foreign);
        }
        self.remove_leaks(provider, &resources);
    }

    /// What others use of the cloud, as far as no record accounts for it.
    fn foreign(&self, provider: &Provider, resources: &[Resource]) -> Resources {
        let counted = |resource: &&Resource| {
            let node = resource
                .tags
                .node
                .filter(|_| provider.owner.owns(&resource.tags));
            node.is_none_or(|node| self.ctx.nodes.get(&node).is_none())
        };
        resources
            .iter()
            .filter(counted)
            .map(|resource| &resource.takes)
            .sum()
    }

    fn remove_leaks(&mut self, provider: &Arc<Provider>, resources: &[Resource]) {
        let uploads: Vec<UploadKey> = {
            let mut uploads = Vec::new();
            self.ctx.images.for_each(|item| {
                if let ImageId::Upload(key) = &item.id {
                    uploads.push(key.clone());
                }
            });
            uploads
        };
        let listing: Vec<leaks::Resource> = resources
            .iter()
            .filter(|resource| resource.tags.provider.as_ref() == Some(&provider.name))
            .filter_map(|resource| listed(resource, &uploads))
            .collect();
        let recorded = |key: &UploadKey| uploads.contains(key);
        let judged = leaks::judge(
            &self.world,
            self.ctx.system.as_str(),
            &provider.name,
            &listing,
            &Uploads {
                is_recorded: &recorded,
                none_recorded: uploads.is_empty(),
            },
            &mut self.sightings,
        );
        let leaked = match judged {
            Leaks::Found(leaked) => leaked,
            Leaks::NoRecords { resources } => {
                error!(
                    provider = %provider.name,
                    resources,
                    "the cloud has resources of this installation, but the store has no record at all; nothing is \
                     cleaned up there. Check that this is the right store"
                );
                return;
            }
        };
        for leak in leaked {
            let named = |resource: &&Resource| *resource.id.to_string() == *leak.id;
            let Some(resource) = resources.iter().find(named) else {
                continue;
            };
            self.ctx.events.leaked(&provider.name, &resource.kind, 1);
            self.remove_leak(Arc::clone(provider), resource);
        }
    }

    fn remove_leak(&self, provider: Arc<Provider>, resource: &Resource) {
        let target = Target::Resource {
            kind: resource.kind.clone(),
            id: resource.id.clone(),
        };
        let id = resource.id.to_string();
        let ctx = self.ctx.clone();
        self.tasks.spawn(async move {
            let removal = launch::remove(&ctx, &provider, &target, ctx.timing.delete_limit);
            let removed = tokio::select! {
                removed = removal => removed,
                () = ctx.stop.cancelled() => return,
            };
            match removed {
                Ok(()) => info!(provider = %provider.name, id, "leaked resource deleted"),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    warn!(provider = %provider.name, id, error, "a leaked resource could not be deleted");
                }
            }
        });
    }

    pub(super) fn answer(&mut self, query: Query) {
        // Whoever asked may have gone.
        match query {
            Query::Explain(request, answer) => {
                let explanation = self.explain(request);
                let _ = answer.send(self.with_progress(explanation));
            }
            Query::Status(answer) => {
                let _ = answer.send(self.status());
            }
            Query::Drain(scope, on, answer) => {
                let ctx = self.ctx.clone();
                self.tasks.spawn(async move {
                    let tree = &**ctx.registry.tree();
                    let done = if on {
                        drain::begin(tree, &scope).await
                    } else {
                        drain::end(tree, &scope).await
                    };
                    let _ = answer.send(done.map(|_| ()));
                });
            }
        }
    }

    fn status(&self) -> Status {
        let mut serving: Vec<RequestId> = self.serving.keys().copied().collect();
        serving.sort_unstable();
        let mut settling: Vec<_> = self.settling.iter().copied().collect();
        settling.sort_unstable();
        let drains = self.drains.items();
        let pools = self.pools().map(|(pool, paused)| PoolStatus {
            drained: self.is_drained(&pool),
            pool,
            paused,
        });
        let failed = self.failed_providers.iter();
        Status {
            nodes: self.world.node_count(),
            requests: self.world.request_count(),
            pools: pools.collect(),
            failed_providers: failed
                .map(|(name, why)| (name.to_string(), why.clone()))
                .collect(),
            drains: drains
                .iter()
                .map(|drain| self.drain_status(&drain.id))
                .collect(),
            serving,
            settling,
        }
    }

    fn drain_status(&self, scope: &Scope) -> DrainStatus {
        let mut nodes = 0;
        self.ctx.nodes.for_each(|node| {
            let key = node.value.provider.clone().zip(node.value.pool.clone());
            let key = key.map(|(provider, pool)| nodeyard_plan::PoolKey::new(provider, pool));
            let covered = match scope {
                Scope::Label(label) => node.value.labels.contains(label),
                _ => key.is_some_and(|key| {
                    let ours = self.providers.contains_key(&key.provider);
                    ours && scope.covers(&self.options.hostname, &key)
                }),
            };
            nodes += usize::from(covered);
        });
        let serving = self.serving.keys().filter(|id| match scope {
            Scope::Label(label) => {
                let request = self.ctx.requests.get(id);
                request.is_some_and(|request| request.value.labels.contains(label))
            }
            _ => {
                let key = self.world.taken_by(**id);
                key.is_some_and(|key| scope.covers(&self.options.hostname, key))
            }
        });
        DrainStatus {
            scope: scope.clone(),
            serving: serving.count(),
            nodes,
        }
    }
}

fn told<T>(provider: &Provider, answer: Result<T, nodeyard_driver::Error>) -> Option<T> {
    answer
        .inspect_err(|error| {
            let error = error as &dyn std::error::Error;
            warn!(provider = %provider.name, error, "a cloud does not tell what it has; what was last known counts");
        })
        .ok()
}

/// A resource as the plan sees it; none for images that are not ours to judge.
fn listed(resource: &Resource, uploads: &[UploadKey]) -> Option<leaks::Resource> {
    let tags = &resource.tags;
    let belongs_to = match (tags.node, tags.build.zip(tags.upload)) {
        (Some(node), _) => Owner::Node(node),
        (None, Some((build, upload))) => {
            let mut recorded = uploads.iter();
            match recorded.find(|key| key.build.build == build && key.upload == upload) {
                Some(key) => Owner::Upload(key.clone()),
                None => Owner::Unknown,
            }
        }
        (None, None) if resource.kind == ResourceKind::IMAGES => return None,
        (None, None) => Owner::Unknown,
    };
    Some(leaks::Resource {
        kind: resource.kind.as_str().into(),
        id: resource.id.to_string().into(),
        system: tags.system.as_ref().map(|system| system.as_str().into()),
        belongs_to,
    })
}

/// A request's lock lies beside it, so that Zuul can delete the request without looking; nobody deletes the lock with
/// it. It stays for a while, for those who still stand in line.
async fn remove_old_locks(ctx: &Context) -> nodeyard_store::Result<()> {
    let requests = ctx.registry.requests();
    let now = ctx.clock.now();
    for (id, stat) in requests.lock_dirs().await? {
        let changed = Timestamp::from_secs(stat.mtime as f64 / 1000.0).unwrap_or(now);
        let old = now.since(changed) > ctx.timing.lock_age;
        if old && ctx.requests.get(&id).is_none() && requests.get(id).await?.is_none() {
            requests.delete_lock_dir(id).await?;
        }
    }
    Ok(())
}
