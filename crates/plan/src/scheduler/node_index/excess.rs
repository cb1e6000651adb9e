//! Checks recorded nodes against the limits when several launchers record at once.

use nodeyard_model::{NodeId, Resources};

use super::{NodeEntry, NodeIndex, QuotaAccount};
use crate::verdict::{QuotaScope, QuotaShortage};

impl NodeIndex {
    /// Returns the first limit that the records up to and including `id` exceed.
    pub(crate) fn excess_at(&self, id: NodeId) -> Option<QuotaShortage> {
        let entry = self.nodes.get(&id)?;
        let later = || self.nodes.range(id..).skip(1).map(|(_, later)| later);
        let before = |account: &QuotaAccount, after: Resources| QuotaAccount {
            limits: account.limits.clone(),
            foreign: account.foreign.clone(),
            leaked: account.leaked.clone(),
            used: {
                let mut used = account.used.clone();
                used -= &after;
                used -= &entry.charge;
                used
            },
            launching: Resources::default(),
        };
        let check = |account: QuotaAccount, scope: QuotaScope| {
            account.shortage(&self.nothing, &entry.charge, || scope)
        };
        let key = entry.key.as_ref()?;
        let in_pool = later().filter(|e| e.key.as_ref() == Some(key));
        let in_provider = later().filter(|e| e.provider.as_ref() == Some(&key.provider));
        let pool = before(
            &self.pools.get(key)?.account,
            in_pool.map(|e| &e.charge).sum(),
        );
        let provider = before(
            &self.providers.get(&key.provider)?.account,
            in_provider.map(|e| &e.charge).sum(),
        );
        let tenant = || {
            let (tenant, _) = entry.tenant_charge()?;
            let charges = later().filter_map(NodeEntry::tenant_charge);
            let after = charges.filter(|(t, _)| *t == tenant).map(|(_, c)| c).sum();
            let account = before(self.tenants.get(tenant)?, after);
            check(account, QuotaScope::Tenant(tenant.clone()))
        };
        check(pool, QuotaScope::Pool(key.clone()))
            .or_else(|| check(provider, QuotaScope::Provider(key.provider.clone())))
            .or_else(tenant)
    }

    /// Returns the limit that a tenant exceeds with a ready node that was allocated to it.
    ///
    /// Unlike records of new nodes, those of ready ones are not written in the order of their numbers. So everything
    /// the tenant has counts, and of several that write at once all may have to revert.
    pub(crate) fn tenant_excess_at(&self, id: NodeId) -> Option<QuotaShortage> {
        let (tenant, charge) = self.nodes.get(&id)?.tenant_charge()?;
        let account = self.tenants.get(tenant)?;
        let mut used = account.used.clone();
        used -= charge;
        let others = QuotaAccount {
            limits: account.limits.clone(),
            used,
            ..QuotaAccount::default()
        };
        others.shortage(&self.nothing, charge, || QuotaScope::Tenant(tenant.clone()))
    }
}
