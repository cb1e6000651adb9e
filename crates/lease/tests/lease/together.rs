//! Several keepers, restarts, and other processes that change the same records.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::join_all;
use nodeyard_lease::{EndCause, LeasePhase, LeasedNodeState};
use nodeyard_model::{Node, NodeState, layout};
use nodeyard_store::registry::Registry;
use nodeyard_store::{TreePath, Version, ext};

use crate::bed::{
    HOUR, Keeping, Store, Time, Yard, admin, ask, caller, eventually, launcher, leases,
    wait_settled,
};
use crate::cloud::{Clouds, small_and_large};

#[tokio::test(flavor = "multi_thread")]
async fn leases_outlive_launchers_and_keepers() {
    let mut yard = Yard::start(Store::zookeeper().await, small_and_large(4)).await;
    let me = caller("acme");
    let status = yard.lease(&me, &ask(&["small", "large"])).await;
    yard.keeping.service.kill().await;
    yard.launcher.kill().await;
    yard.launcher = launcher(&yard.store, &yard.clouds, &yard.text).await;
    yard.keeping = Keeping::start(yard.store.session().await, &yard.time);
    // When another lease was served, the new launcher has had the opportunity to clean up.
    let other = yard.lease(&me, &ask(&["small"])).await;
    yard.leases().release(&me, other.id).await.unwrap();
    eventually("the other node goes", || async {
        let nodes = yard.records.nodes().list().await.unwrap();
        (nodes.len() == 2).then_some(())
    })
    .await;
    let after = yard.leases().get(&me, status.id).await.unwrap();
    assert_eq!(after.lease, status.lease);
    for seen in after.nodes {
        assert_eq!(seen.node.unwrap().state, NodeState::InUse);
    }
    yard.leases().release(&me, status.id).await.unwrap();
    yard.nothing_is_left().await;
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_keepers_works_and_the_next_takes_over() {
    let mut yard = Yard::start(Store::zookeeper().await, small_and_large(8)).await;
    let me = caller("acme");
    yard.keeping.until_working().await;
    let beside = Keeping::start(yard.store.session().await, &yard.time);
    let first = yard.lease(&me, &ask(&["small"])).await;
    assert!(!beside.is_working().await);

    // Callers of both processes at once.
    let many = (0..6).map(|number| {
        let leases = if number % 2 == 0 {
            yard.leases()
        } else {
            &beside.leases
        };
        let me = &me;
        async move {
            let asked = leases.create(me, &ask(&["large"]), None).await.unwrap();
            wait_settled(leases, me, asked.id).await
        }
    });
    let many = join_all(many).await;
    let nodes: BTreeSet<_> = many
        .iter()
        .flat_map(|status| status.lease.nodes.iter().map(|leased| leased.node))
        .collect();
    assert_eq!(nodes.len(), 6, "each node is given once");

    yard.keeping.service.kill().await;
    beside.until_working().await;
    yard.keeping = beside;
    yard.time.jump(HOUR);
    for status in many.iter().chain([&first]) {
        let ended = yard.ended(&me, status.id).await;
        assert_eq!(ended.lease.end.as_ref().unwrap().cause, EndCause::Expired);
    }
    yard.nothing_is_left().await;
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_taken_away_by_force_is_told() {
    let yard = Yard::start(Store::embedded(), small_and_large(4)).await;
    let me = caller("acme");
    let status = yard.lease(&me, &ask(&["small", "large"])).await;
    let gone = status.lease.nodes[0].node;
    yard.take_away(gone).await;
    let lease = eventually("the loss is noticed", || async {
        let lease = yard.leases().get(&me, status.id).await.unwrap().lease;
        (lease.node(gone).unwrap().state == LeasedNodeState::Lost).then_some(lease)
    })
    .await;
    assert_eq!(lease.phase, LeasePhase::Active);
    let other = status.lease.nodes[1].node;
    yard.take_away(other).await;
    let ended = yard.ended(&me, status.id).await;
    assert_eq!(ended.lease.end.as_ref().unwrap().cause, EndCause::Lost);
    yard.nothing_is_left().await;
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_lost_before_it_was_taken_is_replaced() {
    let (store, time, clouds) = (Store::embedded(), Time::default(), Clouds::new());
    let launcher = launcher(&store, &clouds, &small_and_large(4)).await;
    let records = Registry::new(store.session().await);
    let me = caller("acme");
    // Without a keeper the fulfilled request waits.
    let tree = store.session().await;
    let asked = leases(&tree, &time);
    let asked = asked
        .create(&me, &ask(&["small", "large"]), None)
        .await
        .unwrap();
    let request = asked.lease.request.unwrap();
    let nodes = eventually("the request is fulfilled", || async {
        let request = records.requests().get(request).await.unwrap()?.value;
        (!request.nodes.is_empty()).then_some(request.nodes)
    })
    .await;
    let node = TreePath::new(layout::node(nodes[1])).unwrap();
    ext::delete_recursive(&**records.tree(), &node)
        .await
        .unwrap();
    let keeping = Keeping::start(tree, &time);
    let status = tokio::time::timeout(HOUR, wait_settled(&keeping.leases, &me, asked.id))
        .await
        .unwrap();
    let end = &status.lease.end;
    assert_eq!(status.lease.phase, LeasePhase::Active, "{end:?}");
    assert_ne!(status.lease.request, Some(request));
    assert!(status.lease.node(nodes[1]).is_none());
    keeping.leases.release(&me, asked.id).await.unwrap();
    eventually("no node is left", || async {
        let nodes = records.nodes().list().await.unwrap();
        // The abandoned node is idle.
        let idle = |node: &Node| node.state == NodeState::Ready && node.allocated_to.is_none();
        nodes
            .iter()
            .all(|(_, node)| idle(&node.value))
            .then_some(())
    })
    .await;
    keeping.service.stop().await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_vanished_lease_had_is_given_back() {
    let yard = Yard::start(Store::embedded(), small_and_large(1)).await;
    let me = caller("acme");
    let active = yard.lease(&me, &ask(&["small"])).await;
    let waiting = yard
        .leases()
        .create(&me, &ask(&["small"]), None)
        .await
        .unwrap();
    for id in [active.id, waiting.id] {
        let path = TreePath::new(format!("{}/{id}", layout::LEASES)).unwrap();
        let tree = Arc::clone(yard.records.tree());
        tree.delete(&path, Version::Any).await.unwrap();
    }
    yard.nothing_is_left().await;
    assert!(yard.leases().list(&admin()).is_empty());
    yard.stop().await;
}
