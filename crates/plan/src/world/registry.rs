//! The registered pools of all launchers, ours and Python's.

use std::collections::{BTreeMap, BTreeSet};

use nodeyard_model::{Label, LauncherId, PoolComponent, ProviderName};

use crate::setup::PoolKey;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registered {
    pub(crate) key: PoolKey,
    pub(crate) labels: BTreeSet<Label>,
    pub(crate) priority: i64,
    pub(crate) paused: bool,
    pub(crate) cluster: Option<Box<str>>,
}

impl Registered {
    pub(crate) fn missing<'a>(&'a self, labels: &'a [Label]) -> impl Iterator<Item = &'a Label> {
        labels.iter().filter(|label| !self.labels.contains(*label))
    }
}

/// How much a change of the registry changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Nothing,
    /// Who yields to whom.
    Precedence,
    /// Who can serve what.
    Candidates,
}

#[derive(Debug, Default)]
pub(crate) struct Registry {
    pools: BTreeMap<LauncherId, Registered>,
    /// A pool that registers again after a lost session has two entries for a while.
    entries: BTreeMap<Box<str>, LauncherId>,
    /// Of those that are registered.
    lowest_priority: Option<i64>,
}

impl Registry {
    pub(crate) fn get(&self, id: &LauncherId) -> Option<&Registered> {
        self.pools.get(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&LauncherId, &Registered)> {
        self.pools.iter()
    }

    /// Whether some pool has a lower priority number.
    pub(crate) fn precedes(&self, priority: i64) -> bool {
        self.lowest_priority.is_some_and(|lowest| lowest < priority)
    }

    fn find_lowest_priority(&mut self) {
        self.lowest_priority = self.pools.values().map(|pool| pool.priority).min();
    }

    /// The cluster of a provider, as its pools say. None if no pool of it is registered.
    pub(crate) fn cluster_of(&self, provider: &ProviderName) -> Option<Option<&str>> {
        let mut pools = self.pools.values();
        let pool = pools.find(|pool| pool.key.provider == *provider)?;
        Some(pool.cluster.as_deref())
    }

    pub(crate) fn put(&mut self, entry: &str, component: &PoolComponent) -> Change {
        let pool = Registered {
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
            Some(old) if old == pool => Change::Nothing,
            Some(old) if old.key == pool.key && old.labels == pool.labels => Change::Precedence,
            _ => Change::Candidates,
        }
    }

    pub(crate) fn remove(&mut self, entry: &str) -> Change {
        let Some(id) = self.entries.remove(entry) else {
            return Change::Nothing;
        };
        if self.entries.values().any(|other| *other == id) {
            return Change::Nothing;
        }
        self.pools.remove(&id);
        self.find_lowest_priority();
        Change::Candidates
    }

    /// The pools that have all `labels` and have not declined.
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
