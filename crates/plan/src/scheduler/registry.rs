//! The registered pools of all launchers, Python ones included.

use std::collections::{BTreeMap, BTreeSet};

use nodeyard_model::{Label, LauncherId, PoolComponent, ProviderName};

use crate::setup::PoolKey;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RegisteredPool {
    pub(crate) key: PoolKey,
    pub(crate) labels: BTreeSet<Label>,
    pub(crate) priority: i64,
    pub(crate) paused: bool,
    pub(crate) cluster: Option<Box<str>>,
}

impl RegisteredPool {
    pub(crate) fn missing<'a>(&'a self, labels: &'a [Label]) -> impl Iterator<Item = &'a Label> {
        labels.iter().filter(|label| !self.labels.contains(*label))
    }
}

/// The effect of a change of the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RegistryChange {
    Nothing,
    /// Which pools yield to which.
    Precedence,
    /// Which pools can serve which labels.
    Candidates,
}

#[derive(Debug, Default)]
pub(crate) struct PoolRegistry {
    pools: BTreeMap<LauncherId, RegisteredPool>,
    /// Entry names with their pools. A pool that registers again after a lost session has two entries for a while.
    entries: BTreeMap<Box<str>, LauncherId>,
    /// The lowest priority number of all registered pools.
    lowest_priority: Option<i64>,
}

impl PoolRegistry {
    pub(crate) fn get(&self, id: &LauncherId) -> Option<&RegisteredPool> {
        self.pools.get(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&LauncherId, &RegisteredPool)> {
        self.pools.iter()
    }

    /// Returns whether some pool has a lower priority number.
    pub(crate) fn precedes(&self, priority: i64) -> bool {
        self.lowest_priority.is_some_and(|lowest| lowest < priority)
    }

    fn find_lowest_priority(&mut self) {
        self.lowest_priority = self.pools.values().map(|pool| pool.priority).min();
    }

    /// Returns the cluster of a provider according to its pools. None if no pool of it is registered.
    pub(crate) fn cluster_of(&self, provider: &ProviderName) -> Option<Option<&str>> {
        let mut pools = self.pools.values();
        let pool = pools.find(|pool| pool.key.provider == *provider)?;
        Some(pool.cluster.as_deref())
    }

    pub(crate) fn put(&mut self, entry: &str, component: &PoolComponent) -> RegistryChange {
        let pool = RegisteredPool {
            key: PoolKey::new(component.provider_name.clone(), component.name.clone()),
            labels: component.supported_labels.iter().cloned().collect(),
            priority: component.priority,
            paused: component.paused,
            cluster: component.cluster.clone(),
        };
        self.entries.insert(entry.into(), component.id.clone());
        let old = self.pools.insert(component.id.clone(), pool.clone());
        self.find_lowest_priority();
        match old {
            Some(old) if old == pool => RegistryChange::Nothing,
            Some(old) if old.key == pool.key && old.labels == pool.labels => {
                RegistryChange::Precedence
            }
            _ => RegistryChange::Candidates,
        }
    }

    pub(crate) fn remove(&mut self, entry: &str) -> RegistryChange {
        let Some(id) = self.entries.remove(entry) else {
            return RegistryChange::Nothing;
        };
        if self.entries.values().any(|other| *other == id) {
            return RegistryChange::Nothing;
        }
        self.pools.remove(&id);
        self.find_lowest_priority();
        RegistryChange::Candidates
    }

    /// Returns the pools that have all `labels` and have not declined.
    pub(crate) fn candidates(
        &self,
        labels: &[Label],
        declined_by: &BTreeSet<LauncherId>,
    ) -> Vec<LauncherId> {
        self.pools
            .iter()
            .filter(|(id, pool)| {
                !declined_by.contains(*id) && pool.missing(labels).next().is_none()
            })
            .map(|(id, _)| id.clone())
            .collect()
    }
}
