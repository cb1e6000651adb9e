//! The nodes: their records, what they use, and which of them are free.
//!
//! Every sum and index is kept up to date record by record, so a change costs what it touches.

mod entry;
mod excess;
mod index;
mod promise;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nodeyard_model::{
    Label, LauncherId, Node, NodeId, NodeState, ProviderName, RequestId, Resources, TenantName,
    Timestamp,
};

use super::ledger::Account;
use super::queue::MIN_READY_REQUESTOR;
use crate::setup::{PoolKey, PoolSetup, Zone};
use entry::Entry;
use promise::Promise;

/// Nodes, those longest in their state first.
pub(crate) type ByAge = BTreeSet<(Timestamp, NodeId)>;
type ByZone = BTreeMap<Option<Zone>, ByAge>;

/// The nodes of one pool, ours or not.
#[derive(Debug, Default)]
pub(crate) struct PoolBook {
    pub(crate) account: Account,
    own: Option<Own>,
    free: HashMap<Label, ByZone>,
    /// Free nodes by age.
    pub(crate) idle: ByAge,
    /// Nodes on their way out, by the time they went there.
    leaving: ByAge,
    members: BTreeSet<NodeId>,
}

/// What is known of a pool that this launcher runs.
#[derive(Debug)]
struct Own {
    id: LauncherId,
    costs: BTreeMap<Label, Resources>,
}

#[derive(Debug, Default)]
pub(crate) struct ProviderBook {
    pub(crate) account: Account,
    /// Launches that have a record.
    launching: usize,
    /// Launches that have none yet.
    promised: usize,
}

impl ProviderBook {
    pub(crate) fn launches(&self) -> usize {
        self.launching + self.promised
    }
}

/// Why a free node is not in the index of free nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    Request(RequestId),
    /// It is to make room.
    Eviction(Timestamp),
}

/// What a change of a node may let happen.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Freed {
    pub(crate) provider: Option<ProviderName>,
    pub(crate) tenant: Option<TenantName>,
}

#[derive(Debug, Default)]
pub(crate) struct Fleet {
    nodes: BTreeMap<NodeId, Entry>,
    pools: HashMap<PoolKey, PoolBook>,
    providers: HashMap<ProviderName, ProviderBook>,
    tenants: HashMap<TenantName, Account>,
    /// Nodes that nobody has. Those that are being looked at count: a lock or a claim may come to nothing.
    spare_of_label: HashMap<Label, usize>,
    claims: HashMap<NodeId, Claim>,
    promises: HashMap<RequestId, Promise>,
    allocated: HashMap<RequestId, BTreeSet<NodeId>>,
    loose: BTreeSet<NodeId>,
    held: BTreeSet<NodeId>,
    empty: BTreeSet<NodeId>,
    illegible: BTreeSet<NodeId>,
    /// Labels whose ready nodes have changed, or those that are launched to be ready.
    changed: BTreeSet<Label>,
    nothing: Resources,
}

impl Fleet {
    pub(crate) fn node(&self, id: NodeId) -> Option<&Entry> {
        self.nodes.get(&id)
    }

    pub(crate) fn pool(&self, key: &PoolKey) -> Option<&PoolBook> {
        self.pools.get(key)
    }

    pub(crate) fn provider(&self, name: &ProviderName) -> Option<&ProviderBook> {
        self.providers.get(name)
    }

    pub(crate) fn provider_mut(&mut self, name: &ProviderName) -> &mut ProviderBook {
        self.providers.entry(name.clone()).or_default()
    }

    pub(crate) fn tenant(&self, name: &TenantName) -> Option<&Account> {
        self.tenants.get(name)
    }

    pub(crate) fn tenants_mut(&mut self) -> &mut HashMap<TenantName, Account> {
        &mut self.tenants
    }

    /// What a node uses of the quotas of its pool and provider.
    pub(crate) fn charge(&self, id: NodeId) -> &Resources {
        self.nodes.get(&id).map_or(&self.nothing, |e| &e.charge)
    }

    /// What a free node adds to the tenant that takes it.
    pub(crate) fn tenant_cost(&self, id: NodeId) -> &Resources {
        let entry = self.nodes.get(&id);
        entry
            .and_then(|e| e.resources.as_ref())
            .unwrap_or(&self.nothing)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.keys().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn spare_of_label(&self, label: &Label) -> usize {
        self.spare_of_label.get(label).copied().unwrap_or(0)
    }

    /// The labels of ready nodes, and of those that are launched to be ready, that have changed since the last call.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<Label> {
        std::mem::take(&mut self.changed)
    }

    pub(crate) fn allocated_to(&self, request: RequestId) -> impl Iterator<Item = NodeId> {
        self.allocated.get(&request).into_iter().flatten().copied()
    }

    pub(crate) fn pools(&self) -> impl Iterator<Item = (&PoolKey, &PoolBook)> {
        self.pools.iter()
    }

    /// Nodes that nobody has locked, in states that somebody should have.
    pub(crate) fn loose(&self) -> impl Iterator<Item = (NodeId, &Entry)> {
        self.entries(&self.loose)
    }

    pub(crate) fn is_loose(&self, id: NodeId) -> bool {
        self.loose.contains(&id)
    }

    pub(crate) fn is_empty(&self, id: NodeId) -> bool {
        self.empty.contains(&id)
    }

    pub(crate) fn held(&self) -> impl Iterator<Item = (NodeId, &Entry)> {
        self.entries(&self.held)
    }

    pub(crate) fn empty(&self) -> impl Iterator<Item = NodeId> {
        self.empty.iter().copied()
    }

    pub(crate) fn illegible(&self) -> impl Iterator<Item = NodeId> {
        self.illegible.iter().copied()
    }

    pub(crate) fn is_illegible(&self, id: NodeId) -> bool {
        self.illegible.contains(&id)
    }

    fn entries<'a>(
        &'a self,
        ids: &'a BTreeSet<NodeId>,
    ) -> impl Iterator<Item = (NodeId, &'a Entry)> {
        ids.iter().filter_map(|id| Some((*id, self.nodes.get(id)?)))
    }

    /// Sets what is known of one of our pools, and charges its nodes anew.
    pub(crate) fn set_pool(&mut self, setup: &PoolSetup) {
        let book = self.pools.entry(setup.key.clone()).or_default();
        book.account.limits = setup.limits.clone();
        let costs =
            |(label, of): (&Label, &crate::setup::LabelSetup)| (label.clone(), of.cost.clone());
        book.own = Some(Own {
            id: setup.id.clone(),
            costs: setup.labels.iter().map(costs).collect(),
        });
        for id in book.members.clone() {
            if let Some(mut entry) = self.nodes.remove(&id) {
                self.unindex(id, &entry);
                if entry.resources.is_none() {
                    entry.charge = self.price(entry.key.as_ref(), &entry.labels);
                }
                self.index(id, &entry);
                self.nodes.insert(id, entry);
            }
        }
    }

    pub(crate) fn forget_pool(&mut self, key: &PoolKey) {
        if let Some(book) = self.pools.get_mut(key) {
            book.own = None;
            book.account.limits = nodeyard_model::Limits::unlimited();
        }
    }

    /// A record that says what is known already changes nothing, and costs a comparison: every now and then all of
    /// them are seen again.
    pub(crate) fn put(&mut self, id: NodeId, node: &Node) -> Freed {
        self.empty.remove(&id);
        self.illegible.remove(&id);
        let known = self.nodes.get(&id);
        let entry = self.entry(node, known);
        if known == Some(&entry) {
            return Freed::default();
        }
        let old = self.take(id);
        self.settle(id, &entry, old.is_none());
        let freed = self.freed(id, old.as_ref(), Some(&entry));
        self.index(id, &entry);
        self.nodes.insert(id, entry);
        freed
    }

    fn entry(&self, node: &Node, known: Option<&Entry>) -> Entry {
        let key = match (&node.provider, &node.pool) {
            (Some(provider), Some(pool)) => Some(PoolKey::new(provider.clone(), pool.clone())),
            _ => None,
        };
        let labels: Box<[Label]> = node.labels.as_slice().into();
        let charge = match &node.resources {
            Some(resources) => resources.clone(),
            None => self.price(key.as_ref(), &labels),
        };
        let is_ours = node.launcher.is_some()
            && node.launcher.as_ref() == self.own(key.as_ref()).map(|own| &own.id);
        // The pool that launches it may have been replaced by one with another id.
        let was_ours = || known.is_some_and(|known| known.launching);
        Entry {
            state: node.state,
            state_time: node.state_time,
            provider: node.provider.clone(),
            launching: matches!(node.state, NodeState::Init | NodeState::Building)
                && (is_ours || was_ours()),
            key,
            labels,
            allocated_to: node.allocated_to.clone(),
            tenant: node.tenant_name.clone(),
            hold_expiration: node.hold_expiration,
            for_min_ready: node.requestor.as_deref() == Some(MIN_READY_REQUESTOR),
            locked: known.is_some_and(|known| known.locked),
            resources: node.resources.clone(),
            charge,
            zone: node.az.as_deref().map(Zone::from),
        }
    }

    pub(crate) fn set_locked(&mut self, id: NodeId, locked: bool) -> Freed {
        if self
            .nodes
            .get(&id)
            .is_none_or(|known| known.locked == locked)
        {
            return Freed::default();
        }
        let Some(mut entry) = self.take(id) else {
            return Freed::default();
        };
        let was_idle = entry.is_idle();
        entry.locked = locked;
        self.index(id, &entry);
        let mut freed = Freed::default();
        if entry.is_idle() && !was_idle {
            freed.provider.clone_from(&entry.provider);
        }
        self.nodes.insert(id, entry);
        freed
    }

    pub(crate) fn put_empty(&mut self, id: NodeId) -> Freed {
        let freed = self.remove(id);
        self.empty.insert(id);
        freed
    }

    /// A node that was known keeps the room it took, as one that somebody has.
    pub(crate) fn put_illegible(&mut self, id: NodeId) {
        self.empty.remove(&id);
        self.illegible.insert(id);
        self.drop_claim(id);
        if let Some(mut entry) = self.take(id) {
            if entry.tenant_charge().is_none() {
                entry.tenant = None;
            }
            entry.allocated_to = None;
            entry.state = NodeState::InUse;
            entry.locked = true;
            entry.launching = false;
            self.index(id, &entry);
            self.nodes.insert(id, entry);
        }
    }

    pub(crate) fn remove(&mut self, id: NodeId) -> Freed {
        self.empty.remove(&id);
        self.illegible.remove(&id);
        let old = self.take(id);
        self.drop_claim(id);
        self.freed(id, old.as_ref(), None)
    }

    fn take(&mut self, id: NodeId) -> Option<Entry> {
        let entry = self.nodes.remove(&id)?;
        self.unindex(id, &entry);
        Some(entry)
    }

    fn freed(&self, id: NodeId, old: Option<&Entry>, new: Option<&Entry>) -> Freed {
        let mut freed = Freed::default();
        if let Some(old) = old {
            let same_room = new.is_some_and(|new| {
                old.key == new.key && old.charge == new.charge && old.launching == new.launching
            });
            if !same_room {
                freed.provider.clone_from(&old.provider);
            }
            let charged = new.and_then(Entry::tenant_charge);
            if let Some((tenant, _)) = old.tenant_charge()
                && charged != old.tenant_charge()
            {
                freed.tenant = Some(tenant.clone());
            }
        }
        if let Some(new) = new
            && new.is_idle()
            && !old.is_some_and(Entry::is_idle)
            && !self.claims.contains_key(&id)
        {
            freed.provider.clone_from(&new.provider);
        }
        freed
    }

    fn own(&self, key: Option<&PoolKey>) -> Option<&Own> {
        self.pools.get(key?)?.own.as_ref()
    }

    fn price(&self, key: Option<&PoolKey>, labels: &[Label]) -> Resources {
        let cost = || self.own(key)?.costs.get(labels.first()?);
        cost().cloned().unwrap_or_default()
    }

    /// Takes a free node out of the index until its record shows why, or the claim is dropped.
    pub(crate) fn claim(&mut self, id: NodeId, claim: Claim) {
        let Some(entry) = self.nodes.remove(&id) else {
            return;
        };
        if entry.is_idle() && !self.claims.contains_key(&id) {
            self.unindex_free(id, &entry);
        }
        self.claims.insert(id, claim);
        self.nodes.insert(id, entry);
    }

    pub(crate) fn drop_claim(&mut self, id: NodeId) {
        if self.claims.remove(&id).is_none() {
            return;
        }
        if let Some(entry) = self.nodes.remove(&id) {
            if entry.is_idle() {
                self.index_free(id, &entry);
            }
            self.nodes.insert(id, entry);
        }
    }

    /// The free nodes of a label in a pool, by zone, oldest first.
    pub(crate) fn free<'a>(
        &'a self,
        key: &PoolKey,
        label: &Label,
        zone: &Option<Zone>,
    ) -> impl Iterator<Item = NodeId> + use<'a> {
        self.free_zones(key, label)
            .and_then(|zones| zones.get(zone))
            .into_iter()
            .flatten()
            .map(|(_, id)| *id)
    }

    pub(crate) fn zones_with_free<'a>(
        &'a self,
        key: &PoolKey,
        label: &Label,
    ) -> impl Iterator<Item = &'a Option<Zone>> + use<'a> {
        self.free_zones(key, label)
            .into_iter()
            .flat_map(BTreeMap::keys)
    }

    /// The free nodes of a label in a pool, those of each zone by age.
    pub(crate) fn free_by_age(&self, key: &PoolKey, label: &Label) -> impl Iterator<Item = &ByAge> {
        let zones = self.free_zones(key, label);
        zones.into_iter().flat_map(BTreeMap::values)
    }

    fn free_zones(&self, key: &PoolKey, label: &Label) -> Option<&ByZone> {
        self.pools.get(key)?.free.get(label)
    }

    /// What comes back to a pool from the nodes that went on their way out after `since`.
    pub(crate) fn leaving(&self, key: &PoolKey, since: Timestamp) -> Resources {
        let Some(book) = self.pools.get(key) else {
            return Resources::default();
        };
        let recent = book.leaving.iter().rev();
        let leaving = recent
            .take_while(|(time, _)| *time >= since)
            .map(|(_, id)| self.charge(*id));
        let evicted = self.claims.iter().filter_map(|(id, claim)| match claim {
            Claim::Eviction(time) if *time >= since => Some(*id),
            _ => None,
        });
        leaving
            .chain(
                evicted
                    .filter(|id| book.members.contains(id))
                    .map(|id| self.charge(id)),
            )
            .sum()
    }
}
