//! ZooKeeper goes away during a long build, with or without the session.

use std::sync::Arc;
use std::time::Duration;

use nodeyard_builder::steward::NoopStewardEvents;
use nodeyard_model::BuildState;
use nodeyard_store::Session;

use crate::steward::fixtures::{
    Records, RunningSteward, Store, TWO_PROVIDERS, TestJobServer, eventually, logs,
};
use crate::steward::worker::{ScriptedCloud, ScriptedWorker};

/// `beside` is another steward; `ends_meanwhile` is whether the build ends while the store is offline.
async fn lose_the_session(beside: bool, ends_meanwhile: bool) {
    logs();
    let store = Store::zookeeper().await;
    let server = TestJobServer::start().await;
    let cloud = ScriptedCloud::default();
    let worker = ScriptedWorker::start(&server, &cloud, &["ubuntu"]).await;
    worker.hold(true);
    let (tree, proxy) = store.through_a_proxy(Duration::from_secs(2)).await;
    let events = Arc::new(NoopStewardEvents);
    let steward = RunningSteward::start_on(Arc::clone(&tree), &server, TWO_PROVIDERS, events);
    let records = Records::of(&store).await;
    eventually("the build is under way", || async {
        (worker.calls("image-build:") == 1).then_some(())
    })
    .await;
    let mut other = None;
    if beside {
        other = Some(RunningSteward::start(&store, &server, TWO_PROVIDERS).await);
    }
    let before = tree.session().borrow().id();
    proxy.refuse(true);
    eventually("the session is over", || async {
        let lock = records
            .0
            .images()
            .building_lock(&crate::steward::fixtures::image())
            .unwrap();
        let holders = lock.contenders().await.unwrap();
        let gone = holders.iter().all(|holder| holder.session != before);
        gone.then_some(())
    })
    .await;
    if ends_meanwhile {
        worker.hold(false);
        eventually("the build ends", || async {
            worker.disk.is_complete().then_some(())
        })
        .await;
    }
    proxy.refuse(false);
    eventually("there is another session", || async {
        let session = *tree.session().borrow();
        (matches!(session, Session::Connected(_)) && session.id() != before).then_some(())
    })
    .await;
    worker.hold(false);
    let builds = records.settled(1, &cloud).await;
    assert_eq!(builds.len(), 1);
    assert_eq!(worker.calls("image-build:"), 1, "its result counts");
    let (_, build) = records.builds().await.remove(0);
    assert_eq!(build.state, BuildState::Ready);
    steward.stop().await;
    if let Some(other) = other {
        other.stop().await;
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_outlasts_the_session_of_its_steward() {
    lose_the_session(false, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_ends_while_the_store_is_away_counts() {
    lose_the_session(false, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_is_taken_over_by_a_steward_that_can_see_the_store() {
    lose_the_session(true, false).await;
}
