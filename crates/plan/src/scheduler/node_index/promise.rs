//! Promises: what a request was granted before the records show it. A promise counts like a record until the record
//! arrives, so that nothing is granted twice.

use nodeyard_model::{Label, NodeId, RequestId, Resources, TenantName};

use super::{NodeClaim, NodeEntry, NodeIndex};
use crate::setup::PoolKey;
use crate::verdict::{Acceptance, NodeStep};

#[derive(Debug)]
pub(super) struct Promise {
    key: PoolKey,
    tenant: Option<TenantName>,
    launches: Vec<(Label, Resources)>,
    /// Each with what it adds to its tenant.
    reuses: Vec<(NodeId, Resources)>,
}

impl NodeIndex {
    /// Grants what `acceptance` lists, in addition to what the request was granted before.
    pub(crate) fn promise(
        &mut self,
        request: RequestId,
        tenant: Option<&TenantName>,
        acceptance: &Acceptance,
    ) {
        let mut promise = self.remove_promise(request).unwrap_or_else(|| Promise {
            key: acceptance.pool.clone(),
            tenant: tenant.cloned(),
            launches: Vec::new(),
            reuses: Vec::new(),
        });
        for step in &acceptance.steps {
            match step {
                NodeStep::Launch { label, cost } => {
                    promise.launches.push((label.clone(), cost.clone()));
                }
                NodeStep::Reuse { node, .. } => {
                    promise
                        .reuses
                        .push((*node, self.tenant_cost(*node).clone()));
                }
            }
        }
        self.insert_promise(request, promise);
    }

    fn insert_promise(&mut self, request: RequestId, promise: Promise) {
        for (_, cost) in &promise.launches {
            let Promise { key, tenant, .. } = &promise;
            let pool = self.pools.entry(key.clone()).or_default();
            pool.account.launching += cost;
            let provider = self.provider_mut(&key.provider);
            provider.account.launching += cost;
            provider.promised += 1;
            if let Some(tenant) = tenant {
                self.tenants.entry(tenant.clone()).or_default().launching += cost;
            }
        }
        for (node, cost) in &promise.reuses {
            self.claim(*node, NodeClaim::Request(request));
            if let Some(tenant) = &promise.tenant {
                self.tenants.entry(tenant.clone()).or_default().launching += cost;
            }
        }
        if !promise.launches.is_empty() || !promise.reuses.is_empty() {
            self.promises.insert(request, promise);
        }
    }

    /// Removes a promise from the accounts.
    fn remove_promise(&mut self, request: RequestId) -> Option<Promise> {
        let promise = self.promises.remove(&request)?;
        for (_, cost) in &promise.launches {
            if let Some(pool) = self.pools.get_mut(&promise.key) {
                pool.account.launching -= cost;
            }
            let provider = self.provider_mut(&promise.key.provider);
            provider.account.launching -= cost;
            provider.promised = provider.promised.saturating_sub(1);
        }
        let tenant = promise.tenant.as_ref();
        if let Some(account) = tenant.and_then(|tenant| self.tenants.get_mut(tenant)) {
            let costs = promise.launches.iter().map(|(_, cost)| cost);
            for cost in costs.chain(promise.reuses.iter().map(|(_, cost)| cost)) {
                account.launching -= cost;
            }
        }
        for (node, _) in &promise.reuses {
            self.drop_claim(*node);
        }
        Some(promise)
    }

    /// Revokes what was granted to a request and has no record. Returns the pool, if anything was revoked.
    pub(crate) fn revoke_promise(&mut self, request: RequestId) -> Option<PoolKey> {
        self.remove_promise(request).map(|promise| promise.key)
    }

    /// Replaces the part of a promise that a new record fulfils.
    pub(super) fn fulfil_promise_part(&mut self, id: NodeId, entry: &NodeEntry, new: bool) {
        if !entry.is_idle() && matches!(self.claims.get(&id), Some(NodeClaim::Eviction(_))) {
            self.claims.remove(&id);
        }
        let Some(request) = entry.request() else {
            return;
        };
        let Some(mut promise) = self.remove_promise(request) else {
            return;
        };
        let reused = promise.reuses.iter().position(|(node, _)| *node == id);
        let launched = promise
            .launches
            .iter()
            .position(|(label, _)| new && entry.labels.first() == Some(label));
        if let Some(position) = reused {
            promise.reuses.remove(position);
        } else if let Some(position) = launched {
            promise.launches.remove(position);
        }
        self.insert_promise(request, promise);
    }
}
