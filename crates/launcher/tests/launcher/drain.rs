//! Pools that are to accept nothing, and providers that leave: what they have begun ends, and what they hold without
//! nodes goes on elsewhere.

use std::sync::Arc;

use nodeyard_model::{LauncherId, Node, NodeState, ProviderName, RequestId, RequestState, layout};
use nodeyard_operations::drain::{DrainScope, DrainSnapshot};
use nodeyard_store::TreePath;

use crate::bed::{Running, Store, eventually, logs, parse};
use crate::cloud::{SMALL, nothing_is_left};
use crate::fake::{FakeCloud, PROVIDER, config, simulate, with_second};
use crate::zuul::{Nodeset, Zuul, now};

const NOTHING: &str = "labels: []\nproviders: []\n";
const QUOTA: &str = "Quota exceeded for instances";

async fn until(zuul: &Zuul, id: RequestId, state: RequestState) {
    eventually(&format!("{id} is {state}"), || async {
        let request = zuul.registry.requests().get(id).await.unwrap().unwrap();
        (request.value.state == state).then_some(())
    })
    .await;
}

async fn finish(zuul: &Zuul, mut nodeset: Nodeset) {
    zuul.set_state(&mut nodeset, NodeState::Used).await;
    zuul.unlock(nodeset).await;
}

fn provider(name: &str) -> DrainScope {
    DrainScope::Provider(ProviderName::new(name).unwrap())
}

/// A pool of one server, which is in use, and a request that it holds.
async fn full_pool(zuul: &Zuul) -> (Nodeset, RequestId) {
    let first = zuul.submit(&["small"]).await;
    let nodeset = zuul.accept(first).await;
    let held = zuul.submit(&["small"]).await;
    until(zuul, held, RequestState::Pending).await;
    (nodeset, held)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_of_a_full_pool_comes_to_its_end() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(1, SMALL)).await;
    let zuul = Zuul::new(store.session().await);
    for scope in [provider(PROVIDER), DrainScope::Label("small".into())] {
        let (nodeset, held) = full_pool(&zuul).await;
        launcher.handle.drain(scope.clone()).await.unwrap().unwrap();
        until(&zuul, held, RequestState::Requested).await;
        finish(&zuul, nodeset).await;
        eventually("the drain is complete", || async {
            let snapshot = DrainSnapshot::read(&zuul.registry).await.unwrap();
            snapshot.remaining(&scope).is_drained().then_some(())
        })
        .await;
        let why = launcher.handle.explain(held).await.unwrap().to_string();
        assert!(why.contains(&format!("nodeyard undrain {scope}")), "{why}");
        launcher.handle.undrain(scope).await.unwrap().unwrap();
        zuul.run_job(held).await;
        nothing_is_left(&zuul.registry, &cloud).await;
    }
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_a_cloud_refuses_is_requeued_by_a_drained_pool() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(4, SMALL)).await;
    let zuul = Zuul::new(store.session().await);
    cloud.refuse(&[QUOTA; 10_000]);
    let id = zuul.submit(&["small"]).await;
    until(&zuul, id, RequestState::Pending).await;
    let scope = provider(PROVIDER);
    launcher.handle.drain(scope.clone()).await.unwrap().unwrap();
    until(&zuul, id, RequestState::Requested).await;
    cloud.relent();
    launcher.handle.undrain(scope).await.unwrap().unwrap();
    zuul.run_job(id).await;
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_pools_of_a_launcher_go_on_while_one_is_drained() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let spare = "spare-cloud";
    let text = with_second(&config(1, SMALL), spare);
    // The first one would come first.
    let text = text.replacen("max-servers", "priority: 1\n        max-servers", 1);
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &text).await;
    let zuul = Zuul::new(store.session().await);
    let scope = provider(PROVIDER);
    launcher.handle.drain(scope.clone()).await.unwrap().unwrap();
    let notices = async |drained: bool| {
        eventually("the launcher has noticed", || async {
            let snapshot = DrainSnapshot::read(&zuul.registry).await.unwrap();
            let left = snapshot.remaining(&scope);
            (left.pools.len() == 1 && left.accepting.is_empty() == drained).then_some(())
        })
        .await;
    };
    notices(true).await;
    // A drained pool says what it can never serve, as every pool must before a request fails.
    for labels in [&["unknown"][..], &["small", "small"]] {
        let id = zuul.submit(labels).await;
        assert_eq!(zuul.done(id).await.state, RequestState::Failed);
    }
    let serves = async |expected: &str| {
        let id = zuul.submit(&["small"]).await;
        let nodeset = zuul.accept(id).await;
        let node = &nodeset.nodes[0].1.value;
        assert_eq!(node.provider.as_ref().unwrap().as_str(), expected);
        finish(&zuul, nodeset).await;
        nothing_is_left(&zuul.registry, &cloud).await;
    };
    serves(spare).await;
    launcher
        .handle
        .undrain(scope.clone())
        .await
        .unwrap()
        .unwrap();
    notices(false).await;
    serves(PROVIDER).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_leaves_takes_no_request_with_it() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let text = config(1, SMALL);
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &text).await;
    let zuul = Zuul::new(store.session().await);

    let (nodeset, held) = full_pool(&zuul).await;
    launcher.config.send(parse(NOTHING)).unwrap();
    until(&zuul, held, RequestState::Requested).await;
    // The pool of another name has room of its own.
    let renamed = parse(&text.replace("name: main", "name: other"));
    launcher.config.send(renamed).unwrap();
    zuul.run_job(held).await;
    finish(&zuul, nodeset).await;
    nothing_is_left(&zuul.registry, &cloud).await;

    // One that lacks nodes while the provider leaves.
    cloud.refuse(&[QUOTA; 10_000]);
    let refused = zuul.submit(&["small"]).await;
    until(&zuul, refused, RequestState::Pending).await;
    launcher.config.send(parse(NOTHING)).unwrap();
    until(&zuul, refused, RequestState::Requested).await;
    cloud.relent();
    launcher.config.send(parse(&text)).unwrap();
    zuul.run_job(refused).await;
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_pool_held_is_launched_by_the_one_that_replaces_it() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(1, SMALL)).await;
    let zuul = Zuul::new(store.session().await);
    let (nodeset, held) = full_pool(&zuul).await;
    let before = nodeset.nodes[0].1.value.launcher.clone();
    launcher.config.send(parse(&config(2, SMALL))).unwrap();
    let second = zuul.accept(held).await;
    let after: &Option<LauncherId> = &second.nodes[0].1.value.launcher;
    assert_ne!(*after, before);
    let pools = zuul.registry.components().pools().await.unwrap();
    assert!(pools.iter().any(|pool| Some(&pool.id) == after.as_ref()));
    for nodeset in [nodeset, second] {
        finish(&zuul, nodeset).await;
    }
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_pool_could_not_launch_is_launched_by_the_one_that_replaces_it() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(1, SMALL)).await;
    let zuul = Zuul::new(store.session().await);
    cloud.refuse(&[QUOTA; 10_000]);
    let id = zuul.submit(&["small"]).await;
    until(&zuul, id, RequestState::Pending).await;
    let pools = || async { zuul.registry.components().pools().await.unwrap() };
    let before = pools().await[0].id.clone();
    launcher.config.send(parse(&config(2, SMALL))).unwrap();
    eventually("the new pool is alone", || async {
        let pools = pools().await;
        (pools.len() == 1 && pools[0].id != before).then_some(())
    })
    .await;
    // The old pool may have asked the cloud once more before it was replaced.
    cloud.created(cloud.creates() + 2).await;
    cloud.relent();
    let nodeset = zuul.accept(id).await;
    let after = nodeset.nodes[0].1.value.launcher.clone();
    assert_eq!(after, Some(pools().await[0].id.clone()));
    finish(&zuul, nodeset).await;
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_a_request_that_waits_for_the_end_of_a_drain_is_left_alone() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let text = format!(
        "{}          - name: other\n            cloud-image: trixie\n            flavor-name: tiny\n",
        config(2, "  - name: small\n  - name: other\n")
    );
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &text).await;
    let zuul = Zuul::new(store.session().await);
    let scope = DrainScope::Label("small".into());
    launcher.handle.drain(scope.clone()).await.unwrap().unwrap();
    let id = zuul.submit(&["small"]).await;
    eventually("the launcher knows the request", || async {
        let why = launcher.handle.explain(id).await?.to_string();
        why.contains("nodeyard undrain label small").then_some(())
    })
    .await;
    // As a launcher leaves it that declines although some of the nodes are ready.
    let mut node = Node::new(NodeState::Ready, now());
    node.provider = Some(ProviderName::new(PROVIDER).unwrap());
    node.pool = Some("main".into());
    node.labels = vec!["small".into()];
    node.allocated_to = Some(id.into());
    let (node, _) = zuul.registry.nodes().create(&node).await.unwrap();
    for _ in 0..3 {
        let other = zuul.submit(&["other"]).await;
        let used = zuul.run_job(other).await;
        zuul.gone(used[0]).await;
    }
    let lock = TreePath::new(layout::node_lock(node)).unwrap();
    let touched = zuul.tree.stat(&lock).await.unwrap();
    assert!(touched.is_none(), "{touched:?}");
    let left = zuul.registry.nodes().get(node).await.unwrap().unwrap();
    assert_eq!(left.value.request(), Some(id));
    launcher.stop().await;
}
