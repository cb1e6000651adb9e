//! `driver: metastatic`: slots on nodes of other providers.
//!
//! A machine that is large or slow to boot is shared: the driver asks for a node with the backing label, as Zuul
//! would, and cuts it into slots, each of which is a node for somebody. It is provider and requestor in one; the
//! requestor's side is [`Backing`], through which alone it touches the store.
//!
//! ```text
//!    request for `slot` ──► this driver ──► request for `backing-label` ──► any other provider
//!                                │                                               │
//!                       nodes with slot 0..n  ◄──── one node, held for good ◄────┘
//! ```
//!
//! A launch claims a free slot by writing its node's id into the note on the machine, or waits for one; what it
//! waits for is an event, not a time. All decisions are in `plan`, which looks at everything anew each time: nothing
//! that matters is in memory, so it does not matter which launcher decides, or whether it is a new one.
//!
//! Two things are remembered. Which launches count on which request, so that each of them learns that it has failed
//! before the request is removed; whoever forgets it asks again. And how many slots a request needs, before all its
//! nodes have a record.

mod instance;
mod options;
mod plan;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_config::Metastatic;
use nodeyard_driver::backing::{Backing, Note, Placement, Survey};
use nodeyard_driver::{
    Capabilities, CreateOrder, Driver, Error, ErrorClass, EventKey, ExternalId, Instance, Owner,
    Readiness, Resource, ResourceKind, State, Step, Tags, Target, Wait,
};
use nodeyard_model::{
    Label, Limits, NodeId, PoolName, ProviderName, RequestId, Resources, Timestamp,
};
use tracing::info;

use options::Labels;
use plan::{Begun, Chore, Move, Picture};

/// A look in case an event was missed.
const SAFETY_NET: Duration = Duration::from_secs(60);

/// The request that each launch counts on, and the label it is for.
type Counting = BTreeMap<NodeId, (RequestId, Label)>;

/// Under which name a provider asks for nodes and holds them. Python Nodepool's.
pub fn identity(provider: &ProviderName) -> String {
    format!("NodePool:metastatic:{provider}")
}

#[derive(Debug)]
pub struct MetastaticDriver {
    owner: Owner,
    identity: String,
    labels: Labels,
    backing: Arc<dyn Backing>,
    /// One decision at a time, so that launches of one process do not get in each other's way.
    turn: tokio::sync::Mutex<()>,
    counting: Mutex<Counting>,
    begun: Mutex<Begun>,
}

impl MetastaticDriver {
    /// `backing` shows what belongs to the [`identity`] of the provider.
    pub fn new(section: &Metastatic, owner: Owner, backing: Arc<dyn Backing>) -> Self {
        Self {
            identity: identity(&owner.provider),
            owner,
            labels: options::labels(section),
            backing,
            turn: tokio::sync::Mutex::default(),
            counting: Mutex::default(),
            begun: Mutex::default(),
        }
    }

    fn counting(&self) -> MutexGuard<'_, Counting> {
        self.counting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begun(&self) -> MutexGuard<'_, Begun> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how many slots a request is for, until all its nodes have been seen.
    fn note_size(&self, order: &CreateOrder, survey: &Survey) {
        let Some(request) = order.request.id else {
            return;
        };
        let labels = order.request.labels.iter();
        let size = labels.filter(|label| **label == order.label).count();
        if size < 2 {
            return;
        }
        let mut begun = self.begun();
        let sighted = begun.entry((request, order.label.clone())).or_default();
        sighted.size = size;
        sighted.seen.insert(order.node);
        see(&mut begun, survey);
    }

    async fn take(&self, request: RequestId, label: Label, now: Timestamp) -> Result<(), Error> {
        let note = Note {
            owner: self.identity.clone(),
            slots: self.labels.get(&label).map_or(1, |label| label.slots),
            label,
            failed: false,
            launched: now,
            last_used: Some(now),
            nodes: BTreeMap::new(),
        };
        self.backing.take(request, &note).await?;
        info!(%request, label = %note.label, "a node for slots was taken");
        Ok(())
    }

    fn instance(
        &self,
        survey: &Survey,
        order: &CreateOrder,
        placement: Placement,
        checked: bool,
    ) -> Result<Instance, Error> {
        let held = survey.held.get(&placement.backing_node);
        let held = held.ok_or_else(|| Error::retry("the node of this slot has gone"))?;
        instance::instance(
            order.node,
            order.tags.to_metadata(),
            placement,
            &held.node,
            checked,
        )
    }

    /// Strikes a node off the note of the machine it is on.
    async fn vacate(&self, node: NodeId, now: Timestamp) -> Result<(), Error> {
        // Whoever claimed the slot may have died just now.
        self.backing.refresh().await?;
        let _turn = self.turn.lock().await;
        let survey = self.backing.survey().await?;
        loop {
            let vacated = {
                let survey = survey.borrow();
                let own = survey.own.get(&node).and_then(|own| own.placement);
                let placement = survey.claim_of(node).or(own);
                placement.and_then(|placement| {
                    let held = survey.held.get(&placement.backing_node)?;
                    let mut note = held.note.clone()?;
                    note.nodes.retain(|_, other| *other != node);
                    note.last_used = Some(now);
                    Some((placement.backing_node, held.version, note))
                })
            };
            let Some((on, version, note)) = vacated else {
                return Ok(());
            };
            if self.backing.write(on, version, &note).await? {
                return Ok(());
            }
        }
    }

    /// The node that carries another one gets no more of them.
    async fn condemn(&self, carried: NodeId) -> Result<(), Error> {
        let _turn = self.turn.lock().await;
        let survey = self.backing.survey().await?;
        loop {
            let condemned = {
                let survey = survey.borrow();
                let placement = survey.claim_of(carried);
                placement.and_then(|placement| {
                    let held = survey.held.get(&placement.backing_node)?;
                    let mut note = held.note.clone().filter(|note| !note.failed)?;
                    note.failed = true;
                    Some((placement.backing_node, held.version, note))
                })
            };
            let Some((node, version, note)) = condemned else {
                return Ok(());
            };
            if self.backing.write(node, version, &note).await? {
                info!(%node, slot_of = %carried, "a node for slots does not answer; it gets no more");
                return Ok(());
            }
        }
    }
}

fn changed_since(edition: u64, at_most: Duration) -> Wait {
    Wait {
        at_most,
        event: Some(EventKey::new(edition.to_string())),
    }
}

#[async_trait]
impl Driver for MetastaticDriver {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            launches: true,
            manages_images: false,
        }
    }

    /// The claims on slots.
    async fn list(&self) -> Result<Vec<Resource>, Error> {
        let survey = self.backing.survey().await?;
        let survey = survey.borrow();
        let notes = survey.held.values().filter_map(|held| held.note.as_ref());
        let claims = notes.flat_map(|note| {
            let pool = self.labels.get(&note.label).map(|label| &label.pool);
            note.nodes.values().map(move |node| Resource {
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
        Ok(claims.collect())
    }

    async fn create(
        &self,
        order: &CreateOrder,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<Instance>, Error> {
        let Some((label, options)) = self.labels.get_key_value(&order.label) else {
            let text = format!("label {} has left its provider", order.label);
            return Err(Error::permanent(text));
        };
        let node = order.node;
        let _turn = self.turn.lock().await;
        let mut survey = self.backing.survey().await?;
        loop {
            let (next, edition) = {
                let survey = survey.borrow_and_update();
                let counts_on: Option<RequestId> = state.read()?;
                self.note_size(order, &survey);
                let begun = self.begun();
                let mut picture = Picture::new(&survey, &self.labels, &begun, now);
                let next = picture.place(node, label, options, order.request.id, counts_on);
                (next, survey.edition)
            };
            match next {
                Move::Placed(placement) => {
                    self.counting().remove(&node);
                    let survey = survey.borrow();
                    let instance =
                        self.instance(&survey, order, placement, options.host_key_checking)?;
                    return Ok(Step::Done(instance));
                }
                Move::Claim { on, version, note } => {
                    self.backing.write(on, version, &note).await?;
                }
                Move::Take { request, label } => self.take(request, label, now).await?,
                Move::Ask => {
                    info!(%node, label = %options.backing_label, "a node for slots is asked for");
                    self.backing.ask(&options.backing_label).await?;
                }
                Move::Failed(request) => {
                    self.counting().remove(&node);
                    state.write(&None::<RequestId>)?;
                    let label = &options.backing_label;
                    let text = format!("no node with label {label}: request {request} has failed");
                    return Err(Error::new(ErrorClass::Capacity, text));
                }
                Move::Wait(request) => {
                    state.write(&request)?;
                    if let Some(request) = request {
                        let counts_on = (request, options.backing_label.clone());
                        self.counting().insert(node, counts_on);
                    }
                    return Ok(Step::Wait(changed_since(edition, SAFETY_NET)));
                }
            }
        }
    }

    async fn delete(
        &self,
        target: &Target,
        _: &mut State,
        now: Timestamp,
    ) -> Result<Step<()>, Error> {
        let node = match target {
            Target::Node { node, .. } => *node,
            Target::Resource { id, .. } => carried(id)?,
        };
        self.counting().remove(&node);
        self.vacate(node, now).await?;
        Ok(Step::Done(()))
    }

    /// Slots have none; their pools and the clouds below do.
    async fn limits(&self) -> Result<Limits, Error> {
        Ok(Limits::unlimited())
    }

    async fn cost(&self, _: &PoolName, label: &Label) -> Result<Resources, Error> {
        let below = self.labels.get(label).map(|label| &label.backing_label);
        if let Some(below) = below.filter(|below| self.labels.contains_key(*below)) {
            return Err(Error::permanent(format!(
                "`backing-label: {below}` is a label of the same provider; another one has to make the machines"
            )));
        }
        Ok(instance::cost())
    }

    async fn zones(&self, _: &PoolName) -> Result<Vec<Box<str>>, Error> {
        Ok(Vec::new())
    }

    async fn readiness(&self, _: &PoolName, _: &Label, _: Timestamp) -> Result<Readiness, Error> {
        Ok(Readiness::Ready)
    }

    async fn unreachable(&self, node: NodeId, _: &ExternalId) -> Result<(), Error> {
        self.condemn(node).await
    }

    async fn attend(&self, now: Timestamp) -> Result<Option<Wait>, Error> {
        let _turn = self.turn.lock().await;
        let survey = self.backing.survey().await?;
        let (chores, next, edition) = {
            let survey = survey.borrow();
            let counting = self.counting();
            let counted_on = |request| counting.values().any(|(other, _)| *other == request);
            let mut begun = self.begun();
            see(&mut begun, &survey);
            let is_known = |request| survey.own.values().any(|own| own.request == Some(request));
            begun.retain(|(request, _), sighted| sighted.unseen() > 0 && is_known(*request));
            let picture = Picture::new(&survey, &self.labels, &begun, now);
            let (chores, next) = picture.chores(counted_on);
            (chores, next, survey.edition)
        };
        for chore in chores {
            match chore {
                Chore::Take { request, label } => self.take(request, label, now).await?,
                Chore::Withdraw(request) => self.backing.withdraw(request).await?,
                Chore::GiveBack { node, version, why } => {
                    self.backing.give_back(node, version).await?;
                    info!(%node, why, "a node for slots is given back");
                }
            }
        }
        let at_most = next.map_or(SAFETY_NET, |next| next.min(SAFETY_NET));
        Ok(Some(changed_since(edition, at_most)))
    }

    fn progress(&self, node: NodeId) -> Option<String> {
        let counting = self.counting();
        let (request, label) = counting.get(&node)?;
        Some(format!(
            "node {node} waits for a node with label {label}, which request {request} asks for"
        ))
    }

    async fn event(&self, event: &EventKey) {
        let edition: Option<u64> = event.as_str().parse().ok();
        let changed = async {
            let mut survey = self.backing.survey().await.ok()?;
            let later = |survey: &Survey| Some(survey.edition) != edition;
            survey.wait_for(later).await.map(|_| ()).ok()
        };
        if changed.await.is_none() {
            // The store is closed: nothing will happen any more.
            std::future::pending::<()>().await;
        }
    }
}

/// Adds the nodes that have a record by now.
fn see(begun: &mut Begun, survey: &Survey) {
    if begun.is_empty() {
        return;
    }
    for (id, own) in &survey.own {
        if let (Some(request), Some(label)) = (own.request, &own.label)
            && let Some(sighted) = begun.get_mut(&(request, label.clone()))
        {
            sighted.seen.insert(*id);
        }
    }
}

fn carried(id: &ExternalId) -> Result<NodeId, Error> {
    let node = id.as_text().and_then(|text| text.parse().ok());
    node.ok_or_else(|| Error::permanent(format!("{id} is not the id of a node")))
}
