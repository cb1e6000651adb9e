//! Keeps a ready node for every place of a driver that does not launch.
//!
//! One launcher at a time does this for a provider: whoever holds the provider's lock below `/nodeyard`. A place is
//! taken as long as any record names it, whatever its state; when the record goes, the machine is looked at
//! and a new record made. A machine that does not answer is looked at again later.
//!
//! A malformed record takes the place that it took before, or the first that fits what can be read of it; one that does
//! not even say its provider takes none.

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
use nodeyard_plan::protocol::node::Seen;
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

/// What Nodepool calls the launcher of nodes that nobody launched.
const LAUNCHER: &str = "static driver";

/// Works until `ended`.
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

/// Which place: an index into the driver's list.
type Index = usize;

struct Keeper<'a> {
    ctx: &'a Context,
    provider: &'a Arc<Provider>,
    guard: &'a LockGuard,
    changes: Changes<NodeId>,
    places: &'a [Place],
    index: HashMap<(Identity, i64), Index>,
    /// The records of each place.
    taken: Vec<BTreeSet<NodeId>>,
    node_place: HashMap<NodeId, Index>,
    /// Places that are looked at, or will be later.
    looking: HashSet<Index>,
    looks: FuturesUnordered<BoxFuture<'a, Look>>,
    /// Free places to look at.
    vacant: BTreeSet<Index>,
    /// Nodes for which the configuration has no place.
    surplus: BTreeSet<NodeId>,
    /// Free nodes that the configuration describes otherwise.
    outdated: BTreeSet<NodeId>,
    complaints: HashSet<Index>,
}

/// A look at a machine has ended.
enum Look {
    Registered(Index, NodeId),
    Failed(Index, nodeyard_driver::Error),
    Pause(Index),
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
            looking: HashSet::new(),
            looks: FuturesUnordered::new(),
            vacant: (0..places.len()).collect(),
            surplus: BTreeSet::new(),
            outdated: BTreeSet::new(),
            complaints: HashSet::new(),
        }
    }

    async fn run(mut self) -> Result<()> {
        self.count_all();
        loop {
            self.begin_looks();
            self.let_go();
            tokio::select! {
                change = self.changes.next() => match change {
                    Some(Change::Ids(ids)) => ids.into_iter().for_each(|id| self.count(id)),
                    Some(Change::Everything) => self.count_all(),
                    None => return Err(Error::Closed),
                },
                Some(look) = self.looks.next() => self.looked(look)?,
                () = self.guard.lost() => return Ok(()),
            }
        }
    }

    fn count_all(&mut self) {
        let mut ids: BTreeSet<NodeId> = self.node_place.keys().copied().collect();
        ids.extend(self.surplus.iter().copied());
        self.ctx.nodes.for_each(|node| {
            ids.insert(node.id);
        });
        ids.into_iter().for_each(|id| self.count(id));
        // Which place a malformed one takes depends on those that the others name.
        for flaw in self.ctx.nodes.flaws() {
            self.count(flaw.id);
        }
    }

    /// Brings what we know of one node up to date.
    fn count(&mut self, id: NodeId) {
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
            self.judge(id);
        }
    }

    /// Whether an idle node has to go, or to be described anew. Of several records for one place one stays: the one
    /// that is in use, else the oldest.
    fn judge(&mut self, id: NodeId) {
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
        let mut legible = taken
            .iter()
            .filter(|other| self.ctx.nodes.get(other).is_some());
        if legible.next() != Some(&id) || taken.iter().any(busy) {
            self.surplus.insert(id);
        } else if !agrees(&node.value, place, self.attributes(place)) {
            self.outdated.insert(id);
        }
    }

    /// The place a record names. One without a slot takes the first that is free.
    fn place_of(&self, id: NodeId, node: &Node) -> Option<Index> {
        let machine = identity(node)?;
        if let Some(slot) = node.slot {
            return self.index.get(&(machine, slot)).copied();
        }
        if let Some(place) = self.node_place.get(&id) {
            return Some(*place);
        }
        let mut places = self.places.iter().enumerate();
        let free = |index: Index| self.taken.get(index).is_some_and(BTreeSet::is_empty);
        places
            .find(|(index, place)| place.machine == machine && free(*index))
            .map(|(index, _)| index)
    }

    /// The place that a malformed record took when it could be read, or one that it may have.
    fn place_of_malformed(&self, id: NodeId, data: &[u8]) -> Option<Index> {
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

    fn begin_looks(&mut self) {
        // The slots of a machine are registered in their order.
        let mut previous: HashMap<&Identity, oneshot::Receiver<()>> = HashMap::new();
        for index in std::mem::take(&mut self.vacant) {
            let Some(place) = self.places.get(index) else {
                continue;
            };
            if self.looking.insert(index) {
                let (registered, next) = oneshot::channel();
                let turn = RegistrationTurn {
                    previous: previous.insert(&place.machine, next),
                    _registered: registered,
                };
                let work = register(self.ctx, self.provider, self.guard, (index, place), turn);
                self.looks.push(Box::pin(work));
            }
        }
        for id in std::mem::take(&mut self.outdated) {
            let place = self
                .node_place
                .get(&id)
                .and_then(|index| self.places.get(*index));
            if let Some(place) = place {
                self.looks
                    .push(Box::pin(update(self.ctx, self.provider, id, place)));
            }
        }
    }

    fn let_go(&mut self) {
        for id in std::mem::take(&mut self.surplus) {
            let Some(seen) = as_ready(self.ctx, id) else {
                continue;
            };
            let why = "the configuration has no place for it".to_owned();
            settle::spawn_retire(self.ctx, id, seen, why);
        }
    }

    fn looked(&mut self, look: Look) -> Result<()> {
        match look {
            Look::Registered(index, id) => {
                self.looking.remove(&index);
                self.complaints.remove(&index);
                self.count(id);
                self.look_again(index);
            }
            Look::Failed(index, error) => {
                if let Some(place) = self.places.get(index)
                    && self.complaints.insert(index)
                {
                    warn!(
                        machine = %place.machine,
                        error = &error as &dyn std::error::Error,
                        "failed to register machine; retrying"
                    );
                }
                let until = Instant::now() + self.ctx.timing.start_retry;
                self.looks.push(Box::pin(async move {
                    sleep_until(until).await;
                    Look::Pause(index)
                }));
            }
            Look::Pause(index) => {
                self.looking.remove(&index);
                self.look_again(index);
            }
            Look::Updated => {}
            Look::Store(error) => return Err(error),
        }
        Ok(())
    }

    /// A place may have become free while it was looked at.
    fn look_again(&mut self, index: Index) {
        if self.taken.get(index).is_some_and(BTreeSet::is_empty) {
            self.vacant.insert(index);
        }
    }
}

/// What an idle node is taken for when it is to go.
fn as_ready(ctx: &Context, id: NodeId) -> Option<Seen> {
    let node = ctx.nodes.get(&id)?;
    Some(Seen::ready(node.value.state_time))
}

fn is_idle(node: &Item<NodeShape>) -> bool {
    node.value.state == NodeState::Ready && node.value.allocated_to.is_none() && !node.locked
}

/// Somebody has it, or will have it in a moment.
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
        None => Err(nodeyard_driver::Error::unsupported("look at machines")),
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
    (index, place): (Index, &Place),
    mut turn: RegistrationTurn,
) -> Look {
    let sighting = match inspect(provider, place).await {
        Ok(sighting) => sighting,
        Err(error) => return Look::Failed(index, error),
    };
    if let Some(previous) = turn.previous.take() {
        let _dropped = previous.await;
    }
    let mut node = Node::init(ctx.clock.now());
    node.set_state(NodeState::Ready, ctx.clock.now());
    describe(&mut node, provider, place, sighting);
    let created = async {
        // Through the guard: whoever keeps this roster next does not see a record of ours appear later.
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
            Look::Registered(index, id)
        }
        Ok((Err(_), _)) => Look::Store(Error::Closed),
        Err(error) => Look::Store(error),
    }
}

/// Makes the directory of a node's lock before anybody waits for it.
fn prepare_lock(ctx: &Context, guard: &LockGuard, id: NodeId) {
    let (tree, stopped) = (Arc::clone(guard.tree()), ctx.clone());
    ctx.tasks.spawn(async move {
        // Whoever locks the node makes it if this fails.
        if let Ok(path) = TreePath::new(layout::node_lock(id)) {
            let made = tree.create(&path, Bytes::new(), CreateMode::Persistent);
            let _ = stopped.unless_stopped(made).await;
        }
    });
}

/// Writes what the configuration says now to a free node.
async fn update(ctx: &Context, provider: &Provider, id: NodeId, place: &Place) -> Look {
    let work = async {
        let Some(seen) = as_ready(ctx, id) else {
            return Ok(());
        };
        let sighting = match inspect(provider, place).await {
            Ok(sighting) => sighting,
            // Whoever registers it again says what is wrong, for as long as it is.
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
        Ok(()) => Look::Updated,
        Err(error) => Look::Store(error),
    }
}

/// Whether a record says what the configuration says. Host keys may be more than the configuration knows.
fn agrees(node: &Node, place: &Place, attributes: &Opaque) -> bool {
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

/// Which machine a record is about.
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
