//! Keeps a ready node registered for every place of a driver that does not launch.
//!
//! One launcher at a time does this per provider, the one that holds the roster lock of the provider below
//! `/nodeyard`. A place is occupied while any record names it, in any state. When the record is deleted, the machine
//! is inspected and a new record made. An unreachable machine is inspected again later.
//!
//! A malformed record occupies its previous place, or the first that matches its readable parts; one without a
//! readable provider occupies none.

mod remains;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use nodeyard_driver::{Identity, Place, Sighting};
use nodeyard_model::{
    ConnectionPort, LauncherId, Node, NodeId, NodeState, Opaque, Record as _, layout,
};
use nodeyard_plan::protocol::node::ObservedState;
use nodeyard_store::lock::LockGuard;
use nodeyard_store::registry::{NodeShape, Patience};
use nodeyard_store::view::{Change, Changes, Item};
use nodeyard_store::{CreateMode, Error, Result, TreePath, ext};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::commit::{commit, set_node, unlock};
use crate::context::Context;
use crate::provider::Provider;
use crate::settle;
use remains::Remains;

/// The launcher name that Nodepool uses for nodes of static machines.
const LAUNCHER: &str = "static driver";

/// Runs until `ended`.
pub(crate) async fn run(ctx: Context, provider: Arc<Provider>, ended: CancellationToken) {
    let work = async {
        loop {
            match keep(&ctx, &provider).await {
                Err(Error::Closed) => return,
                Err(error) if error.is_connection() => {
                    debug!(%error, "lost connection to the store while keeping roster");
                }
                Err(error) => warn!(
                    provider = %provider.name,
                    error = &error as &dyn std::error::Error,
                    "failed to keep nodes of provider up to date; retrying"
                ),
                Ok(()) => {}
            }
            tokio::time::sleep(
                ctx.timing
                    .start_retry
                    .min(std::time::Duration::from_secs(1)),
            )
            .await;
        }
    };
    tokio::select! {
        () = work => {}
        () = ended.cancelled() => {}
        () = ctx.stop.cancelled() => {}
    }
}

async fn keep(ctx: &Context, provider: &Arc<Provider>) -> Result<()> {
    let dir = TreePath::new(format!("{}/rosters/{}", layout::NODEYARD, provider.name))?;
    let guard = ctx.registry.locks().lock(dir).acquire().await?;
    ext::ensure_path(&**guard.tree(), &TreePath::new(layout::NODES)?).await?;
    let changes = ctx.nodes.changes();
    ctx.nodes.synced().await?;
    let keeper = Keeper::new(ctx, provider, &guard, changes);
    let result = keeper.run().await;
    guard.release().await?;
    result
}

/// The index of a place in the list of the driver.
type PlaceIndex = usize;

struct Keeper<'a> {
    ctx: &'a Context,
    provider: &'a Arc<Provider>,
    guard: &'a LockGuard,
    changes: Changes<NodeId>,
    places: &'a [Place],
    index: HashMap<(Identity, i64), PlaceIndex>,
    /// The records of each place.
    taken: Vec<BTreeSet<NodeId>>,
    node_place: HashMap<NodeId, PlaceIndex>,
    /// Places with an inspection in progress or scheduled.
    registering: HashSet<PlaceIndex>,
    work: FuturesUnordered<BoxFuture<'a, RosterEvent>>,
    /// Free places to inspect.
    vacant: BTreeSet<PlaceIndex>,
    /// Nodes without a place in the configuration.
    surplus: BTreeSet<NodeId>,
    /// Free nodes that differ from the configuration.
    outdated: BTreeSet<NodeId>,
    warned: HashSet<PlaceIndex>,
}

/// The result of an inspection or a pause.
enum RosterEvent {
    Registered(PlaceIndex, NodeId),
    Failed(PlaceIndex, nodeyard_driver::Error),
    Pause(PlaceIndex),
    Updated,
    Store(Error),
}

impl<'a> Keeper<'a> {
    fn new(
        ctx: &'a Context,
        provider: &'a Arc<Provider>,
        guard: &'a LockGuard,
        changes: Changes<NodeId>,
    ) -> Self {
        let places = provider
            .driver
            .roster()
            .map_or(&[][..], |roster| roster.places());
        let key = |place: &Place| (place.machine.clone(), place.slot);
        let index = places
            .iter()
            .enumerate()
            .map(|(index, place)| (key(place), index));
        Self {
            ctx,
            provider,
            guard,
            changes,
            places,
            index: index.collect(),
            taken: vec![BTreeSet::new(); places.len()],
            node_place: HashMap::new(),
            registering: HashSet::new(),
            work: FuturesUnordered::new(),
            vacant: (0..places.len()).collect(),
            surplus: BTreeSet::new(),
            outdated: BTreeSet::new(),
            warned: HashSet::new(),
        }
    }

    async fn run(mut self) -> Result<()> {
        self.update_all();
        loop {
            self.start_registrations();
            self.retire_surplus();
            tokio::select! {
                change = self.changes.next() => match change {
                    Some(Change::Ids(ids)) => ids.into_iter().for_each(|id| self.update_node(id)),
                    Some(Change::Everything) => self.update_all(),
                    None => return Err(Error::Closed),
                },
                Some(event) = self.work.next() => self.handle_event(event)?,
                () = self.guard.lost() => return Ok(()),
            }
        }
    }

    fn update_all(&mut self) {
        let mut ids: BTreeSet<NodeId> = self.node_place.keys().copied().collect();
        ids.extend(self.surplus.iter().copied());
        self.ctx.nodes.for_each(|node| {
            ids.insert(node.id);
        });
        ids.into_iter().for_each(|id| self.update_node(id));
        // The place of a malformed record depends on the places of the others.
        for flaw in self.ctx.nodes.flaws() {
            self.update_node(flaw.id);
        }
    }

    /// Updates the place and the classification of one node.
    fn update_node(&mut self, id: NodeId) {
        let ours = |node: &Node| node.provider.as_ref() == Some(&self.provider.name);
        let place = match self.ctx.nodes.get(&id).map(|item| item.value) {
            Some(node) if ours(&node) => self.place_of(id, &node),
            Some(_) => None,
            None => {
                let flaw = self.ctx.nodes.flaw(&id);
                flaw.and_then(|flaw| self.place_of_malformed(id, &flaw.data))
            }
        };
        let before = self.node_place.get(&id).copied();
        if before != place {
            if let Some(taken) = before.and_then(|index| self.taken.get_mut(index)) {
                taken.remove(&id);
            }
            match place {
                Some(place) => self.node_place.insert(id, place),
                None => self.node_place.remove(&id),
            };
            if let Some(taken) = place.and_then(|index| self.taken.get_mut(index)) {
                taken.insert(id);
            }
            for index in before.into_iter().chain(place) {
                if self.taken.get(index).is_some_and(BTreeSet::is_empty) {
                    self.vacant.insert(index);
                } else {
                    self.vacant.remove(&index);
                }
            }
        }
        let others = before.into_iter().chain(place);
        let others = others.filter_map(|index| self.taken.get(index));
        let affected: BTreeSet<NodeId> = others.flatten().copied().chain([id]).collect();
        for id in affected {
            self.classify(id);
        }
    }

    /// Classifies an idle node as surplus or outdated. Of several records for one place one is kept: the one in use,
    /// else the oldest.
    fn classify(&mut self, id: NodeId) {
        self.surplus.remove(&id);
        self.outdated.remove(&id);
        let Some(node) = self.ctx.nodes.get(&id) else {
            return;
        };
        let ours = node.value.provider.as_ref() == Some(&self.provider.name);
        if !ours || !is_idle(&node) {
            return;
        }
        let place = self.node_place.get(&id).copied();
        let place = place.and_then(|index| self.places.get(index).zip(self.taken.get(index)));
        let Some((place, taken)) = place else {
            self.surplus.insert(id);
            return;
        };
        let busy = |other: &NodeId| {
            let other = self.ctx.nodes.get(other);
            other.is_some_and(|other| is_used(&other.value))
        };
        let mut readable = taken
            .iter()
            .filter(|other| self.ctx.nodes.get(other).is_some());
        if readable.next() != Some(&id) || taken.iter().any(busy) {
            self.surplus.insert(id);
        } else if !is_up_to_date(&node.value, place, self.attributes(place)) {
            self.outdated.insert(id);
        }
    }

    /// Returns the place that a record names. A record without a slot gets the first free one.
    fn place_of(&self, id: NodeId, node: &Node) -> Option<PlaceIndex> {
        let machine = identity(node)?;
        if let Some(slot) = node.slot {
            return self.index.get(&(machine, slot)).copied();
        }
        if let Some(place) = self.node_place.get(&id) {
            return Some(*place);
        }
        let mut places = self.places.iter().enumerate();
        let free = |index: PlaceIndex| self.taken.get(index).is_some_and(BTreeSet::is_empty);
        places
            .find(|(index, place)| place.machine == machine && free(*index))
            .map(|(index, _)| index)
    }

    /// Returns the place of a malformed record: the previous one, or one that matches.
    fn place_of_malformed(&self, id: NodeId, data: &[u8]) -> Option<PlaceIndex> {
        if let Some(place) = self.node_place.get(&id) {
            return Some(*place);
        }
        let remains = Remains::of(&self.provider.name, data)?;
        let places = self.places.iter().enumerate();
        let fitting = places.filter(|(_, place)| remains.fits(place));
        fitting.map(|(index, _)| index).min_by_key(|index| {
            self.taken
                .get(*index)
                .is_some_and(|taken| !taken.is_empty())
        })
    }

    fn attributes(&self, place: &Place) -> &'a Opaque {
        static NULL: Opaque = Opaque::NULL;
        let pool = self.provider.settings.pools.get(&place.pool);
        pool.map_or(&NULL, |pool| &pool.attributes)
    }

    fn start_registrations(&mut self) {
        // The slots of a machine are registered in their order.
        let mut previous: HashMap<&Identity, oneshot::Receiver<()>> = HashMap::new();
        for index in std::mem::take(&mut self.vacant) {
            let Some(place) = self.places.get(index) else {
                continue;
            };
            if self.registering.insert(index) {
                let (registered, next) = oneshot::channel();
                let turn = RegistrationTurn {
                    previous: previous.insert(&place.machine, next),
                    _registered: registered,
                };
                let work = register(self.ctx, self.provider, self.guard, (index, place), turn);
                self.work.push(Box::pin(work));
            }
        }
        for id in std::mem::take(&mut self.outdated) {
            let place = self
                .node_place
                .get(&id)
                .and_then(|index| self.places.get(*index));
            if let Some(place) = place {
                self.work
                    .push(Box::pin(update(self.ctx, self.provider, id, place)));
            }
        }
    }

    fn retire_surplus(&mut self) {
        for id in std::mem::take(&mut self.surplus) {
            let Some(seen) = as_ready(self.ctx, id) else {
                continue;
            };
            let why = "the configuration has no place for it".to_owned();
            settle::spawn_retire(self.ctx, id, seen, why);
        }
    }

    fn handle_event(&mut self, event: RosterEvent) -> Result<()> {
        match event {
            RosterEvent::Registered(index, id) => {
                self.registering.remove(&index);
                self.warned.remove(&index);
                self.update_node(id);
                self.recheck_vacant(index);
            }
            RosterEvent::Failed(index, error) => {
                if let Some(place) = self.places.get(index)
                    && self.warned.insert(index)
                {
                    warn!(
                        machine = %place.machine,
                        error = &error as &dyn std::error::Error,
                        "failed to register machine; retrying"
                    );
                }
                let until = Instant::now() + self.ctx.timing.start_retry;
                self.work.push(Box::pin(async move {
                    sleep_until(until).await;
                    RosterEvent::Pause(index)
                }));
            }
            RosterEvent::Pause(index) => {
                self.registering.remove(&index);
                self.recheck_vacant(index);
            }
            RosterEvent::Updated => {}
            RosterEvent::Store(error) => return Err(error),
        }
        Ok(())
    }

    /// Marks a place as vacant if it became free during its inspection.
    fn recheck_vacant(&mut self, index: PlaceIndex) {
        if self.taken.get(index).is_some_and(BTreeSet::is_empty) {
            self.vacant.insert(index);
        }
    }
}

/// Returns the observed state of an idle node that is to be deleted.
fn as_ready(ctx: &Context, id: NodeId) -> Option<ObservedState> {
    let node = ctx.nodes.get(&id)?;
    Some(ObservedState::ready(node.value.state_time))
}

fn is_idle(node: &Item<NodeShape>) -> bool {
    node.value.state == NodeState::Ready && node.value.allocated_to.is_none() && !node.locked
}

/// Returns whether a node is in use or about to be.
fn is_used(node: &Node) -> bool {
    match node.state {
        NodeState::InUse | NodeState::Hold | NodeState::Testing => true,
        NodeState::Ready => node.allocated_to.is_some(),
        _ => false,
    }
}

async fn inspect(provider: &Provider, place: &Place) -> Result<Sighting, nodeyard_driver::Error> {
    match provider.driver.roster() {
        Some(roster) => roster.inspect(place).await,
        None => Err(nodeyard_driver::Error::unsupported("inspect machines")),
    }
}

/// The turn of a slot among those of its machine.
struct RegistrationTurn {
    /// Dropped when the slot before this one is registered, or failed to be.
    previous: Option<oneshot::Receiver<()>>,
    /// Dropped when the turn is over.
    _registered: oneshot::Sender<()>,
}

async fn register(
    ctx: &Context,
    provider: &Provider,
    guard: &LockGuard,
    (index, place): (PlaceIndex, &Place),
    mut turn: RegistrationTurn,
) -> RosterEvent {
    let sighting = match inspect(provider, place).await {
        Ok(sighting) => sighting,
        Err(error) => return RosterEvent::Failed(index, error),
    };
    if let Some(previous) = turn.previous.take() {
        let _dropped = previous.await;
    }
    let mut node = Node::init(ctx.clock.now());
    node.set_state(NodeState::Ready, ctx.clock.now());
    describe(&mut node, provider, place, sighting);
    let created = async {
        // Through the guard, so that no record of ours appears after another launcher holds the roster lock.
        let path = TreePath::new(layout::NODES)?.unnamed_child();
        let data = Bytes::from(node.to_json());
        let created = guard
            .tree()
            .create(&path, data, CreateMode::PersistentSequential)
            .await?;
        Ok((created.path.name().parse::<NodeId>(), created.stat))
    };
    match created.await {
        Ok((Ok(id), stat)) => {
            info!(node = %id, machine = %place.machine, slot = place.slot, "registered node");
            ctx.nodes.wrote(id, Arc::new(node), stat);
            prepare_lock(ctx, guard, id);
            RosterEvent::Registered(index, id)
        }
        Ok((Err(_), _)) => RosterEvent::Store(Error::Closed),
        Err(error) => RosterEvent::Store(error),
    }
}

/// Creates the lock directory of a node in advance.
fn prepare_lock(ctx: &Context, guard: &LockGuard, id: NodeId) {
    let (tree, stopped) = (Arc::clone(guard.tree()), ctx.clone());
    ctx.tasks.spawn(async move {
        // If this fails, the first contender creates it.
        if let Ok(path) = TreePath::new(layout::node_lock(id)) {
            let made = tree.create(&path, Bytes::new(), CreateMode::Persistent);
            let _ = stopped.unless_stopped(made).await;
        }
    });
}

/// Updates a free node to the configuration.
async fn update(ctx: &Context, provider: &Provider, id: NodeId, place: &Place) -> RosterEvent {
    let work = async {
        let Some(seen) = as_ready(ctx, id) else {
            return Ok(());
        };
        let sighting = match inspect(provider, place).await {
            Ok(sighting) => sighting,
            // Its next registration reports the error while it lasts.
            Err(error) => {
                settle::retire(ctx.clone(), id, seen, error.to_string()).await;
                return Ok(());
            }
        };
        let Some(held) = ctx.registry.nodes().lock(id, Patience::None).await?.held() else {
            return Ok(());
        };
        if held.value.state != NodeState::Ready || held.value.allocated_to.is_some() {
            return held.guard.release().await;
        }
        let mut node = held.value.clone();
        describe(&mut node, provider, place, sighting);
        let ops = vec![set_node(id, &node, held.stat.version)?, unlock(&held.guard)];
        commit(&held.guard, ops).await?;
        held.guard.forget();
        info!(node = %id, machine = %place.machine, "updated node");
        Ok(())
    };
    match work.await {
        Ok(()) => RosterEvent::Updated,
        Err(error) => RosterEvent::Store(error),
    }
}

/// Returns whether a record matches the configuration. It may have more host keys.
fn is_up_to_date(node: &Node, place: &Place, attributes: &Opaque) -> bool {
    node.labels == place.labels
        && node.pool.as_ref() == Some(&place.pool)
        && node.slot == Some(place.slot)
        && node.connection_type.as_deref() == Some(&*place.connection_type)
        && node.shell_type.as_deref() == place.shell_type.as_deref()
        && node.python_path.as_deref() == Some(&*place.python_path)
        && node.attributes.text() == attributes.text()
        && place
            .host_keys
            .iter()
            .all(|key| node.host_keys.contains(key))
}

fn describe(node: &mut Node, provider: &Provider, place: &Place, sighting: Sighting) {
    let machine = &place.machine;
    let pool = provider.settings.pools.get(&place.pool);
    node.labels.clone_from(&place.labels);
    node.provider = Some(provider.name.clone());
    node.pool = Some(place.pool.clone());
    node.launcher = Some(LauncherId::new(LAUNCHER));
    node.external_id = Opaque::string(&machine.name);
    node.hostname = Some(machine.name.clone());
    node.interface_ip = Some(machine.name.clone());
    node.public_ipv4 = sighting.public_ipv4;
    node.public_ipv6 = sighting.public_ipv6;
    node.host_keys = sighting.host_keys;
    node.username = Some((&*machine.username).into());
    node.connection_port = ConnectionPort::Number(machine.port);
    node.connection_type = Some((&*place.connection_type).into());
    node.shell_type = place.shell_type.as_deref().map(Into::into);
    node.python_path = Some((&*place.python_path).into());
    node.attributes = pool.map_or(Opaque::NULL, |pool| pool.attributes.clone());
    node.slot = Some(place.slot);
}

/// Returns the machine of a record.
pub(crate) fn identity(node: &Node) -> Option<Identity> {
    let ConnectionPort::Number(port) = node.connection_port else {
        return None;
    };
    Some(Identity {
        name: node
            .hostname
            .clone()
            .or_else(|| node.interface_ip.clone())?,
        username: node.username.as_deref()?.into(),
        port,
    })
}
