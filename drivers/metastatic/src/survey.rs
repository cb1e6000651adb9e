//! Which slots are occupied and which nodes wait for one, by a snapshot.
//!
//! Every launch that waits looks at each snapshot, so the survey of a snapshot is made once for all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use nodeyard_driver::backing::{BackingSnapshot, Placement};
use nodeyard_model::{Label, NodeId, RequestId, Timestamp};

#[derive(Debug, Clone, Default)]
pub(crate) struct Survey {
    /// The occupied slots of each backing node.
    pub(crate) occupied: BTreeMap<NodeId, BTreeSet<u32>>,
    /// The slots that the slot tables name.
    pub(crate) placements: BTreeMap<NodeId, Placement>,
    /// Nodes without a slot, by label.
    pub(crate) waiting: BTreeMap<Label, BTreeSet<NodeId>>,
    pub(crate) groups: BTreeMap<(Label, RequestId), RequestGroup>,
}

/// The nodes of a request that have or need slots of one label.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RequestGroup {
    pub(crate) placed: usize,
    pub(crate) waiting: usize,
    pub(crate) created: Option<Timestamp>,
}

/// The survey of the last snapshot.
#[derive(Debug, Default)]
pub(crate) struct SurveyCache(Mutex<Option<(u64, Arc<Survey>)>>);

impl SurveyCache {
    pub(crate) fn of(&self, snapshot: &BackingSnapshot) -> Arc<Survey> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((revision, survey)) = &*last
            && *revision == snapshot.revision
        {
            return Arc::clone(survey);
        }
        let survey = Arc::new(Survey::of(snapshot));
        *last = Some((snapshot.revision, Arc::clone(&survey)));
        survey
    }
}

impl Survey {
    fn of(snapshot: &BackingSnapshot) -> Self {
        let mut survey = Self::default();
        for (id, backing) in &snapshot.backing_nodes {
            let nodes = backing.slots.iter().flat_map(|table| &table.nodes);
            for (slot, node) in nodes {
                survey.occupied.entry(*id).or_default().insert(*slot);
                let placement = Placement {
                    backing_node: *id,
                    slot: *slot,
                };
                survey.placements.entry(*node).or_insert(placement);
            }
        }
        for (id, slot_node) in &snapshot.slot_nodes {
            if let Some(placement) = slot_node.placement {
                let slots = survey.occupied.entry(placement.backing_node).or_default();
                slots.insert(placement.slot);
            }
            let is_placed = slot_node.placement.is_some() || survey.placements.contains_key(id);
            let Some(label) = slot_node
                .label
                .as_ref()
                .filter(|_| is_placed || slot_node.launching)
            else {
                continue;
            };
            if !is_placed {
                survey.waiting.entry(label.clone()).or_default().insert(*id);
            }
            if let Some(request) = slot_node.request {
                let group = survey.groups.entry((label.clone(), request)).or_default();
                group.placed += usize::from(is_placed);
                group.waiting += usize::from(!is_placed);
                group.created = group.created.or(slot_node.created);
            }
        }
        survey
    }

    pub(crate) fn is_waiting(&self, label: &Label, node: NodeId) -> bool {
        let waiting = self.waiting.get(label);
        waiting.is_some_and(|waiting| waiting.contains(&node))
    }

    /// Adds a node without a slot, and without a record if it has a `request`.
    pub(crate) fn add_waiting(&mut self, label: &Label, node: NodeId, request: Option<RequestId>) {
        self.waiting.entry(label.clone()).or_default().insert(node);
        if let Some(request) = request {
            let group = self.groups.entry((label.clone(), request)).or_default();
            group.waiting += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_survey_of_a_snapshot_is_made_once() {
        let cache = SurveyCache::default();
        let mut snapshot = BackingSnapshot::default();
        let first = cache.of(&snapshot);
        assert!(Arc::ptr_eq(&first, &cache.of(&snapshot)));
        snapshot.revision += 1;
        assert!(!Arc::ptr_eq(&first, &cache.of(&snapshot)));
    }
}
