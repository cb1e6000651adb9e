//! Builds a recipe for a list of labels: which free nodes to reuse and what to launch.

use std::collections::{BTreeSet, HashMap, HashSet};

use nodeyard_model::{Label, NodeId, Resources};

use crate::scheduler::node_index::NodeIndex;
use crate::setup::{PoolSetup, Supply, ZoneName};
use crate::verdict::{CapacityShortage, NodeStep};

/// The labels of a request, and which nodes may be reused.
pub(crate) struct RecipeInput<'a> {
    pub(crate) labels: &'a [Label],
    pub(crate) reuse: bool,
    /// The zone of nodes that the request has already.
    pub(crate) zone: Option<&'a ZoneName>,
    /// Free nodes that are booked for other requests.
    pub(crate) kept: &'a HashSet<NodeId>,
    pub(crate) seed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Recipe {
    /// One for each label, in order; without those for which no machine is free.
    pub(crate) steps: Vec<NodeStep>,
    pub(crate) zone: Option<ZoneName>,
    pub(crate) launch_cost: Resources,
    pub(crate) launches: usize,
    /// What the reused nodes add to the tenant.
    pub(crate) reuse_cost: Resources,
    pub(crate) reused: Vec<NodeId>,
    pub(crate) missing: Option<CapacityShortage>,
}

/// Returns the recipe with the most reused nodes in one zone. The seed selects among equals.
pub(crate) fn recipe(node_index: &NodeIndex, pool: &PoolSetup, wanted: &RecipeInput<'_>) -> Recipe {
    let (zone, nodes) = choose_nodes(node_index, pool, wanted);
    let mut recipe = Recipe {
        zone: zone.or_else(|| wanted.zone.cloned()),
        ..Recipe::default()
    };
    for (label, node) in wanted.labels.iter().zip(nodes) {
        let setup = pool.labels.get(label);
        if let Some(node) = node {
            recipe.reuse_cost += node_index.tenant_cost(node);
            recipe.reused.push(node);
            let label = label.clone();
            recipe.steps.push(NodeStep::Reuse { label, node });
        } else if let Some(setup) = setup.filter(|setup| setup.supply == Supply::Launched) {
            recipe.launch_cost += &setup.cost;
            recipe.launches += 1;
            recipe.steps.push(NodeStep::Launch {
                label: label.clone(),
                cost: setup.cost.clone(),
            });
        } else if recipe.missing.is_none() {
            recipe.missing = Some(CapacityShortage::Machines {
                label: label.clone(),
                needed: wanted.labels.iter().filter(|l| *l == label).count(),
                free: free_machines(node_index, pool, wanted, label),
            });
        }
    }
    if recipe.zone.is_none() && recipe.launches > 0 {
        recipe.zone = pick(&pool.zones, wanted.seed).cloned();
    }
    recipe
}

fn free_machines(
    node_index: &NodeIndex,
    pool: &PoolSetup,
    wanted: &RecipeInput<'_>,
    label: &Label,
) -> usize {
    node_index
        .zones_with_free(&pool.key, label)
        .flat_map(|zone| node_index.free(&pool.key, label, zone))
        .filter(|node| !wanted.kept.contains(node))
        .count()
}

fn pick<T>(choices: &[T], seed: u64) -> Option<&T> {
    let count = u64::try_from(choices.len()).ok()?;
    let index = seed.checked_rem(count)?;
    choices.get(usize::try_from(index).ok()?)
}

/// Returns the free nodes to reuse, one entry per label, and their zone.
fn choose_nodes(
    node_index: &NodeIndex,
    pool: &PoolSetup,
    wanted: &RecipeInput<'_>,
) -> (Option<ZoneName>, Vec<Option<NodeId>>) {
    let none = || vec![None; wanted.labels.len()];
    if !wanted.reuse {
        return (None, none());
    }
    let bound = |label: &Label| pool.labels.get(label).is_some_and(|setup| setup.bound);
    let distinct: BTreeSet<&Label> = wanted.labels.iter().filter(|label| !bound(label)).collect();
    let zones: BTreeSet<&Option<ZoneName>> = distinct
        .iter()
        .flat_map(|label| node_index.zones_with_free(&pool.key, label))
        .filter(|zone| wanted.zone.is_none_or(|fixed| zone.as_ref() == Some(fixed)))
        .collect();
    let matches: Vec<_> = zones
        .into_iter()
        .map(|zone| {
            let nodes = match_nodes(wanted.labels, |label| {
                let bound = bound(label);
                node_index
                    .free(&pool.key, label, zone)
                    .filter(move |node| !bound && !wanted.kept.contains(node))
            });
            (nodes.iter().flatten().count(), zone, nodes)
        })
        .collect();
    let most = matches.iter().map(|(count, ..)| *count).max().unwrap_or(0);
    if most == 0 {
        return (None, none());
    }
    let best: Vec<_> = matches
        .iter()
        .filter(|(count, ..)| *count == most)
        .collect();
    match pick(&best, wanted.seed) {
        Some((_, zone, nodes)) => ((*zone).clone(), nodes.clone()),
        None => (None, none()),
    }
}

/// Returns a maximum matching of nodes to labels. Nodes may have several labels, so a matched node can move to another
/// label.
fn match_nodes<I: Iterator<Item = NodeId>>(
    labels: &[Label],
    nodes_of: impl Fn(&Label) -> I,
) -> Vec<Option<NodeId>> {
    let mut matching = Matching {
        labels,
        nodes_of,
        owner: HashMap::new(),
    };
    for (place, label) in labels.iter().enumerate() {
        if let Some(node) = matching.find(label, &mut HashSet::new()) {
            matching.owner.insert(node, place);
        }
    }
    let mut result = vec![None; labels.len()];
    for (node, place) in matching.owner {
        if let Some(slot) = result.get_mut(place) {
            *slot = Some(node);
        }
    }
    result
}

struct Matching<'a, F> {
    labels: &'a [Label],
    nodes_of: F,
    owner: HashMap<NodeId, usize>,
}

impl<'a, I, F> Matching<'a, F>
where
    I: Iterator<Item = NodeId>,
    F: Fn(&Label) -> I,
{
    /// Finds a node for `label` that is free, or that its owner can exchange for another. Owners with the same label
    /// are equivalent, so each label is tried once.
    fn find(&mut self, label: &'a Label, tried: &mut HashSet<&'a Label>) -> Option<NodeId> {
        if !tried.insert(label) {
            return None;
        }
        let free = (self.nodes_of)(label).find(|node| !self.owner.contains_key(node));
        if free.is_some() {
            return free;
        }
        let taken: Vec<NodeId> = (self.nodes_of)(label).collect();
        taken.into_iter().find(|node| {
            let owner = self.owner.get(node).copied();
            let Some((place, other)) = owner.and_then(|p| Some((p, self.labels.get(p)?))) else {
                return false;
            };
            match self.find(other, tried) {
                Some(instead) => {
                    self.owner.insert(instead, place);
                    self.owner.remove(node);
                    true
                }
                None => false,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u32) -> NodeId {
        format!("{number:010}").parse().unwrap()
    }

    #[test]
    fn a_node_with_several_labels_moves_to_where_it_is_needed() {
        let [a, b, c] = ["a", "b", "c"].map(Label::from);
        let nodes = |label: &Label| {
            let all: &[(u32, &[&str])] = &[(1, &["a", "b"]), (2, &["b", "c"]), (3, &["b"])];
            let having = all.iter().filter(|(_, l)| l.contains(&label.as_str()));
            having
                .map(|(n, _)| node(*n))
                .collect::<Vec<_>>()
                .into_iter()
        };
        // Taken one by one, b gets node 1 and a nothing.
        for order in [[&b, &a, &c], [&b, &c, &a], [&a, &b, &c], [&c, &b, &a]] {
            let labels = order.map(Label::clone);
            let found = match_nodes(&labels, nodes);
            let expected = order.map(|l| match l.as_str() {
                "a" => Some(node(1)),
                "c" => Some(node(2)),
                _ => Some(node(3)),
            });
            assert_eq!(found, expected, "{labels:?}");
        }
        let found = match_nodes(&[b.clone(), b.clone(), b.clone(), b], nodes);
        assert_eq!(found.iter().flatten().count(), 3);
    }
}
