//! The store goes away for a while, with or without the session.

use std::sync::Arc;
use std::time::Duration;

use nodeyard_model::RequestState;
use nodeyard_store::{Session, TreePath, ext};
use nodeyard_testbeds::ZooKeeperServer;
use nodeyard_testbeds::store::connect;

use crate::bed::{Running, Store, eventually, locked_requests, logs, quick};
use crate::cloud::{SMALL, nothing_is_left};
use crate::fake::{FakeCloud, config, simulate};
use crate::zuul::{Zuul, all_different};

/// For a session that is to die.
const SHORT: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread")]
async fn a_launcher_recovers_from_the_loss_of_its_own_session() {
    logs();
    let store = Store::zookeeper().await;
    let (tree, proxy) = store.through_a_proxy(SHORT).await;
    let cloud = FakeCloud::new(simulate());
    let launcher = Running::start_on(
        Arc::clone(&tree),
        Arc::clone(&cloud) as _,
        &config(2, SMALL),
        quick(),
    )
    .await;
    let zuul = Zuul::new(store.session().await);
    cloud.hold_boots(true);
    let id = zuul.submit(&["small", "small"]).await;
    eventually("machines boot", || async {
        (cloud.servers().await.len() == 2).then_some(())
    })
    .await;
    let abandoned = cloud.servers().await;
    let before = tree.session().borrow().id();
    assert!(before.is_some());

    proxy.refuse(true);
    eventually("the session is over", || async {
        let locked = locked_requests(&zuul.registry).await;
        locked.is_empty().then_some(())
    })
    .await;
    proxy.refuse(false);
    cloud.hold_boots(false);
    eventually("there is another session", || async {
        let session = *tree.session().borrow();
        (matches!(session, Session::Connected(_)) && session.id() != before).then_some(())
    })
    .await;

    zuul.run_job(id).await;
    eventually("what was being launched is gone", || async {
        let servers = cloud.servers().await;
        (!servers.iter().any(|name| abandoned.contains(name))).then_some(())
    })
    .await;
    assert!(cloud.peak() <= 2, "{} servers at once", cloud.peak());
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

/// Without the store nothing is released, and stopping does not wait: locks and registrations end with the session.
#[tokio::test(flavor = "multi_thread")]
async fn a_launcher_stops_while_the_store_is_away() {
    logs();
    let store = Store::zookeeper().await;
    let zuul = Zuul::new(store.session().await);
    let cloud = FakeCloud::new(simulate());
    cloud.hold_boots(true);
    for busy in [false, true] {
        let (tree, proxy) = store.through_a_proxy(Duration::from_secs(60)).await;
        let text = config(2, SMALL);
        let drivers = Arc::clone(&cloud) as _;
        let mut launcher = Running::start_on(tree, drivers, &text, quick()).await;
        assert!(launcher.handle.until_ready().await);
        eventually("its pool is in the registry", || async {
            let pools = zuul.registry.components().pools().await.unwrap();
            (!pools.is_empty()).then_some(())
        })
        .await;
        if busy {
            zuul.submit(&["small"]).await;
            eventually("a machine boots", || async {
                (!cloud.servers().await.is_empty()).then_some(())
            })
            .await;
        }
        proxy.refuse(true);
        launcher.stop().await;
    }
}

/// A real server, and not only the way to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_server_loses_nothing() {
    logs();
    let server = blocking(|| ZooKeeperServer::start().unwrap()).await;
    let server = Arc::new(server);
    let session = || async {
        let tree = connect(server.port(), TreePath::root(), Duration::from_secs(60));
        ext::connected(&*tree).await.unwrap();
        tree
    };
    let cloud = FakeCloud::new(simulate());
    let drivers = Arc::clone(&cloud) as _;
    let launcher = Running::start_on(session().await, drivers, &config(3, SMALL), quick()).await;
    // The requestor's own calls do not outlast the server, so it works between the restarts.
    let zuul = Arc::new(Zuul::new(session().await));
    let mut used = Vec::new();
    for round in 0..3 {
        let mut ids = Vec::new();
        for number in 0..6 {
            let labels: &[&str] = if number % 3 == 0 {
                &["small", "small"]
            } else {
                &["small"]
            };
            ids.push(zuul.submit(labels).await);
        }
        // In the middle of it: some are launched, some wait.
        cloud.created(8 * round + 2).await;
        let restarted = Arc::clone(&server);
        blocking(move || restarted.restart().unwrap()).await;
        ext::reconnected(&*zuul.tree).await.unwrap();
        let jobs = ids.into_iter().map(|id| {
            let zuul = Arc::clone(&zuul);
            tokio::spawn(async move { zuul.run_job(id).await })
        });
        for job in jobs.collect::<Vec<_>>() {
            used.extend(job.await.unwrap());
        }
    }
    all_different(used, 24);
    assert!(cloud.peak() <= 3, "{} servers at once", cloud.peak());
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_connections_lose_nothing() {
    logs();
    let store = Store::zookeeper().await;
    let (tree, proxy) = store.through_a_proxy(Duration::from_secs(60)).await;
    let cloud = FakeCloud::new(simulate());
    let launcher =
        Running::start_on(tree, Arc::clone(&cloud) as _, &config(4, SMALL), quick()).await;
    let zuul = Arc::new(Zuul::new(store.session().await));
    let jobs = (0..30).map(|_| {
        let zuul = Arc::clone(&zuul);
        tokio::spawn(async move {
            let id = zuul.submit(&["small"]).await;
            zuul.run_job(id).await
        })
    });
    let jobs: Vec<_> = jobs.collect();
    let proxy = Arc::new(proxy);
    let breaking = tokio::spawn({
        let proxy = Arc::clone(&proxy);
        async move {
            // Not for ever: a busy machine must get its work done in between.
            for _ in 0..20 {
                tokio::time::sleep(Duration::from_millis(70)).await;
                proxy.drop_connections();
            }
        }
    });
    let mut used = Vec::new();
    for job in jobs {
        used.extend(job.await.unwrap());
    }
    breaking.abort();
    all_different(used, 30);
    assert!(cloud.peak() <= 4, "{} servers at once", cloud.peak());
    let requests = zuul.registry.requests().list().await.unwrap();
    assert!(
        requests
            .iter()
            .all(|(_, r)| r.value.state != RequestState::Failed)
    );
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}
