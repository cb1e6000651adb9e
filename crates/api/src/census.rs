//! How many there are of everything, counted once for Prometheus and for statsd.

use std::collections::{BTreeMap, HashMap, HashSet};

use nodeyard_model::{Label, NodeState, PoolName, ProviderName, RequestState};

use crate::views::Views;

/// Providers and labels of registered pools are in it even where they have no nodes.
#[derive(Debug, Default)]
pub struct Census {
    pub nodes: PerState,
    pub by_provider: BTreeMap<ProviderName, PerState>,
    /// A node counts for each of its labels.
    pub by_label: BTreeMap<Label, PerState>,
    pub requests: BTreeMap<RequestState, u64>,
    /// Requests in any state whose labels a pool has, all of them.
    pub addressable: BTreeMap<(ProviderName, PoolName), u64>,
}

/// Nodes in each state.
#[derive(Debug, Clone, Copy, Default)]
pub struct PerState([u64; NodeState::ALL.len()]);

impl PerState {
    fn add(&mut self, state: NodeState) {
        if let Some(count) = self.0.get_mut(state as usize) {
            *count += 1;
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (NodeState, u64)> {
        NodeState::ALL.iter().copied().zip(self.0)
    }
}

impl Census {
    pub fn take(views: &Views) -> Self {
        let mut census = Self::default();
        let pools = views.pools.items();
        for pool in &pools {
            let provider = pool.value.provider_name.clone();
            census.by_provider.entry(provider).or_default();
            for label in &pool.value.supported_labels {
                census.by_label.entry(label.clone()).or_default();
            }
        }
        views.nodes.for_each(|item| {
            let state = item.value.state;
            census.nodes.add(state);
            if let Some(provider) = &item.value.provider {
                let nodes = census.by_provider.entry(provider.clone()).or_default();
                nodes.add(state);
            }
            for label in &item.value.labels {
                census.by_label.entry(label.clone()).or_default().add(state);
            }
        });

        // Many requests ask for the same.
        let requests = views.requests.items();
        let mut asked: HashMap<&[Label], u64> = HashMap::new();
        census.requests = RequestState::ALL.iter().map(|state| (*state, 0)).collect();
        for request in &requests {
            *asked.entry(&request.value.labels).or_default() += 1;
            *census.requests.entry(request.value.state).or_default() += 1;
        }
        for pool in &pools {
            let supported: HashSet<&Label> = pool.value.supported_labels.iter().collect();
            let served = |labels: &[Label]| labels.iter().all(|label| supported.contains(label));
            let fitting = asked.iter().filter(|(labels, _)| served(labels));
            let key = (pool.value.provider_name.clone(), pool.value.name.clone());
            census
                .addressable
                .insert(key, fitting.map(|(_, count)| count).sum());
        }
        census
    }
}
