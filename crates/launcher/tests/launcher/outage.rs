//! A launcher starts while one of its clouds cannot be reached.

use std::sync::Arc;

use nodeyard_model::RequestState;

use crate::bed::{Running, Store, eventually, logs};
use crate::cloud::SMALL;
use crate::fake::{FakeCloud, PROVIDER, config, simulate, with_second};
use crate::zuul::Zuul;

const OTHER: &str = "other-cloud";

/// Another provider with the same label, which has room for one node only.
fn with_small_second() -> String {
    let text = with_second(&config(2, SMALL), OTHER);
    let (before, after) = text.rsplit_once("max-servers: 2").unwrap();
    format!("{before}max-servers: 1{after}")
}

async fn has_failed(launcher: &Running) {
    eventually("the provider has failed to start", || async {
        let status = launcher.handle.status().await?;
        let mut failed = status.failed_providers.iter();
        failed.any(|(name, _)| name == PROVIDER).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_waits_for_a_cloud_that_cannot_be_reached() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    cloud.cut_off(PROVIDER, true);
    let drivers = Arc::clone(&cloud) as _;
    let launcher = Running::start(&store, drivers, &with_small_second()).await;
    let zuul = Zuul::new(store.session().await);
    let id = zuul.submit(&["small", "small"]).await;
    let request = eventually("the other pool has declined", || async {
        let request = zuul.registry.requests().get(id).await.unwrap()?.value;
        (!request.declined_by.is_empty()).then_some(request)
    })
    .await;
    assert_eq!(request.state, RequestState::Requested);
    eventually("the reason is shown", || async {
        let why = launcher.handle.explain(id).await?.to_string();
        why.contains("its provider did not start").then_some(())
    })
    .await;
    let pools = zuul.registry.components().pools().await.unwrap();
    let paused = |name: &str| {
        let mut pools = pools.iter();
        let pool = pools.find(|pool| pool.provider_name.as_str() == name);
        pool.unwrap().paused
    };
    assert!(paused(PROVIDER));
    assert!(!paused(OTHER));

    cloud.cut_off(PROVIDER, false);
    zuul.run_job(id).await;
    eventually("one pool is left of each provider", || async {
        let pools = zuul.registry.components().pools().await.unwrap();
        (pools.len() == 2).then_some(())
    })
    .await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_declined_while_a_cloud_cannot_be_reached() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    cloud.cut_off(PROVIDER, true);
    let drivers = Arc::clone(&cloud) as _;
    let launcher = Running::start(&store, drivers, &with_small_second()).await;
    has_failed(&launcher).await;
    // From now on an attempt to start it does not end.
    cloud.hold_limits(true);
    cloud.cut_off(PROVIDER, false);
    let zuul = Zuul::new(store.session().await);
    let id = zuul.submit(&["unknown"]).await;
    assert_eq!(zuul.done(id).await.state, RequestState::Failed);
    let id = zuul.submit(&["small"]).await;
    zuul.run_job(id).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launcher_is_ready_although_its_last_provider_failed_to_start() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    cloud.cut_off(PROVIDER, true);
    let drivers = Arc::clone(&cloud) as _;
    let mut launcher = Running::start(&store, drivers, &config(2, SMALL)).await;
    assert!(launcher.handle.until_ready().await);
    launcher.stop().await;
}

/// It has been changed while the cloud could not be reached.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_provider_follows_the_configuration() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    cloud.cut_off(PROVIDER, true);
    let drivers = Arc::clone(&cloud) as _;
    let launcher = Running::start(&store, drivers, &config(1, SMALL)).await;
    has_failed(&launcher).await;
    let config = crate::bed::parse(&config(2, SMALL));
    launcher.config.send(config).unwrap();
    let zuul = Zuul::new(store.session().await);
    let id = zuul.submit(&["small", "small"]).await;
    eventually("the request waits", || async {
        let why = launcher.handle.explain(id).await?.to_string();
        why.contains("its provider did not start").then_some(())
    })
    .await;
    launcher
        .config
        .send(crate::bed::parse("labels: []\n"))
        .unwrap();
    eventually("no pool is left", || async {
        let pools = zuul.registry.components().pools().await.unwrap();
        pools.is_empty().then_some(())
    })
    .await;
    launcher.stop().await;
}
