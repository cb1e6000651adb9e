//! What is left over in a cloud, and what only seems to be.

use std::sync::Arc;
use std::time::Duration;

use nodeyard_launcher::LauncherTiming;
use nodeyard_model::{NodeState, RequestState, layout};
use nodeyard_store::TreePath;

use crate::bed::{Running, Store, eventually, logs, parse, quick};
use crate::cloud::{SMALL, nothing_is_left};
use crate::fake::{FakeCloud, PROVIDER, config, simulate};
use crate::zuul::Zuul;

/// What this installation calls itself in clouds.
pub(crate) async fn system_id(zuul: &Zuul) -> String {
    let path = TreePath::new(layout::SYSTEM_ID).unwrap();
    let record = zuul.tree.get(&path).await.unwrap();
    String::from_utf8(record.data.to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn leaks_need_our_name_and_two_sightings() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let zuul = Zuul::new(store.session().await);
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(2, SMALL)).await;
    // A record, so that the store does not look like the wrong one.
    let id = zuul.submit(&["small"]).await;
    let nodeset = zuul.accept(id).await;
    let system = system_id(&zuul).await;
    let tags = |system: &'static str| {
        [
            ("nodeyard_system_id", system),
            ("nodepool_provider_name", PROVIDER),
            ("nodepool_node_id", "0000000088"),
        ]
    };
    cloud.create("foreign", &tags("somebody-else")).await;
    cloud.create("python", &tags("")[1..]).await;
    let ours = [
        ("nodeyard_system_id", &*system),
        ("nodepool_provider_name", PROVIDER),
        ("nodepool_node_id", "0000000088"),
    ];
    cloud.create("leaked", &ours).await;
    eventually("the leak is gone", || async {
        (!cloud.servers().await.iter().any(|name| name == "leaked")).then_some(())
    })
    .await;
    let left = cloud.servers().await;
    assert_eq!(left.len(), 3, "{left:?}");
    zuul.unlock(nodeset).await;
    launcher.stop().await;
}

/// Its view is as it was when the connection broke, so whatever others have launched since is unknown to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_launcher_that_is_cut_off_from_the_store_deletes_nothing_of_others() {
    logs();
    let store = Store::zookeeper().await;
    let timing = LauncherTiming {
        cloud_check: Duration::from_millis(100),
        ..quick()
    };
    let cloud = FakeCloud::new(simulate());
    let seen_by_other = cloud.beside();
    let (tree, proxy) = store.through_a_proxy(Duration::from_secs(60)).await;
    let text = config(4, SMALL);
    let cut_off = Running::start_on(tree, Arc::clone(&cloud) as _, &text, timing).await;
    let zuul = Zuul::new(store.session().await);
    // A record, so that the store does not look like the wrong one.
    let id = zuul.submit(&["small"]).await;
    let before = zuul.accept(id).await;

    proxy.refuse(true);
    let session = store.session().await;
    let other = Running::start_on(session, Arc::clone(&seen_by_other) as _, &text, timing).await;
    let id = zuul.submit(&["small"]).await;
    let since = zuul.accept(id).await;
    let servers = cloud.servers().await;
    assert_eq!(servers.len(), 2, "{servers:?}");
    // As often as one that is connected looks at the cloud, the one that is not could.
    seen_by_other.listed_times(12).await;
    assert_eq!(cloud.servers().await, servers);
    proxy.refuse(false);
    cloud.listed_times(6).await;
    assert_eq!(cloud.servers().await, servers);

    for mut nodeset in [before, since] {
        zuul.set_state(&mut nodeset, NodeState::Used).await;
        zuul.unlock(nodeset).await;
    }
    nothing_is_left(&zuul.registry, &cloud).await;
    cut_off.stop().await;
    other.stop().await;
}

/// It takes room until it is removed, which does not fail any request.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_the_whole_quota_waits_until_a_leak_is_gone() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let mut launcher = that_looks_often(&store, &cloud).await;
    assert!(launcher.handle.until_ready().await);
    let zuul = Zuul::new(store.session().await);
    let system = system_id(&zuul).await;
    let ours = [
        ("nodeyard_system_id", &*system),
        ("nodepool_provider_name", PROVIDER),
        ("nodepool_node_id", "0000000088"),
    ];
    cloud.create("leaked", &ours).await;
    cloud.listed_times(6).await;
    let id = zuul.submit(&["small"; 4]).await;
    cloud.listed_times(6).await;
    let waiting = zuul.registry.requests().get(id).await.unwrap().unwrap();
    assert!(!waiting.value.state.is_final(), "{waiting:?}");
    assert_eq!(cloud.creates(), 0);
    cloud.remove("leaked").await;
    zuul.run_job(id).await;
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_use_is_known_to_a_provider_that_changes() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    cloud.create("foreign", &[]).await;
    let drivers = Arc::clone(&cloud) as _;
    let session = store.session().await;
    let text = config(8, SMALL);
    let launcher = Running::start_on(session, drivers, &text, by_itself()).await;
    let zuul = Zuul::new(store.session().await);
    // The cloud is looked at before that is said.
    let too_large = zuul.submit(&["small"; 5]).await;
    assert_eq!(zuul.done(too_large).await.state, RequestState::Failed);

    // The next generation may start, but not look at the cloud.
    cloud.tell_limits(1);
    let pool = || async {
        let pools = zuul.registry.components().pools().await.unwrap();
        Some(pools.first()?.clone())
    };
    let before = eventually("there is a pool", pool).await.id;
    launcher.config.send(parse(&config(9, SMALL))).unwrap();
    eventually("the pool is another one", || async {
        pool().await.filter(|pool| pool.id != before)
    })
    .await;
    let mut requests = Vec::new();
    for _ in 0..4 {
        requests.push(zuul.submit(&["small"]).await);
    }
    eventually("the pool is full", || async {
        pool().await.filter(|pool| pool.paused)
    })
    .await;
    cloud.created(3).await;
    assert_eq!(cloud.creates(), 3, "the cloud has room for no more");
    cloud.hold_limits(false);
    for id in requests {
        zuul.run_job(id).await;
    }
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_held_fails_when_others_leave_no_room_for_it() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let launcher = that_looks_often(&store, &cloud).await;
    let zuul = Zuul::new(store.session().await);
    let first = zuul.submit(&["small"]).await;
    let nodeset = zuul.accept(first).await;
    let whole = zuul.submit(&["small"; 4]).await;
    eventually("it is held until there is room", || async {
        let request = zuul.registry.requests().get(whole).await.unwrap()?;
        (request.value.state == RequestState::Pending).then_some(())
    })
    .await;
    cloud.create("foreign", &[]).await;
    assert_eq!(zuul.done(whole).await.state, RequestState::Failed);
    zuul.unlock(nodeset).await;
    launcher.stop().await;
}

/// A launcher that sees at once what others do in its cloud.
async fn that_looks_often(store: &Store, cloud: &Arc<FakeCloud>) -> Running {
    let timing = LauncherTiming {
        cloud_check: Duration::from_millis(100),
        ..by_itself()
    };
    let drivers = Arc::clone(cloud) as _;
    Running::start_on(store.session().await, drivers, &config(4, SMALL), timing).await
}

/// Clouds are polled on events only, and nothing is cleaned up.
fn by_itself() -> LauncherTiming {
    LauncherTiming {
        cleanup: Duration::from_secs(3600),
        cloud_check: Duration::from_secs(3600),
        ..quick()
    }
}
