//! The sums and indexes, against sums made from nothing.

use std::collections::BTreeMap;

use nodeyard_model::{
    Limits, Node, NodeId, NodeState, ProviderName, RequestId, Resources, Timestamp,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::NodeIndex;
use crate::setup::{LabelSetup, PoolKey, PoolSetup};

fn id(number: u8) -> NodeId {
    format!("{number:010}").parse().unwrap()
}

fn key(pool: &str) -> PoolKey {
    PoolKey::new(ProviderName::new("p").unwrap(), pool.into())
}

#[derive(Debug, Clone)]
enum Change {
    Put(u8, Box<Node>),
    Lock(u8, bool),
    Remove(u8),
}

fn change() -> impl Strategy<Value = Change> {
    let node = (
        select(NodeState::ALL),
        0..3_u8,
        select(vec!["a", "b"]),
        select(vec![None, Some("t")]),
        prop::option::of(1..5_i64),
        any::<bool>(),
    );
    let put = (0..10_u8, node).prop_map(|(n, (state, time, pool, tenant, cores, given))| {
        let mut node = Node::new(state, Timestamp::from_secs(f64::from(time)).unwrap());
        node.provider = Some(key(pool).provider);
        node.pool = Some(pool.into());
        node.labels = vec!["small".into(), "other".into()];
        node.tenant_name = tenant.map(Into::into);
        node.resources = cores.map(|cores| Resources::new(cores, 1, 0));
        node.allocated_to = given.then(|| "200-0000000001".parse::<RequestId>().unwrap().into());
        Change::Put(n, Box::new(node))
    });
    prop_oneof![
        4 => put,
        1 => (0..10_u8, any::<bool>()).prop_map(|(n, locked)| Change::Lock(n, locked)),
        1 => (0..10_u8).prop_map(Change::Remove),
    ]
}

proptest! {
    #[test]
    fn sums_follow_the_records(changes in vec(change(), 1..60), late in 0..60_usize) {
        let cost = Resources::new(7, 1, 0);
        let setup = |pool| PoolSetup {
            id: "launcher".into(),
            key: key(pool),
            limits: Limits::unlimited(),
            labels: BTreeMap::from([("small".into(), LabelSetup::launched(cost.clone()))]),
            zones: Vec::new(),
        };
        let mut node_index = NodeIndex::default();
        let mut nodes: BTreeMap<u8, (Node, bool)> = BTreeMap::new();
        node_index.set_pool(&setup("a"));
        for (index, change) in changes.into_iter().enumerate() {
            if index == late {
                // Nodes that were there before their pool was known are charged then.
                node_index.set_pool(&setup("b"));
            }
            match change {
                Change::Put(n, node) => {
                    node_index.put(id(n), &node);
                    let locked = nodes.get(&n).is_some_and(|(_, locked)| *locked);
                    nodes.insert(n, (*node, locked));
                }
                Change::Lock(n, locked) => {
                    node_index.set_locked(id(n), locked);
                    if let Some(node) = nodes.get_mut(&n) {
                        node.1 = locked;
                    }
                }
                Change::Remove(n) => {
                    node_index.remove(id(n));
                    nodes.remove(&n);
                }
            }
            let mut used = Resources::default();
            for pool in ["a", "b"] {
                let known = pool == "a" || index >= late;
                let members = || nodes.values().filter(|(n, _)| n.pool == Some(pool.into()));
                let nothing = Resources::default();
                let charge = |node: &Node| {
                    let fallback = if known { &cost } else { &nothing };
                    node.resources.clone().unwrap_or_else(|| fallback.clone())
                };
                let charges: Vec<Resources> = members().map(|(n, _)| charge(n)).collect();
                let sum: Resources = charges.iter().sum();
                used += &sum;
                let usage = node_index.pool(&key(pool));
                prop_assert_eq!(usage.map(|b| b.account.used.clone()).unwrap_or_default(), sum);
                let free = members().filter(|(n, locked)| {
                    n.state == NodeState::Ready && n.allocated_to.is_none() && !locked
                });
                prop_assert_eq!(usage.map_or(0, |b| b.idle.len()), free.clone().count());
                let found = node_index.free(&key(pool), &"other".into(), &None).count();
                prop_assert_eq!(found, free.count());
            }
            let provider = node_index.provider(&key("a").provider);
            prop_assert_eq!(provider.map(|p| p.account.used.clone()).unwrap_or_default(), used);
            let tenant: Resources = nodes
                .values()
                .map(|(node, _)| node)
                .filter(|n| n.tenant_name.is_some())
                .filter(|n| n.state != NodeState::Ready || n.allocated_to.is_some())
                .filter_map(|n| n.resources.as_ref())
                .sum();
            let account = node_index.tenant(&"t".into());
            prop_assert_eq!(account.map(|a| a.used.clone()).unwrap_or_default(), tenant);
        }
    }
}
