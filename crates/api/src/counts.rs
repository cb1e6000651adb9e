//! Counts of nodes and requests, computed once for Prometheus, statsd and the HTTP API.

use std::collections::{BTreeMap, HashMap, HashSet};

use nodeyard_model::{Label, NodeState, PoolName, ProviderName, RequestState};

use crate::views::StatusViews;

/// Counts of nodes and requests. Providers and labels of registered pools are listed even without nodes.
#[derive(Debug, Default)]
pub struct RecordCounts {
    pub nodes: NodeStateCounts,
    pub by_provider: BTreeMap<ProviderName, NodeStateCounts>,
    /// A node counts for each of its labels.
    pub by_label: BTreeMap<Label, NodeStateCounts>,
    pub requests: BTreeMap<RequestState, u64>,
    /// For each pool, the requests in any state all of whose labels it supports.
    pub addressable: BTreeMap<(ProviderName, PoolName), u64>,
}

/// The number of nodes in each state.
#[derive(Debug, Clone, Copy, Default)]
pub struct NodeStateCounts([u64; NodeState::ALL.len()]);

impl NodeStateCounts {
    fn add(&mut self, state: NodeState) {
        if let Some(count) = self.0.get_mut(state as usize) {
            *count += 1;
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (NodeState, u64)> {
        NodeState::ALL.iter().copied().zip(self.0)
    }
}

impl RecordCounts {
    /// Counts the records in `views`.
    pub fn take(views: &StatusViews) -> Self {
        let mut counts = Self::default();
        let pools = views.pools.items();
        for pool in &pools {
            let provider = pool.value.provider_name.clone();
            counts.by_provider.entry(provider).or_default();
            for label in &pool.value.supported_labels {
                counts.by_label.entry(label.clone()).or_default();
            }
        }
        views.nodes.for_each(|item| {
            let state = item.value.state;
            counts.nodes.add(state);
            if let Some(provider) = &item.value.provider {
                let nodes = counts.by_provider.entry(provider.clone()).or_default();
                nodes.add(state);
            }
            for label in &item.value.labels {
                counts.by_label.entry(label.clone()).or_default().add(state);
            }
        });

        // Many requests ask for the same labels.
        let requests = views.requests.items();
        let mut asked: HashMap<&[Label], u64> = HashMap::new();
        counts.requests = RequestState::ALL.iter().map(|state| (*state, 0)).collect();
        for request in &requests {
            *asked.entry(&request.value.labels).or_default() += 1;
            *counts.requests.entry(request.value.state).or_default() += 1;
        }
        for pool in &pools {
            let supported: HashSet<&Label> = pool.value.supported_labels.iter().collect();
            let served = |labels: &[Label]| labels.iter().all(|label| supported.contains(label));
            let fitting = asked.iter().filter(|(labels, _)| served(labels));
            let key = (pool.value.provider_name.clone(), pool.value.name.clone());
            counts
                .addressable
                .insert(key, fitting.map(|(_, count)| count).sum());
        }
        counts
    }
}
