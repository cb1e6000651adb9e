//! `driver: metastatic`: slots on nodes of other providers.
//!
//! A machine that is large or slow to boot is shared: the driver requests a node with the backing label, as Zuul would,
//! and splits it into slots, each of which is a node. It is provider and requestor in one, and accesses the store as
//! requestor through [`Backing`] only.
//!
//! ```text
//!    request for `slot` ──► this driver ──► request for `backing-label` ──► any other provider
//!                                │                                               │
//!                       nodes with slot 0..n  ◄──── one node, kept locked ◄──────┘
//! ```
//!
//! A launch assigns a free slot to its node in the [`SlotTable`] of a backing node, or waits until there is one. `plan`
//! decides anew at each change, by the records alone, so any launcher of the provider may continue what another began.
//!
//! Two things are kept in memory: which launches wait for which request, so that each of them learns that it has failed
//! before it is deleted; and how many slots a request needs, until all its nodes have a record.

mod instance;
mod kind;
mod options;
mod plan;
mod survey;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_config::Metastatic;
use nodeyard_driver::backing::{Backing, BackingSnapshot, Placement, SlotTable};
use nodeyard_driver::{
    CreateOrder, Driver, Error, ErrorClass, ExternalId, Instance, Machines, Owner, Progress,
    Resource, ResourceKind, Tags, Target,
};
use nodeyard_model::{Clock, Label, Limits, NodeId, PoolName, ProviderName, RequestId, Resources};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{info, warn};

pub use kind::MetastaticKind;

use options::{LabelOptions, Labels};
use plan::{LaunchAction, Maintenance, PartialRequests, Planner};
use survey::SurveyCache;

/// After this time the records are examined even without a change.
const RECHECK_INTERVAL: Duration = Duration::from_secs(60);

type Snapshots = watch::Receiver<BackingSnapshot>;

/// Returns the requestor of backing nodes and the name of their lock contenders. Python Nodepool uses the same.
pub fn identity(provider: &ProviderName) -> String {
    format!("NodePool:metastatic:{provider}")
}

#[derive(Debug)]
pub struct MetastaticDriver {
    owner: Owner,
    identity: String,
    labels: Labels,
    backing: Arc<dyn Backing>,
    clock: Clock,
    /// Held while a decision is made and carried out, so that launches of one process do not compete.
    deciding: tokio::sync::Mutex<()>,
    /// The request that each launch waits for.
    awaited: Mutex<BTreeMap<NodeId, RequestId>>,
    partial: Mutex<PartialRequests>,
    surveys: SurveyCache,
}

impl MetastaticDriver {
    /// `backing` shows the records of the [`identity`] of the provider.
    pub fn new(
        section: &Metastatic,
        owner: Owner,
        backing: Arc<dyn Backing>,
        clock: Clock,
    ) -> Self {
        Self {
            identity: identity(&owner.provider),
            owner,
            labels: options::labels(section),
            backing,
            clock,
            deciding: tokio::sync::Mutex::default(),
            awaited: Mutex::default(),
            partial: Mutex::default(),
            surveys: SurveyCache::default(),
        }
    }

    fn awaited(&self) -> MutexGuard<'_, BTreeMap<NodeId, RequestId>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn partial(&self) -> MutexGuard<'_, PartialRequests> {
        self.partial.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records how many slots a request is for, until all its nodes have a record.
    fn record_size(&self, order: &CreateOrder, snapshot: &BackingSnapshot) {
        let Some(request) = order.request.id else {
            return;
        };
        let labels = order.request.labels.iter();
        let size = labels.filter(|label| **label == order.label).count();
        if size < 2 {
            return;
        }
        let mut partial = self.partial();
        let entry = partial.entry((request, order.label.clone())).or_default();
        entry.size = size;
        entry.seen.insert(order.node);
        add_seen_nodes(&mut partial, snapshot);
    }

    /// Carries out the actions of a launch. Returns None when it has to wait for a change.
    async fn launch(
        &self,
        order: &CreateOrder,
        (label, options): (&Label, &LabelOptions),
        snapshots: &mut Snapshots,
        wait: &mut Wait<'_>,
    ) -> Result<Option<Instance>, Error> {
        let _deciding = self.deciding.lock().await;
        loop {
            let action = {
                let snapshot = snapshots.borrow_and_update();
                self.record_size(order, &snapshot);
                let partial = self.partial();
                let survey = self.surveys.of(&snapshot);
                let now = self.clock.now();
                let mut planner = Planner::new(&snapshot, &survey, &self.labels, &partial, now);
                planner.launch(order.node, label, options, order.request.id, wait.request)
            };
            match action {
                LaunchAction::Done(placement) => {
                    return self
                        .instance(&snapshots.borrow(), order, placement, options)
                        .map(Some);
                }
                LaunchAction::AssignSlot {
                    backing_node,
                    version,
                    slots,
                } => {
                    self.backing
                        .write_slots(backing_node, version, &slots)
                        .await?;
                }
                LaunchAction::AcceptNode { request, label } => {
                    self.accept_node(request, label).await?;
                }
                LaunchAction::RequestNode => {
                    let label = &options.backing_label;
                    info!(node = %order.node, %label, "requesting backing node");
                    self.backing.request_node(label).await?;
                }
                LaunchAction::Fail(request) => {
                    let label = &options.backing_label;
                    let text = format!("no node with label {label}: request {request} has failed");
                    return Err(Error::new(ErrorClass::Capacity, text));
                }
                LaunchAction::Wait(request) => {
                    wait.set_request(request);
                    return Ok(None);
                }
            }
        }
    }

    async fn accept_node(&self, request: RequestId, label: Label) -> Result<(), Error> {
        let now = self.clock.now();
        let slots = SlotTable {
            owner: self.identity.clone(),
            slots: self.labels.get(&label).map_or(1, |label| label.slots),
            label,
            failed: false,
            launched: now,
            last_used: Some(now),
            nodes: BTreeMap::new(),
        };
        self.backing.accept_node(request, &slots).await?;
        info!(%request, label = %slots.label, "accepted backing node");
        Ok(())
    }

    fn instance(
        &self,
        snapshot: &BackingSnapshot,
        order: &CreateOrder,
        placement: Placement,
        options: &LabelOptions,
    ) -> Result<Instance, Error> {
        let backing = snapshot.backing_nodes.get(&placement.backing_node);
        let backing = backing.ok_or_else(|| {
            let id = placement.backing_node;
            Error::retry(format!("backing node {id} was deleted"))
        })?;
        let metadata = order.tags.to_metadata();
        let checked = options.host_key_checking;
        instance::instance(order.node, metadata, placement, &backing.node, checked)
    }

    /// Changes the slot table of the backing node that carries `node`. Returns the backing node, or None if there is
    /// none or `change` returns false.
    async fn update_slots(
        &self,
        node: NodeId,
        change: impl Fn(&mut SlotTable) -> bool + Send,
    ) -> Result<Option<NodeId>, Error> {
        let _deciding = self.deciding.lock().await;
        let snapshots = self.backing.snapshot().await?;
        loop {
            let changed = changed_slots(&snapshots.borrow(), node, &change);
            let Some((backing_node, version, slots)) = changed else {
                return Ok(None);
            };
            if self
                .backing
                .write_slots(backing_node, version, &slots)
                .await?
            {
                return Ok(Some(backing_node));
            }
        }
    }

    /// Returns when there will be more to do if nothing changes.
    async fn maintain(&self, snapshots: &mut Snapshots) -> Result<Option<Duration>, Error> {
        let _deciding = self.deciding.lock().await;
        let (actions, next) = {
            let snapshot = snapshots.borrow_and_update();
            let awaited = self.awaited();
            let is_awaited = |request| awaited.values().any(|other| *other == request);
            let mut partial = self.partial();
            add_seen_nodes(&mut partial, &snapshot);
            partial.retain(|(request, _), entry| {
                let mut nodes = snapshot.slot_nodes.values();
                entry.unseen() > 0 && nodes.any(|node| node.request == Some(*request))
            });
            let survey = self.surveys.of(&snapshot);
            let now = self.clock.now();
            let planner = Planner::new(&snapshot, &survey, &self.labels, &partial, now);
            planner.maintenance(is_awaited)
        };
        for action in actions {
            match action {
                Maintenance::AcceptNode { request, label } => {
                    self.accept_node(request, label).await?;
                }
                Maintenance::WithdrawRequest(request) => {
                    self.backing.withdraw_request(request).await?;
                }
                Maintenance::ReleaseNode {
                    node,
                    version,
                    reason,
                } => {
                    self.backing.release_node(node, version).await?;
                    info!(%node, reason, "released backing node");
                }
            }
        }
        Ok(next)
    }
}

impl Driver for MetastaticDriver {
    fn machines(&self) -> Option<&dyn Machines> {
        Some(self)
    }
}

#[async_trait]
impl Machines for MetastaticDriver {
    async fn create(&self, order: &CreateOrder, progress: &Progress) -> Result<Instance, Error> {
        let label = self.labels.get_key_value(&order.label).ok_or_else(|| {
            let label = &order.label;
            Error::permanent(format!("label {label} was removed from the configuration"))
        })?;
        let mut snapshots = self.backing.snapshot().await?;
        let mut wait = Wait {
            driver: self,
            node: order.node,
            request: None,
        };
        loop {
            let launched = self.launch(order, label, &mut snapshots, &mut wait).await?;
            if let Some(instance) = launched {
                return Ok(instance);
            }
            let backing_label = &label.1.backing_label;
            progress.set_stage(match wait.request {
                Some(request) => {
                    format!("waiting for a node with label {backing_label} (request {request})")
                }
                None => format!("waiting for a slot on a node with label {backing_label}"),
            });
            changed(&mut snapshots, RECHECK_INTERVAL).await?;
        }
    }

    async fn delete(&self, target: &Target) -> Result<(), Error> {
        let node = match target {
            Target::Node { node, .. } => *node,
            Target::Resource { id, .. } => node_id(id)?,
        };
        // A cancelled launch may have written after the last change of the snapshot.
        self.backing.refresh().await?;
        let now = self.clock.now();
        self.update_slots(node, |slots| {
            slots.nodes.retain(|_, other| *other != node);
            slots.last_used = Some(now);
            true
        })
        .await?;
        Ok(())
    }

    /// Lists the assigned slots.
    async fn list(&self) -> Result<Vec<Resource>, Error> {
        let snapshots = self.backing.snapshot().await?;
        let snapshot = snapshots.borrow();
        let tables = snapshot
            .backing_nodes
            .values()
            .filter_map(|backing| backing.slots.as_ref());
        let slots = tables.flat_map(|table| {
            let pool = self.labels.get(&table.label).map(|label| &label.pool);
            table.nodes.values().map(move |node| Resource {
                kind: ResourceKind::INSTANCES,
                id: node.to_string().as_str().into(),
                name: None,
                tags: Tags {
                    system: Some(self.owner.system.clone()),
                    provider: Some(self.owner.provider.clone()),
                    pool: pool.cloned(),
                    node: Some(*node),
                    ..Tags::default()
                },
                takes: instance::cost(),
            })
        });
        Ok(slots.collect())
    }

    /// Slots are unlimited. Pools and the backing clouds have limits.
    async fn limits(&self) -> Result<Limits, Error> {
        Ok(Limits::unlimited())
    }

    async fn cost(&self, _: &PoolName, label: &Label) -> Result<Resources, Error> {
        let backing = self.labels.get(label).map(|label| &label.backing_label);
        if let Some(backing) = backing.filter(|backing| self.labels.contains_key(*backing)) {
            return Err(Error::permanent(format!(
                "invalid `backing-label: {backing}`: a label of the same provider; choose one of another provider"
            )));
        }
        Ok(instance::cost())
    }

    async fn mark_unreachable(&self, node: NodeId, _: &ExternalId) -> Result<(), Error> {
        let marked = self
            .update_slots(node, |slots| !std::mem::replace(&mut slots.failed, true))
            .await?;
        if let Some(backing_node) = marked {
            warn!(node = %backing_node, slot_of = %node, "backing node unreachable; no new slots will be placed on it");
        }
        Ok(())
    }

    async fn run_background(&self) -> Result<(), Error> {
        let mut snapshots = self.backing.snapshot().await?;
        loop {
            let next = self.maintain(&mut snapshots).await?;
            let at_most = next.map_or(RECHECK_INTERVAL, |next| next.min(RECHECK_INTERVAL));
            changed(&mut snapshots, at_most).await?;
        }
    }
}

/// The wait of one launch. While it exists, the request that it waits for is not deleted.
struct Wait<'a> {
    driver: &'a MetastaticDriver,
    node: NodeId,
    request: Option<RequestId>,
}

impl Wait<'_> {
    fn set_request(&mut self, request: Option<RequestId>) {
        self.request = request;
        let mut awaited = self.driver.awaited();
        match request {
            Some(request) => awaited.insert(self.node, request),
            None => awaited.remove(&self.node),
        };
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.driver.awaited().remove(&self.node);
    }
}

/// Returns after the next change, or after `at_most`.
async fn changed(snapshots: &mut Snapshots, at_most: Duration) -> Result<(), Error> {
    match timeout(at_most, snapshots.changed()).await {
        Ok(Err(_)) => Err(Error::retry(
            "changes of backing nodes are no longer reported",
        )),
        Ok(Ok(())) | Err(_) => Ok(()),
    }
}

/// Returns the backing node that carries `node`, its version, and its slots after the change.
fn changed_slots(
    snapshot: &BackingSnapshot,
    node: NodeId,
    change: impl Fn(&mut SlotTable) -> bool,
) -> Option<(NodeId, i32, SlotTable)> {
    let recorded = || snapshot.slot_nodes.get(&node)?.placement;
    let placement = snapshot.placement_of(node).or_else(recorded)?;
    let backing = snapshot.backing_nodes.get(&placement.backing_node)?;
    let mut slots = backing.slots.clone()?;
    change(&mut slots).then_some((placement.backing_node, backing.version, slots))
}

/// Adds the nodes that have a record by now.
fn add_seen_nodes(partial: &mut PartialRequests, snapshot: &BackingSnapshot) {
    if partial.is_empty() {
        return;
    }
    for (id, node) in &snapshot.slot_nodes {
        if let (Some(request), Some(label)) = (node.request, &node.label)
            && let Some(entry) = partial.get_mut(&(request, label.clone()))
        {
            entry.seen.insert(*id);
        }
    }
}

fn node_id(id: &ExternalId) -> Result<NodeId, Error> {
    let node = id.as_text().and_then(|text| text.parse().ok());
    node.ok_or_else(|| Error::permanent(format!("invalid slot id {id}: not the id of a node")))
}
