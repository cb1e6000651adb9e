//! Nodes: their records, what they use, and which of them are free.
//!
//! Sums and indexes are updated record by record, so the cost of a change does not depend on the number of nodes.

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

use super::queue::MIN_READY_REQUESTOR;
use super::quota::QuotaAccount;
use crate::setup::{PoolKey, PoolSetup, ZoneName};
use entry::NodeEntry;
use promise::Promise;

/// Nodes, those longest in their state first.
pub(crate) type ByAge = BTreeSet<(Timestamp, NodeId)>;
type ByZone = BTreeMap<Option<ZoneName>, ByAge>;

/// The nodes of one pool, ours or not.
#[derive(Debug, Default)]
pub(crate) struct PoolUsage {
    pub(crate) account: QuotaAccount,
    own: Option<OwnPoolCosts>,
    free: HashMap<Label, ByZone>,
    /// Free nodes by age.
    pub(crate) idle: ByAge,
    /// Nodes in deletion, by the time it began.
    leaving: ByAge,
    members: BTreeSet<NodeId>,
}

/// The setup of a pool of this launcher.
#[derive(Debug)]
struct OwnPoolCosts {
    id: LauncherId,
    costs: BTreeMap<Label, Resources>,
}

#[derive(Debug, Default)]
pub(crate) struct ProviderUsage {
    pub(crate) account: QuotaAccount,
    /// Launches that have a record.
    launching: usize,
    /// Launches that have none yet.
    promised: usize,
}

impl ProviderUsage {
    pub(crate) fn launches(&self) -> usize {
        self.launching + self.promised
    }
}

/// Why a free node is not in the index of free nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeClaim {
    Request(RequestId),
    /// It is evicted to make room.
    Eviction(Timestamp),
}

/// What a change of a node has freed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Freed {
    pub(crate) provider: Option<ProviderName>,
    pub(crate) tenant: Option<TenantName>,
}

#[derive(Debug, Default)]
pub(crate) struct NodeIndex {
    nodes: BTreeMap<NodeId, NodeEntry>,
    pools: HashMap<PoolKey, PoolUsage>,
    providers: HashMap<ProviderName, ProviderUsage>,
    tenants: HashMap<TenantName, QuotaAccount>,
    /// The number of unallocated ready nodes. Claimed and locked ones count, since a claim or a lock may be released
    /// without use.
    spare_of_label: HashMap<Label, usize>,
    claims: HashMap<NodeId, NodeClaim>,
    promises: HashMap<RequestId, Promise>,
    allocated: HashMap<RequestId, BTreeSet<NodeId>>,
    unattended: BTreeSet<NodeId>,
    held: BTreeSet<NodeId>,
    empty: BTreeSet<NodeId>,
    unreadable: BTreeSet<NodeId>,
    /// Labels with changed ready or min-ready nodes.
    changed: BTreeSet<Label>,
    nothing: Resources,
}

impl NodeIndex {
    pub(crate) fn node(&self, id: NodeId) -> Option<&NodeEntry> {
        self.nodes.get(&id)
    }

    pub(crate) fn pool(&self, key: &PoolKey) -> Option<&PoolUsage> {
        self.pools.get(key)
    }

    pub(crate) fn provider(&self, name: &ProviderName) -> Option<&ProviderUsage> {
        self.providers.get(name)
    }

    pub(crate) fn provider_mut(&mut self, name: &ProviderName) -> &mut ProviderUsage {
        self.providers.entry(name.clone()).or_default()
    }

    pub(crate) fn tenant(&self, name: &TenantName) -> Option<&QuotaAccount> {
        self.tenants.get(name)
    }

    pub(crate) fn tenants_mut(&mut self) -> &mut HashMap<TenantName, QuotaAccount> {
        &mut self.tenants
    }

    /// Returns what a node uses of the quotas of its pool and provider.
    pub(crate) fn charge(&self, id: NodeId) -> &Resources {
        self.nodes.get(&id).map_or(&self.nothing, |e| &e.charge)
    }

    /// Returns what a free node adds to the tenant that it is allocated to.
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

    /// Returns the labels with changed ready or min-ready nodes since the last call.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<Label> {
        std::mem::take(&mut self.changed)
    }

    pub(crate) fn allocated_to(&self, request: RequestId) -> impl Iterator<Item = NodeId> {
        self.allocated.get(&request).into_iter().flatten().copied()
    }

    pub(crate) fn pools(&self) -> impl Iterator<Item = (&PoolKey, &PoolUsage)> {
        self.pools.iter()
    }

    /// Returns unlocked nodes in states that require a lock, or marked for deletion.
    pub(crate) fn unattended(&self) -> impl Iterator<Item = (NodeId, &NodeEntry)> {
        self.entries(&self.unattended)
    }

    pub(crate) fn is_unattended(&self, id: NodeId) -> bool {
        self.unattended.contains(&id)
    }

    pub(crate) fn is_empty(&self, id: NodeId) -> bool {
        self.empty.contains(&id)
    }

    pub(crate) fn held(&self) -> impl Iterator<Item = (NodeId, &NodeEntry)> {
        self.entries(&self.held)
    }

    pub(crate) fn empty(&self) -> impl Iterator<Item = NodeId> {
        self.empty.iter().copied()
    }

    pub(crate) fn unreadable(&self) -> impl Iterator<Item = NodeId> {
        self.unreadable.iter().copied()
    }

    pub(crate) fn is_unreadable(&self, id: NodeId) -> bool {
        self.unreadable.contains(&id)
    }

    fn entries<'a>(
        &'a self,
        ids: &'a BTreeSet<NodeId>,
    ) -> impl Iterator<Item = (NodeId, &'a NodeEntry)> {
        ids.iter().filter_map(|id| Some((*id, self.nodes.get(id)?)))
    }

    /// Sets the setup of one of our pools, and recomputes the charges of its nodes.
    pub(crate) fn set_pool(&mut self, setup: &PoolSetup) {
        let usage = self.pools.entry(setup.key.clone()).or_default();
        usage.account.limits = setup.limits.clone();
        let costs =
            |(label, of): (&Label, &crate::setup::LabelSetup)| (label.clone(), of.cost.clone());
        usage.own = Some(OwnPoolCosts {
            id: setup.id.clone(),
            costs: setup.labels.iter().map(costs).collect(),
        });
        for id in usage.members.clone() {
            if let Some(mut entry) = self.nodes.remove(&id) {
                self.unindex(id, &entry);
                if entry.resources.is_none() {
                    entry.charge = self.label_cost(entry.key.as_ref(), &entry.labels);
                }
                self.index(id, &entry);
                self.nodes.insert(id, entry);
            }
        }
    }

    pub(crate) fn forget_pool(&mut self, key: &PoolKey) {
        if let Some(usage) = self.pools.get_mut(key) {
            usage.own = None;
            usage.account.limits = nodeyard_model::Limits::unlimited();
        }
    }

    /// Adds or updates a node. An unchanged record costs a comparison only; all records are put again periodically.
    pub(crate) fn put(&mut self, id: NodeId, node: &Node) -> Freed {
        self.empty.remove(&id);
        self.unreadable.remove(&id);
        let known = self.nodes.get(&id);
        let entry = self.entry(node, known);
        if known == Some(&entry) {
            return Freed::default();
        }
        let old = self.take(id);
        self.fulfil_promise_part(id, &entry, old.is_none());
        let freed = self.freed(id, old.as_ref(), Some(&entry));
        self.index(id, &entry);
        self.nodes.insert(id, entry);
        freed
    }

    fn entry(&self, node: &Node, known: Option<&NodeEntry>) -> NodeEntry {
        let key = match (&node.provider, &node.pool) {
            (Some(provider), Some(pool)) => Some(PoolKey::new(provider.clone(), pool.clone())),
            _ => None,
        };
        let labels: Box<[Label]> = node.labels.as_slice().into();
        let charge = match &node.resources {
            Some(resources) => resources.clone(),
            None => self.label_cost(key.as_ref(), &labels),
        };
        let is_ours = node.launcher.is_some()
            && node.launcher.as_ref() == self.own(key.as_ref()).map(|own| &own.id);
        // The launching pool may have been replaced by one with another id.
        let was_ours = || known.is_some_and(|known| known.launching);
        NodeEntry {
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
            zone: node.az.as_deref().map(ZoneName::from),
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

    /// Marks a record as invalid. A known node keeps its charge and counts as in use.
    pub(crate) fn put_unreadable(&mut self, id: NodeId) {
        self.empty.remove(&id);
        self.unreadable.insert(id);
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
        self.unreadable.remove(&id);
        let old = self.take(id);
        self.drop_claim(id);
        self.freed(id, old.as_ref(), None)
    }

    fn take(&mut self, id: NodeId) -> Option<NodeEntry> {
        let entry = self.nodes.remove(&id)?;
        self.unindex(id, &entry);
        Some(entry)
    }

    fn freed(&self, id: NodeId, old: Option<&NodeEntry>, new: Option<&NodeEntry>) -> Freed {
        let mut freed = Freed::default();
        if let Some(old) = old {
            let same_room = new.is_some_and(|new| {
                old.key == new.key && old.charge == new.charge && old.launching == new.launching
            });
            if !same_room {
                freed.provider.clone_from(&old.provider);
            }
            let charged = new.and_then(NodeEntry::tenant_charge);
            if let Some((tenant, _)) = old.tenant_charge()
                && charged != old.tenant_charge()
            {
                freed.tenant = Some(tenant.clone());
            }
        }
        if let Some(new) = new
            && new.is_idle()
            && !old.is_some_and(NodeEntry::is_idle)
            && !self.claims.contains_key(&id)
        {
            freed.provider.clone_from(&new.provider);
        }
        freed
    }

    fn own(&self, key: Option<&PoolKey>) -> Option<&OwnPoolCosts> {
        self.pools.get(key?)?.own.as_ref()
    }

    fn label_cost(&self, key: Option<&PoolKey>, labels: &[Label]) -> Resources {
        let cost = || self.own(key)?.costs.get(labels.first()?);
        cost().cloned().unwrap_or_default()
    }

    /// Claims a free node: it is not free until its record shows the use, or the claim is dropped.
    pub(crate) fn claim(&mut self, id: NodeId, claim: NodeClaim) {
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

    /// Returns the free nodes of a label in a pool and zone, oldest first.
    pub(crate) fn free<'a>(
        &'a self,
        key: &PoolKey,
        label: &Label,
        zone: &Option<ZoneName>,
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
    ) -> impl Iterator<Item = &'a Option<ZoneName>> + use<'a> {
        self.free_zones(key, label)
            .into_iter()
            .flat_map(BTreeMap::keys)
    }

    /// Returns the free nodes of a label in a pool, per zone by age.
    pub(crate) fn free_by_age(&self, key: &PoolKey, label: &Label) -> impl Iterator<Item = &ByAge> {
        let zones = self.free_zones(key, label);
        zones.into_iter().flat_map(BTreeMap::values)
    }

    fn free_zones(&self, key: &PoolKey, label: &Label) -> Option<&ByZone> {
        self.pools.get(key)?.free.get(label)
    }

    /// Returns what a pool regains from the nodes whose deletion began after `since`.
    pub(crate) fn leaving(&self, key: &PoolKey, since: Timestamp) -> Resources {
        let Some(usage) = self.pools.get(key) else {
            return Resources::default();
        };
        let recent = usage.leaving.iter().rev();
        let leaving = recent
            .take_while(|(time, _)| *time >= since)
            .map(|(_, id)| self.charge(*id));
        let evicted = self.claims.iter().filter_map(|(id, claim)| match claim {
            NodeClaim::Eviction(time) if *time >= since => Some(*id),
            _ => None,
        });
        leaving
            .chain(
                evicted
                    .filter(|id| usage.members.contains(id))
                    .map(|id| self.charge(id)),
            )
            .sum()
    }
}
