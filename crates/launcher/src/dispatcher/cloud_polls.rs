//! Polls the clouds: their limits, zones and images, whether a broken label works again, and leaked resources.
//!
//! A provider has one poll at a time; requests for another one meanwhile share the next. The views are synchronized
//! after the cloud was listed and before the result is evaluated, and the record is read again before a resource is
//! deleted, so that resources created meanwhile are not treated as leaked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nodeyard_driver::{self as driver, Collected, Machines, Resource, ResourceKind, Tags, Target};
use nodeyard_driver_common::ImageSettings;
use nodeyard_model::{BuildId, Limits, NodeId, ProviderName, RequestId, Resources, UploadId};
use nodeyard_plan::leaks::{self, Leaks, ResourceOwner};
use nodeyard_plan::{PoolKey, ZoneName};
use nodeyard_store::Error;
use nodeyard_store::registry::ImageId;
use tracing::{debug, error, info, warn};

use super::Dispatcher;
use super::missing_uploads::ListedUploads;
use crate::context::Context;
use crate::launch::delete_in_cloud;
use crate::provider::{Provider, cloud_readiness, sound_cost};
use crate::report::{Inventory, TaskReport};

/// What a poll does, the most thorough last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CloudPoll {
    /// Asks for limits, zones, readiness and resources.
    List,
    /// Has the driver collect garbage as well.
    CollectGarbage,
}

/// Requests that are planned again after a poll.
type WaitingRequests = Vec<(PoolKey, RequestId)>;

/// The polls of one provider's cloud.
#[derive(Debug, Default)]
pub(super) struct CloudPolls {
    running: Option<WaitingRequests>,
    next: Option<(CloudPoll, WaitingRequests)>,
    /// Nodes that were in the cloud at the last poll, and not in the store.
    unrecorded: BTreeSet<NodeId>,
    pub(super) listed_uploads: ListedUploads,
}

impl CloudPolls {
    /// Returns false if the poll follows the one that is running.
    fn begin(&mut self, poll: CloudPoll, waiting: WaitingRequests) -> bool {
        if self.running.is_none() {
            self.running = Some(waiting);
            return true;
        }
        let (next, wait) = self.next.get_or_insert((poll, Vec::new()));
        *next = poll.max(*next);
        wait.extend(waiting);
        false
    }

    /// Returns the requests that waited for the poll that ended, and the poll that follows.
    fn finish(&mut self) -> (WaitingRequests, Option<(CloudPoll, WaitingRequests)>) {
        let waited = self.running.take();
        (waited.unwrap_or_default(), self.next.take())
    }
}

impl Dispatcher {
    /// Polls the cloud that had no room for a request, against our count.
    pub(super) fn check_cloud_of(&mut self, request: RequestId) {
        if let Some(key) = self.scheduler.taken_by(request) {
            let provider = key.provider.clone();
            self.poll_cloud(&provider, CloudPoll::List);
        }
    }

    pub(super) fn poll_clouds(&mut self, poll: CloudPoll) {
        let providers: Vec<ProviderName> = self.providers.keys().cloned().collect();
        for provider in providers {
            self.poll_cloud(&provider, poll);
        }
    }

    pub(super) fn poll_cloud(&mut self, provider: &ProviderName, poll: CloudPoll) {
        self.start_poll(provider, poll, Vec::new());
    }

    /// Polls the cloud before a request is declined for what it lacks, and plans the request again afterwards. Returns
    /// false if that was done for the request before, or the provider has no cloud.
    pub(super) fn poll_cloud_for(&mut self, key: &PoolKey, request: RequestId) -> bool {
        let running = self.providers.get(&key.provider);
        if running.is_none_or(|running| running.provider.machines().is_none()) {
            return false;
        }
        let asked = self.clouds_asked_for.entry(request).or_default();
        let first = asked.insert(key.clone());
        if first {
            self.start_poll(&key.provider, CloudPoll::List, vec![(key.clone(), request)]);
        }
        first
    }

    /// `waiting` is dropped if the provider is replaced meanwhile: the pools of its successor plan for themselves.
    fn start_poll(&mut self, provider: &ProviderName, poll: CloudPoll, waiting: WaitingRequests) {
        let Some(running) = self.providers.get_mut(provider) else {
            return;
        };
        if running.provider.machines().is_none() || !running.polls.begin(poll, waiting) {
            return;
        }
        let (ctx, provider) = (self.ctx.clone(), Arc::clone(&running.provider));
        let nothing = Inventory::nothing(Arc::clone(&provider));
        let nothing = TaskReport::Inventory(Box::new(nothing));
        let name = provider.name.clone();
        let work = async move {
            if let Some(inventory) = ctx.unless_stopped(poll_cloud(&ctx, provider, poll)).await {
                ctx.report(TaskReport::Inventory(Box::new(inventory)));
            }
        };
        self.ctx.spawn(name, work, nothing);
    }

    /// Applies the result of a poll. The world must be up to date with the views.
    pub(super) fn take_inventory(&mut self, inventory: Inventory) {
        let provider = Arc::clone(&inventory.provider);
        let running = self.providers.get_mut(&provider.name);
        let Some(running) =
            running.filter(|running| Arc::ptr_eq(&running.provider, &inventory.provider))
        else {
            return;
        };
        let (waited, next) = running.polls.finish();
        self.apply(inventory);
        for (pool, request) in waited {
            // Another pool of ours may have had it meanwhile, and this one after that.
            if self.scheduler.taken_by(request) != Some(&pool) {
                self.release(&pool, request);
            }
        }
        if let Some((poll, waiting)) = next {
            self.start_poll(&provider.name, poll, waiting);
        }
    }

    fn apply(&mut self, inventory: Inventory) {
        let Inventory {
            provider,
            limits,
            resources,
            readiness,
            mended,
            zones,
        } = inventory;
        if mended {
            self.renew(&provider);
        }
        for (pool, zones) in zones {
            if let Some(run) = provider.pools.get(&pool) {
                self.scheduler.set_zones(&run.key, zones);
            }
        }
        for (pool, label, readiness) in readiness {
            if let Some(run) = provider.pools.get(&pool) {
                self.scheduler.set_readiness(&run.key, &label, readiness);
            }
        }
        if let Some(limits) = limits {
            self.set_limits(&provider, limits);
        }
        let Some(resources) = resources else { return };
        self.count_unrecorded(&provider, &resources);
        self.remove_leaks(&provider, &resources);
        self.mark_missing_uploads(&provider, &resources);
    }

    /// Takes over the limits of a cloud, whether or not its resources could be listed.
    fn set_limits(&mut self, provider: &Provider, limits: Limits) {
        let Some(setup) = self.scheduler.provider(&provider.name) else {
            return;
        };
        let (foreign, leaked) = (setup.foreign.clone(), setup.leaked.clone());
        let limits = provider.counted(limits);
        self.scheduler
            .set_provider_quota(&provider.name, limits, foreign, leaked);
    }

    /// Counts what others use, and what has no record any more. A node may have gone between the cloud's answer and the
    /// views, so one without a record counts from the second poll on.
    fn count_unrecorded(&mut self, provider: &Provider, resources: &[Resource]) {
        let running = self.providers.get_mut(&provider.name);
        let setup = self.scheduler.provider(&provider.name);
        let (Some(running), Some(setup)) = (running, setup) else {
            return;
        };
        let limits = setup.limits.clone();
        let recorded = |node| self.scheduler.counts_node(node);
        let now = Unrecorded::among(resources, &provider.owner, recorded);
        let before = std::mem::take(&mut running.polls.unrecorded);
        let still = now.nodes.iter().filter(|(node, _)| before.contains(node));
        let leaked = still.map(|(_, takes)| takes).sum();
        running.polls.unrecorded = now.nodes.into_keys().collect();
        self.scheduler
            .set_provider_quota(&provider.name, limits, now.foreign, leaked);
    }

    fn remove_leaks(&mut self, provider: &Arc<Provider>, resources: &[Resource]) {
        let (uploads, any_upload) = self.uploads_to(&provider.name);
        let listing: Vec<leaks::FoundResource> = resources
            .iter()
            .filter(|resource| resource.tags.provider.as_ref() == Some(&provider.name))
            .filter_map(listed)
            .collect();
        let scan = leaks::LeakScan {
            system: self.ctx.system.as_str(),
            provider: &provider.name,
            listing: &listing,
            uploads: &uploads,
            any_upload,
            at: self.ctx.clock.now(),
        };
        // Regular polls are about one clean-up interval apart.
        let apart = self.ctx.timing.cleanup / 2;
        let leaked = match leaks::find_leaks(&self.scheduler, &scan, apart, &mut self.sightings) {
            Leaks::Found(leaked) => leaked,
            Leaks::NoRecords { resources } => {
                error!(
                    provider = %provider.name,
                    resources,
                    "the cloud has resources of this installation, but the store has no records; not deleting leaked \
                     resources. Check that this is the right store"
                );
                return;
            }
        };
        for leak in leaked {
            let named = |resource: &&Resource| {
                *resource.kind.as_str() == *leak.kind && *resource.id.to_string() == *leak.id
            };
            if let Some(resource) = resources.iter().find(named) {
                let work = remove(self.ctx.clone(), Arc::clone(provider), resource.clone());
                self.ctx.tasks.spawn(work);
            }
        }
    }

    /// Returns the recorded uploads to a provider, and whether there is a record of any upload.
    fn uploads_to(&self, provider: &ProviderName) -> (BTreeSet<(BuildId, UploadId)>, bool) {
        let images = &self.ctx.images;
        let mut ids = Vec::new();
        images.for_each(|item| ids.push(item.id));
        ids.extend(images.flaws().into_iter().map(|flaw| flaw.id));
        ids.extend(images.empty().into_iter().map(|(id, _)| id));
        let keys = ids.into_iter().filter_map(|id| match id {
            ImageId::Upload(key) => Some(key),
            ImageId::Build(_) => None,
        });
        let keys: Vec<_> = keys.collect();
        let here = keys.iter().filter(|key| key.provider == *provider);
        let here = here.map(|key| (key.build.build, key.upload)).collect();
        (here, !keys.is_empty())
    }
}

/// Asks the cloud, and then brings the views up to date. What could not be listed is absent.
async fn poll_cloud(ctx: &Context, provider: Arc<Provider>, poll: CloudPoll) -> Inventory {
    let mut inventory = Inventory::nothing(Arc::clone(&provider));
    let Some(machines) = provider.machines() else {
        return inventory;
    };
    check_labels(machines, &mut inventory).await;
    if poll == CloudPoll::CollectGarbage {
        collect_garbage(ctx, &provider, machines).await;
    }
    inventory.limits = ok_or_warn(&provider, machines.limits().await);
    let resources = ok_or_warn(&provider, machines.list().await);
    let synced = async {
        ctx.images.synced().await?;
        ctx.nodes.synced().await
    };
    inventory.resources = if synced.await.is_ok() {
        resources
    } else {
        None
    };
    inventory
}

/// Asks for zones, for images that are only in the cloud, and for what broken labels lacked.
async fn check_labels(machines: &dyn Machines, inventory: &mut Inventory) {
    let provider = Arc::clone(&inventory.provider);
    for (pool, settings) in &provider.settings.pools {
        let run = provider.pools.get(pool);
        if let Some(found) = ok_or_warn(&provider, machines.zones(pool).await) {
            let found = found.iter().map(|zone| ZoneName::from(&**zone));
            inventory.zones.push((pool.clone(), found.collect()));
        }
        for (label, settings) in &settings.labels {
            let answer = if run.is_some_and(|run| !run.is_sound(label)) {
                // The cloud may lack something else by now.
                sound_cost(machines, pool, label).await.map(Result::err)
            } else if let ImageSettings::Managed(_) = settings.image {
                continue;
            } else {
                let ready = cloud_readiness(machines, pool, label, settings);
                ready.await.map(Some)
            };
            match answer {
                Ok(Some(now)) => {
                    let readiness = (pool.clone(), label.clone(), now);
                    inventory.readiness.push(readiness);
                }
                Ok(None) => inventory.mended = true,
                Err(error) => debug!(%pool, %label, %error, "failed to check label in cloud"),
            }
        }
    }
}

async fn collect_garbage(ctx: &Context, provider: &Provider, machines: &dyn Machines) {
    match machines.collect_garbage().await {
        Ok(collected) => {
            for Collected { kind, count } in collected {
                ctx.events.leaked(&provider.name, &kind, count);
                info!(provider = %provider.name, %kind, count, "deleted untagged leftovers in cloud");
            }
        }
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            warn!(provider = %provider.name, error, "failed to delete untagged leftovers in cloud");
        }
    }
}

fn ok_or_warn<T>(provider: &Provider, answer: Result<T, driver::Error>) -> Option<T> {
    answer
        .inspect_err(|error| {
            let error = error as &dyn std::error::Error;
            warn!(provider = %provider.name, error, "failed to list cloud resources; using the last known state");
        })
        .ok()
}

/// What a cloud has that no record of ours counts.
#[derive(Debug, Default)]
struct Unrecorded {
    /// Used by others.
    foreign: Resources,
    /// Nodes with our tags.
    nodes: BTreeMap<NodeId, Resources>,
}

impl Unrecorded {
    fn among(
        resources: &[Resource],
        owner: &driver::Owner,
        recorded: impl Fn(NodeId) -> bool,
    ) -> Self {
        let mut found = Self::default();
        for Resource { tags, takes, .. } in resources {
            match node_of(tags, owner) {
                Some(node) if recorded(node) => {}
                // Only what has our name on it is ours to remove.
                Some(node) if tags.system.is_some() => {
                    *found.nodes.entry(node).or_default() += takes;
                }
                _ => found.foreign += takes,
            }
        }
        found
    }
}

/// Returns the node of tags of ours. Nodes of Python Nodepool have no system in their tags, but have records, too.
fn node_of(tags: &Tags, owner: &driver::Owner) -> Option<NodeId> {
    let system = tags.system.as_ref();
    let here = tags.provider.as_ref() == Some(&owner.provider)
        && system.is_none_or(|system| *system == owner.system);
    tags.node.filter(|_| here)
}

/// Returns a resource as the plan sees it. None for images without tags: those may belong to others.
fn listed(resource: &Resource) -> Option<leaks::FoundResource> {
    let tags = &resource.tags;
    let belongs_to = match (tags.node, tags.build.zip(tags.upload)) {
        (Some(node), _) => ResourceOwner::Node(node),
        (None, Some((build, upload))) => ResourceOwner::Upload(build, upload),
        (None, None) if resource.kind == ResourceKind::IMAGES => return None,
        (None, None) => ResourceOwner::Unknown,
    };
    Some(leaks::FoundResource {
        kind: resource.kind.as_str().into(),
        id: resource.id.to_string().into(),
        system: tags.system.as_ref().map(|system| system.as_str().into()),
        belongs_to,
    })
}

/// Deletes a leaked resource if the store still has no record of it.
async fn remove(ctx: Context, provider: Arc<Provider>, resource: Resource) {
    let id = resource.id.to_string();
    let work = async {
        match is_recorded(&ctx, &provider.name, &resource.tags).await {
            Ok(false) => {}
            Ok(true) => {
                debug!(provider = %provider.name, id, "leaked resource has a record; not deleting it");
                return;
            }
            Err(error) => {
                debug!(provider = %provider.name, id, %error, "failed to look up record of leaked resource; retrying later");
                return;
            }
        }
        let Some(machines) = provider.machines() else {
            return;
        };
        ctx.events.leaked(&provider.name, &resource.kind, 1);
        let target = Target::Resource {
            kind: resource.kind.clone(),
            id: resource.id.clone(),
        };
        match delete_in_cloud(machines, &target, ctx.timing.delete_limit).await {
            Ok(()) => info!(provider = %provider.name, id, "deleted leaked resource"),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                warn!(provider = %provider.name, id, error, "failed to delete leaked resource");
            }
        }
    };
    ctx.unless_stopped(work).await;
}

/// Returns whether the store has a record of what carries these tags, at this moment.
async fn is_recorded(
    ctx: &Context,
    provider: &ProviderName,
    tags: &Tags,
) -> nodeyard_store::Result<bool> {
    ctx.registry.tree().sync().await?;
    if let Some(node) = tags.node {
        return match ctx.registry.nodes().get(node).await {
            Ok(record) => {
                Ok(record.is_some_and(|record| record.value.provider.as_ref() == Some(provider)))
            }
            Err(Error::Malformed { .. }) => Ok(true),
            Err(error) => Err(error),
        };
    }
    match tags.build.zip(tags.upload) {
        Some((build, upload)) => {
            let images = ctx.registry.images();
            images.knows_upload(build, provider, upload).await
        }
        None => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_record_is_told_apart_from_what_others_have() {
        let owner = driver::Owner {
            system: driver::SystemId::new("us"),
            provider: ProviderName::new("cloud").unwrap(),
        };
        let node = |id: &str| id.parse::<NodeId>().unwrap();
        let resource = |system: Option<&str>, provider: &str, of: &str, cores: i64| Resource {
            kind: ResourceKind::INSTANCES,
            id: of.into(),
            name: None,
            tags: Tags {
                system: system.map(driver::SystemId::new),
                provider: ProviderName::new(provider).ok(),
                node: Some(node(of)),
                ..Tags::default()
            },
            takes: Resources::new(cores, 1, 0),
        };
        let listed = [
            resource(Some("us"), "cloud", "0000000001", 1),
            resource(Some("us"), "cloud", "0000000002", 2),
            // Python's, one with a record; the other may be of any system.
            resource(None, "cloud", "0000000001", 4),
            resource(None, "cloud", "0000000003", 8),
            resource(Some("them"), "cloud", "0000000001", 16),
            resource(Some("us"), "elsewhere", "0000000001", 32),
        ];
        let recorded = |id| id == node("0000000001");
        let found = Unrecorded::among(&listed, &owner, recorded);
        assert_eq!(found.foreign, Resources::new(56, 3, 0));
        let nodes: Vec<_> = found.nodes.into_iter().collect();
        let two = (node("0000000002"), Resources::new(2, 1, 0));
        assert_eq!(nodes, [two]);
    }

    #[test]
    fn of_all_who_want_a_look_meanwhile_one_is_made_for_all() {
        let key = PoolKey::new(ProviderName::new("cloud").unwrap(), "main".into());
        let requests = ["200-0000000001", "200-0000000002", "200-0000000003"];
        let [one, two, three] = requests.map(|id| vec![(key.clone(), id.parse().unwrap())]);
        let mut polls = CloudPolls::default();
        assert!(polls.begin(CloudPoll::List, one.clone()));
        assert!(!polls.begin(CloudPoll::List, two.clone()));
        assert!(!polls.begin(CloudPoll::CollectGarbage, Vec::new()));
        assert!(!polls.begin(CloudPoll::List, three.clone()));
        // A request during a poll waits for the next one.
        let (waited, next) = polls.finish();
        assert_eq!(waited, one);
        assert_eq!(
            next,
            Some((CloudPoll::CollectGarbage, [two, three].concat()))
        );
        assert!(polls.begin(CloudPoll::CollectGarbage, Vec::new()));
        assert_eq!(polls.finish(), (Vec::new(), None));
        assert!(polls.begin(CloudPoll::List, Vec::new()));
    }
}
