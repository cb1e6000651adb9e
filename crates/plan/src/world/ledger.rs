//! One ledger: a limit, and what is set against it.

use nodeyard_model::{Limits, Quantity, ResourceName, Resources};

use crate::verdict::{Ledger, Sum};

/// What a pool, a provider or a tenant has in use.
#[derive(Debug, Default)]
pub(crate) struct Account {
    pub(crate) limits: Limits,
    /// Instances that are not Nodepool's.
    pub(crate) foreign: Resources,
    /// Instances of nodes that have no record. They are about to go.
    pub(crate) leaked: Resources,
    /// Nodes that have a record, in any state.
    pub(crate) used: Resources,
    /// Promised to requests whose nodes have no record yet.
    pub(crate) launching: Resources,
}

impl Account {
    /// The first limit that cannot hold `need` on top of what is in use and what is kept for others.
    ///
    /// A resource that is not needed is not asked about: a pool that is over its limit of volumes still
    /// serves labels without volumes.
    pub(crate) fn shortage(
        &self,
        kept: &Resources,
        need: &Resources,
        ledger: impl FnOnce() -> Ledger,
    ) -> Option<Sum> {
        let (resource, limit) = self.short_of(kept, need)?;
        Some(Sum {
            ledger: ledger(),
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

    /// By how much `need` exceeds what is left, for each resource where it does.
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

    /// The first limit that `need` exceeds even when nothing else runs.
    pub(crate) fn impossible(&self, need: &Resources) -> Option<(ResourceName, Quantity)> {
        self.limits.iter().find_map(|(resource, limit)| {
            let needed = need.get(resource);
            let granted = limit - self.foreign.get(resource);
            (needed > Quantity::ZERO && needed > granted).then(|| (resource.clone(), granted))
        })
    }
}
