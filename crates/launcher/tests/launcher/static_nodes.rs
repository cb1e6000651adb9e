//! Machines that exist already.

use std::sync::Arc;

use nodeyard_model::{NodeState, RequestState};
use nodeyard_store::registry::Registry;

use crate::bed::{Drivers, Running, Store, eventually, locked_requests, logs, nodes};
use crate::zuul::Zuul;

pub(crate) fn config(machines: usize, slots: usize) -> String {
    let mut text = String::from(
        "labels:\n  - name: small\n  - name: big\nproviders:\n  - name: lab\n    driver: static\n    pools:\n      \
         - name: main\n        node-attributes: {executor-zone: lab}\n        nodes:\n",
    );
    for machine in 0..machines {
        text.push_str(&format!(
            "          - name: 192.0.2.{machine}\n            labels: [small, big]\n            \
             host-key-checking: false\n            host-key: ssh-ed25519 AAAA{machine}\n            \
             max-parallel-jobs: {slots}\n"
        ));
    }
    text
}

/// As many ready nodes as there are places, each place once.
pub(crate) async fn complete(registry: &Registry, count: usize) {
    eventually("every place has a ready node", || async {
        let nodes = nodes(registry).await;
        let ready = |node: &nodeyard_model::Node| {
            node.state == NodeState::Ready && node.allocated_to.is_none()
        };
        let places: std::collections::BTreeSet<_> = nodes
            .iter()
            .map(|(_, node)| (node.hostname.clone(), node.slot))
            .collect();
        assert!(
            places.len() == nodes.len(),
            "a place has two nodes: {nodes:?}"
        );
        (nodes.len() == count && nodes.iter().all(|(_, node)| ready(node))).then_some(())
    })
    .await;
}

async fn a_node_is_used_and_comes_back(store: Store) {
    logs();
    let launcher = Running::start(&store, Arc::new(Drivers), &config(2, 2)).await;
    let zuul = Zuul::new(store.session().await);
    complete(&zuul.registry, 4).await;
    for (_, node) in nodes(&zuul.registry).await {
        assert_eq!(node.launcher.as_ref().unwrap().as_str(), "static driver");
        assert_eq!(node.host_keys.len(), 1);
        assert_eq!(node.attributes.text(), r#"{"executor-zone":"lab"}"#);
        assert_eq!(node.python_path.as_deref(), Some("auto"));
    }

    let id = zuul.submit(&["small", "big", "small"]).await;
    let used = zuul.run_job(id).await;
    assert_eq!(used.len(), 3);
    for node in used {
        zuul.gone(node).await;
    }
    complete(&zuul.registry, 4).await;

    // Nothing is left of the work on it.
    assert_eq!(locked_requests(&zuul.registry).await, []);
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_used_and_comes_back_embedded() {
    a_node_is_used_and_comes_back(Store::embedded()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_used_and_comes_back_zookeeper() {
    a_node_is_used_and_comes_back(Store::zookeeper().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_slots_of_a_static_machine_are_registered_in_order() {
    let store = Store::embedded();
    let launcher = Running::start(&store, Arc::new(Drivers), &config(2, 20)).await;
    let registry = Registry::new(store.session().await);
    complete(&registry, 40).await;
    let mut nodes = nodes(&registry).await;
    nodes.sort_by_key(|(id, _)| *id);
    for machine in ["192.0.2.0", "192.0.2.1"] {
        let slots = nodes.iter().map(|(_, node)| node);
        let slots = slots.filter(|node| node.hostname.as_deref() == Some(machine));
        let slots: Vec<_> = slots.map(|node| node.slot).collect();
        assert_eq!(slots.len(), 20);
        assert!(slots.is_sorted(), "{slots:?}");
    }
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_no_pool_can_serve_fails() {
    let store = Store::embedded();
    let launcher = Running::start(&store, Arc::new(Drivers), &config(2, 1)).await;
    let zuul = Zuul::new(store.session().await);
    for labels in [&["other"][..], &["small", "small", "small"]] {
        let id = zuul.submit(labels).await;
        let done = zuul.done(id).await;
        assert_eq!(done.state, RequestState::Failed, "{labels:?}");
        assert_eq!(done.declined_by.len(), 1);
    }
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_wait_for_machines_and_get_them_in_order() {
    let store = Store::embedded();
    let launcher = Running::start(&store, Arc::new(Drivers), &config(1, 1)).await;
    let zuul = Zuul::new(store.session().await);
    complete(&zuul.registry, 1).await;
    let first = zuul.submit(&["small"]).await;
    let nodeset = zuul.accept(first).await;
    let low = zuul.submit_with(300, &["small"], |_| {}).await;
    let high = zuul.submit_with(100, &["small"], |_| {}).await;
    eventually("the launcher says that one request comes first", || async {
        let why = launcher.handle.explain(low).await?;
        (why.ahead == Some(1)).then_some(())
    })
    .await;

    let mut nodeset = nodeset;
    zuul.set_state(&mut nodeset, NodeState::InUse).await;
    zuul.set_state(&mut nodeset, NodeState::Used).await;
    zuul.unlock(nodeset).await;
    let mut nodeset = zuul.accept(high).await;
    let waiting = zuul.registry.requests().get(low).await.unwrap().unwrap();
    assert_eq!(waiting.value.state, RequestState::Requested);
    zuul.set_state(&mut nodeset, NodeState::Used).await;
    zuul.unlock(nodeset).await;
    zuul.run_job(low).await;
    launcher.stop().await;
}

/// Printed, not judged: what a ready node costs in time.
#[tokio::test(flavor = "multi_thread")]
async fn latency_of_a_ready_node() {
    for (name, store) in [
        ("embedded", Store::embedded()),
        ("zookeeper", Store::zookeeper().await),
    ] {
        let launcher = Running::start(&store, Arc::new(Drivers), &config(4, 1)).await;
        let zuul = Zuul::new(store.session().await);
        complete(&zuul.registry, 4).await;
        let mut times = Vec::new();
        for _ in 0..40 {
            let (time, id) = zuul.latency(&["small"]).await;
            times.push(time);
            for node in zuul.run_job(id).await {
                zuul.gone(node).await;
            }
            complete(&zuul.registry, 4).await;
        }
        times.sort();
        eprintln!(
            "{name}: fulfilled after {:?} (median), {:?} (worst)",
            times[20], times[39]
        );
        launcher.stop().await;
    }
}
