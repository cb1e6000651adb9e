//! Adds nodes to the sums and indexes, and removes them.

use nodeyard_model::{NodeId, NodeState};

use super::{NodeEntry, NodeIndex};

impl NodeIndex {
    pub(super) fn index(&mut self, id: NodeId, entry: &NodeEntry) {
        if let Some(provider) = &entry.provider {
            let usage = self.provider_mut(provider);
            usage.account.used += &entry.charge;
            usage.launching += usize::from(entry.launching);
        }
        if let Some((tenant, charge)) = entry.tenant_charge() {
            self.tenants.entry(tenant.clone()).or_default().used += charge;
        }
        if let Some(request) = entry.request() {
            self.allocated.entry(request).or_default().insert(id);
        }
        if let Some(key) = &entry.key {
            let usage = self.pools.entry(key.clone()).or_default();
            usage.account.used += &entry.charge;
            usage.members.insert(id);
            if entry.is_leaving() {
                usage.leaving.insert((entry.state_time, id));
            }
        }
        if entry.is_unattended() {
            self.unattended.insert(id);
        }
        if entry.state == NodeState::Hold {
            self.held.insert(id);
        }
        if entry.is_spare() {
            for label in &entry.labels {
                *self.spare_of_label.entry(label.clone()).or_default() += 1;
            }
        }
        self.note_change(entry);
        if entry.is_idle() && !self.claims.contains_key(&id) {
            self.index_free(id, entry);
        }
    }

    pub(super) fn unindex(&mut self, id: NodeId, entry: &NodeEntry) {
        if let Some(provider) = &entry.provider {
            let usage = self.provider_mut(provider);
            usage.account.used -= &entry.charge;
            usage.launching = usage.launching.saturating_sub(usize::from(entry.launching));
        }
        if let Some((tenant, charge)) = entry.tenant_charge()
            && let Some(account) = self.tenants.get_mut(tenant)
        {
            account.used -= charge;
        }
        if let Some(request) = entry.request()
            && let Some(nodes) = self.allocated.get_mut(&request)
        {
            nodes.remove(&id);
            if nodes.is_empty() {
                self.allocated.remove(&request);
            }
        }
        if let Some(usage) = entry.key.as_ref().and_then(|key| self.pools.get_mut(key)) {
            usage.account.used -= &entry.charge;
            usage.members.remove(&id);
            usage.leaving.remove(&(entry.state_time, id));
        }
        self.unattended.remove(&id);
        self.held.remove(&id);
        if entry.is_spare() {
            for label in &entry.labels {
                if let Some(count) = self.spare_of_label.get_mut(label) {
                    *count -= 1;
                }
            }
        }
        self.note_change(entry);
        if entry.is_idle() && !self.claims.contains_key(&id) {
            self.unindex_free(id, entry);
        }
    }

    fn note_change(&mut self, entry: &NodeEntry) {
        if entry.is_spare() || entry.for_min_ready {
            self.changed.extend(entry.labels.iter().cloned());
        }
    }

    pub(super) fn index_free(&mut self, id: NodeId, entry: &NodeEntry) {
        let Some(key) = &entry.key else { return };
        let place = (entry.state_time, id);
        let usage = self.pools.entry(key.clone()).or_default();
        usage.idle.insert(place);
        for label in &entry.labels {
            let zones = usage.free.entry(label.clone()).or_default();
            zones.entry(entry.zone.clone()).or_default().insert(place);
        }
    }

    pub(super) fn unindex_free(&mut self, id: NodeId, entry: &NodeEntry) {
        let Some(usage) = entry.key.as_ref().and_then(|key| self.pools.get_mut(key)) else {
            return;
        };
        let place = (entry.state_time, id);
        usage.idle.remove(&place);
        for label in &entry.labels {
            let Some(zones) = usage.free.get_mut(label) else {
                continue;
            };
            let Some(nodes) = zones.get_mut(&entry.zone) else {
                continue;
            };
            nodes.remove(&place);
            if nodes.is_empty() {
                zones.remove(&entry.zone);
            }
        }
    }
}
