//! Quota accounts: a limit, and what is counted against it.

use nodeyard_model::{Limits, Quantity, ResourceName, Resources};

use crate::verdict::{QuotaScope, QuotaShortage};

/// What a pool, a provider or a tenant has in use.
#[derive(Debug, Default)]
pub(crate) struct QuotaAccount {
    pub(crate) limits: Limits,
    /// Used by instances that are not managed.
    pub(crate) foreign: Resources,
    /// Used by instances of nodes without a record, which are about to be deleted.
    pub(crate) leaked: Resources,
    /// Nodes that have a record, in any state.
    pub(crate) used: Resources,
    /// Promised to requests whose nodes have no record yet.
    pub(crate) launching: Resources,
}

impl QuotaAccount {
    /// Returns the first limit that cannot hold `need` on top of what is in use and what is booked for others.
    ///
    /// Resources that are not needed are not checked: a pool that is over its limit of volumes still serves labels
    /// without volumes.
    pub(crate) fn shortage(
        &self,
        kept: &Resources,
        need: &Resources,
        scope: impl FnOnce() -> QuotaScope,
    ) -> Option<QuotaShortage> {
        let (resource, limit) = self.short_of(kept, need)?;
        Some(QuotaShortage {
            scope: scope(),
            resource: resource.clone(),
            limit,
            foreign: self.foreign.get(resource) + self.leaked.get(resource),
            used: self.used.get(resource),
            launching: self.launching.get(resource),
            kept: kept.get(resource),
            needed: need.get(resource),
        })
    }

    pub(crate) fn has_room(&self, kept: &Resources, need: &Resources) -> bool {
        self.short_of(kept, need).is_none()
    }

    fn short_of(&self, kept: &Resources, need: &Resources) -> Option<(&ResourceName, Quantity)> {
        self.limits.iter().find(|(resource, limit)| {
            let needed = need.get(resource);
            needed > Quantity::ZERO && self.taken(resource) + kept.get(resource) + needed > *limit
        })
    }

    fn taken(&self, resource: &ResourceName) -> Quantity {
        let unrecorded = self.foreign.get(resource) + self.leaked.get(resource);
        unrecorded + self.used.get(resource) + self.launching.get(resource)
    }

    /// Returns by how much `need` exceeds what is left, per resource.
    pub(crate) fn deficit(&self, kept: &Resources, need: &Resources) -> Resources {
        self.limits
            .iter()
            .filter_map(|(resource, limit)| {
                let needed = need.get(resource);
                let missing = self.taken(resource) + kept.get(resource) + needed - limit;
                (needed > Quantity::ZERO && missing > Quantity::ZERO)
                    .then(|| (resource.clone(), missing))
            })
            .collect()
    }

    /// Returns the first limit that `need` exceeds even when nothing else runs.
    pub(crate) fn impossible(&self, need: &Resources) -> Option<(ResourceName, Quantity)> {
        self.limits.iter().find_map(|(resource, limit)| {
            let needed = need.get(resource);
            let granted = limit - self.foreign.get(resource);
            (needed > Quantity::ZERO && needed > granted).then(|| (resource.clone(), granted))
        })
    }
}
