//! Recovery of abandoned requests and nodes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nodeyard_launcher::LauncherTiming;
use nodeyard_model::{
    Allocation, LauncherId, Node, NodeState, PoolComponent, ProviderName, RequestId, RequestState,
    layout,
};
use nodeyard_store::registry::Registry;
use nodeyard_store::{CreateMode, TreePath, Version, ext};

use crate::bed::{PATIENCE, Running, Store, eventually, logs, nodes, quick};
use crate::cloud::{SMALL, nothing_is_left};
use crate::fake::{FakeCloud, PROVIDER, config, simulate};
use crate::zuul::{Zuul, now};

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_launcher_was_working_on_is_taken_over() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    cloud.hold_boots(true);
    let dying = Running::start(&store, Arc::clone(&cloud) as _, &config(2, SMALL)).await;
    let zuul = Zuul::new(store.session().await);
    let id = zuul.submit(&["small", "small"]).await;
    eventually("machines boot", || async {
        (cloud.servers().await.len() == 2).then_some(())
    })
    .await;
    dying.kill().await;

    let dead: Vec<String> = cloud.servers().await;
    cloud.hold_boots(false);
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(2, SMALL)).await;
    eventually("the machines of the dead launcher are gone", || async {
        let servers = cloud.servers().await;
        (!servers.iter().any(|name| dead.contains(name))).then_some(())
    })
    .await;
    zuul.run_job(id).await;
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

async fn leave(registry: &Registry, state: NodeState, change: impl FnOnce(&mut Node)) {
    let mut node = Node::new(state, now());
    node.provider = Some(ProviderName::new(PROVIDER).unwrap());
    node.pool = Some("main".into());
    node.labels = vec!["small".into()];
    change(&mut node);
    registry.nodes().create(&node).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn orphans_are_deleted_and_others_left_alone() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let zuul = Zuul::new(store.session().await);
    let registry = &zuul.registry;
    let gone = Some("200-0000000099".parse::<RequestId>().unwrap().into());
    for state in [
        NodeState::Building,
        NodeState::Used,
        NodeState::InUse,
        NodeState::Failed,
        NodeState::Aborted,
        NodeState::Deleting,
        NodeState::Deleted,
    ] {
        leave(registry, state, |_| {}).await;
    }
    let no_request = || Some(Allocation::Other("somebody".into()));
    leave(registry, NodeState::Init, |node| {
        node.allocated_to.clone_from(&gone);
    })
    .await;
    leave(registry, NodeState::Init, |node| {
        node.allocated_to = no_request();
    })
    .await;
    // These stay.
    leave(registry, NodeState::Hold, |node| {
        node.allocated_to = no_request();
    })
    .await;
    leave(registry, NodeState::Ready, |node| node.allocated_to = gone).await;
    leave(registry, NodeState::Ready, |node| {
        node.allocated_to = no_request();
    })
    .await;
    leave(registry, NodeState::Testing, |_| {}).await;
    leave(registry, NodeState::Used, |node| {
        node.provider = Some(ProviderName::new("others").unwrap());
    })
    .await;
    let ghost = TreePath::new(layout::node("0000000077".parse().unwrap())).unwrap();
    ext::ensure_path(&*zuul.tree, &ghost.join("lock").unwrap())
        .await
        .unwrap();
    let nodes_dir = TreePath::new(layout::NODES).unwrap();
    let nameless = nodes_dir.join("12345").unwrap();
    ext::ensure_path(&*zuul.tree, &nameless.join("lock").unwrap())
        .await
        .unwrap();
    let foreign = nodes_dir.join("a-note").unwrap();
    let note = Bytes::from_static(b"of somebody");
    zuul.tree
        .create(&foreign, note.clone(), CreateMode::Persistent)
        .await
        .unwrap();
    let malformed = TreePath::new(layout::node("0000000078".parse().unwrap())).unwrap();
    let data = Bytes::from_static(b"{\"state\": 7");
    zuul.tree
        .create(&malformed, data.clone(), CreateMode::Persistent)
        .await
        .unwrap();

    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(1, SMALL)).await;
    eventually("what is left is what should be", || async {
        let left = nodes(registry).await;
        let state = |state| {
            left.iter()
                .find(|(_, node)| node.state == state)
                .map(|(_, node)| node)
        };
        let mut ready = left.iter().filter(|(_, n)| n.state == NodeState::Ready);
        let ready_is_free = ready.all(|(_, node)| node.allocated_to.is_none());
        let held = state(NodeState::Hold)?.allocated_to == no_request();
        let ghosts_are_gone = zuul.tree.stat(&ghost).await.unwrap().is_none()
            && zuul.tree.stat(&nameless).await.unwrap().is_none();
        (left.len() == 5 && ready_is_free && held && ghosts_are_gone).then_some(())
    })
    .await;
    assert_eq!(
        zuul.tree.get(&malformed).await.unwrap().data,
        data,
        "malformed records are never touched"
    );
    assert_eq!(zuul.tree.get(&foreign).await.unwrap().data, note);

    // The free node serves a request although others are in the way.
    let id = zuul.submit(&["small"]).await;
    zuul.fulfilled(id).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_requests_do_not_block_others() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let zuul = Zuul::new(store.session().await);
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(2, SMALL)).await;
    let mut bad = Vec::new();
    let dir = TreePath::new(layout::REQUESTS).unwrap();
    ext::ensure_path(&*zuul.tree, &dir).await.unwrap();
    for data in [
        "",
        "null",
        "[]",
        "{\"state\": \"dreaming\", \"state_time\": 1}",
        "{\"state\": \"requested\"}",
    ] {
        let path = TreePath::new(layout::request_prefix(100)).unwrap();
        let mode = CreateMode::PersistentSequential;
        let created = zuul
            .tree
            .create(&path, Bytes::from(data), mode)
            .await
            .unwrap();
        bad.push((created.path, data));
    }
    let id = zuul.submit(&["small"]).await;
    zuul.run_job(id).await;
    nothing_is_left(&zuul.registry, &cloud).await;
    for (path, data) in bad {
        assert_eq!(zuul.tree.get(&path).await.unwrap().data, data);
    }
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_nodes_and_old_locks_go() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let zuul = Zuul::new(store.session().await);
    let past = nodeyard_model::Timestamp::from_secs(now().as_secs() - 1000.0).unwrap();
    leave(&zuul.registry, NodeState::Ready, |node| {
        node.state_time = past;
    })
    .await;
    leave(&zuul.registry, NodeState::Hold, |node| {
        node.state_time = past;
        node.hold_expiration = Some(500);
    })
    .await;
    let lock = TreePath::new(layout::request_lock("200-0000000042".parse().unwrap())).unwrap();
    ext::ensure_path(&*zuul.tree, &lock).await.unwrap();
    // Comes first, and stays with its request.
    let malformed: RequestId = "100-0000000001".parse().unwrap();
    let kept = TreePath::new(layout::request_lock(malformed)).unwrap();
    ext::ensure_path(&*zuul.tree, &kept).await.unwrap();
    let malformed = TreePath::new(layout::request(malformed)).unwrap();
    ext::ensure_path(&*zuul.tree, &malformed).await.unwrap();
    zuul.tree
        .set(&malformed, Bytes::from_static(b"{}"), Version::Any)
        .await
        .unwrap();
    let timing = LauncherTiming {
        lock_age: Duration::ZERO,
        ..quick()
    };
    let labels = "  - name: small\n    max-ready-age: 900\n";
    let launcher = Running::start_on(
        store.session().await,
        Arc::clone(&cloud) as _,
        &config(2, labels),
        timing,
    )
    .await;
    nothing_is_left(&zuul.registry, &cloud).await;
    eventually("the lock is gone", || async {
        zuul.tree.stat(&lock).await.unwrap().is_none().then_some(())
    })
    .await;
    assert!(zuul.tree.stat(&kept).await.unwrap().is_some());
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_configuration_is_taken_over_while_running() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let zuul = Zuul::new(store.session().await);
    let mut launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(0, SMALL)).await;
    assert!(launcher.handle.until_ready().await);
    let id = zuul.submit(&["small"]).await;
    assert_eq!(zuul.done(id).await.state, RequestState::Failed);
    launcher
        .config
        .send(crate::bed::parse(&config(2, SMALL)))
        .unwrap();
    eventually("the pool takes requests", || async {
        let id = zuul.submit(&["small"]).await;
        let done = zuul.done(id).await;
        (done.state == RequestState::Fulfilled).then_some(())
    })
    .await;
    eventually("the old pool has left the registry", || async {
        let pools = zuul.registry.components().pools().await.unwrap();
        (pools.len() == 1).then_some(())
    })
    .await;
    launcher
        .config
        .send(crate::bed::parse("labels: []\n"))
        .unwrap();
    eventually("no pool is left", || async {
        zuul.registry
            .components()
            .pools()
            .await
            .unwrap()
            .is_empty()
            .then_some(())
    })
    .await;
    launcher.stop().await;
}

/// Otherwise a request that asks for its provider would go elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_is_in_the_registry_while_it_is_replaced() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let zuul = Zuul::new(store.session().await);
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(1, SMALL)).await;
    let pools = async || zuul.registry.components().pools().await.unwrap();
    let mut known = Vec::new();
    for max_servers in 2..30 {
        // Until there is one that was not there before, and nothing else.
        let replaced = async {
            loop {
                let pools = pools().await;
                assert!(!pools.is_empty() || known.is_empty(), "after {known:?}");
                match pools.as_slice() {
                    [pool] if !known.contains(&pool.id) => return pool.id.clone(),
                    _ => tokio::task::yield_now().await,
                }
            }
        };
        let id = tokio::time::timeout(PATIENCE, replaced).await.unwrap();
        known.push(id);
        let config = crate::bed::parse(&config(max_servers, SMALL));
        launcher.config.send(config).unwrap();
    }
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_pool_finishes_and_takes_nothing_new() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let zuul = Zuul::new(store.session().await);
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(2, SMALL)).await;
    for scope in [
        nodeyard_operations::drain::DrainScope::Provider(ProviderName::new(PROVIDER).unwrap()),
        nodeyard_operations::drain::DrainScope::Pool(
            "main".into(),
            ProviderName::new(PROVIDER).unwrap(),
        ),
        nodeyard_operations::drain::DrainScope::Launcher("np01".into()),
        nodeyard_operations::drain::DrainScope::Label("small".into()),
    ] {
        let first = zuul.submit(&["small"]).await;
        let nodeset = zuul.accept(first).await;
        launcher.handle.drain(scope.clone()).await.unwrap().unwrap();
        let drained = || async {
            let status = launcher.handle.status().await.unwrap();
            status.drains.into_iter().find(|drain| drain.scope == scope)
        };
        eventually("the drain is known, and what remains", || async {
            (drained().await?.nodes == 1).then_some(())
        })
        .await;
        let waiting = zuul.submit(&["small"]).await;
        let mut nodeset = nodeset;
        zuul.set_state(&mut nodeset, NodeState::Used).await;
        zuul.unlock(nodeset).await;
        eventually("nothing remains", || async {
            (drained().await?.nodes == 0).then_some(())
        })
        .await;
        let request = zuul
            .registry
            .requests()
            .get(waiting)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(request.value.state, RequestState::Requested, "{scope}");
        launcher.handle.undrain(scope).await.unwrap().unwrap();
        zuul.run_job(waiting).await;
    }
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

/// Zuul's autohold passes on whatever number of seconds it was given.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_of_any_length_does_not_end_the_launcher() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let zuul = Zuul::new(store.session().await);
    for seconds in [i64::MAX, 1 << 62, i64::MIN] {
        leave(&zuul.registry, NodeState::Hold, |node| {
            node.hold_expiration = Some(seconds);
        })
        .await;
    }
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(4, SMALL)).await;
    let id = zuul.submit(&["small"]).await;
    zuul.run_job(id).await;
    launcher.stop().await;
}

/// The last live pool declines while the pools of a launcher that died are still registered.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_fails_when_the_pools_that_had_not_declined_it_leave_the_registry() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let zuul = Zuul::new(store.session().await);
    let dead = Registry::new(store.session().await);
    let mut pool = PoolComponent::new(
        "np02".into(),
        LauncherId::new("np02-PoolWorker.dead-main-1"),
        "main".into(),
        ProviderName::new("dead").unwrap(),
    );
    pool.supported_labels = vec!["large".into()];
    let registration = dead.components().register_pool(&pool).unwrap();
    let _ = registration.path().wait_for(Option::is_some).await;
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(2, SMALL)).await;
    let id = zuul.submit(&["small", "small", "small"]).await;
    let declined = eventually("our pool has declined it", || async {
        let request = zuul.registry.requests().get(id).await.unwrap()?.value;
        (!request.declined_by.is_empty()).then_some(request)
    })
    .await;
    assert_eq!(declined.state, RequestState::Requested);
    registration.end().await;
    assert_eq!(zuul.done(id).await.state, RequestState::Failed);
    launcher.stop().await;
}
