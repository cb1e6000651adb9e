//! A cloud lacks what a label asks for, and has it later.

use std::sync::Arc;
use std::time::Duration;

use nodeyard_launcher::LauncherTiming;
use nodeyard_model::{ProviderName, RequestId, RequestState};
use nodeyard_operations::drain::DrainScope;

use crate::bed::{Running, Store, eventually, logs, quick};
use crate::cloud::SMALL;
use crate::fake::{FakeCloud, PROVIDER, config, simulate, with_second};
use crate::zuul::Zuul;

const LACK: &str = "the cloud has no flavor";
const DRAINED: &str = "drained-cloud";

/// One that is in use where requests wait: another pool might serve them, too.
async fn drain(launcher: &Running) {
    let scope = DrainScope::Provider(ProviderName::new(DRAINED).unwrap());
    launcher.handle.drain(scope).await.unwrap().unwrap();
    eventually("the drain is known", || async {
        let pools = launcher.handle.status().await?.pools;
        pools.iter().any(|pool| pool.drained).then_some(())
    })
    .await;
}

async fn explained(launcher: &Running, id: RequestId, text: &str) -> String {
    eventually(&format!("{id} says {text:?}"), || async {
        let explanation = launcher.handle.explain(id).await?.to_string();
        explanation.contains(text).then_some(explanation)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_is_served_when_the_cloud_has_what_its_label_lacked() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    cloud.hide_flavors(true);
    let text = with_second(&config(1, SMALL), DRAINED);
    let mut launcher = Running::start(&store, Arc::clone(&cloud) as _, &text).await;
    assert!(launcher.handle.until_ready().await);
    drain(&launcher).await;
    let zuul = Zuul::new(store.session().await);
    let id = zuul.submit(&["small"]).await;
    eventually("the pool has declined it", || async {
        let request = zuul.registry.requests().get(id).await.unwrap().unwrap();
        (!request.value.declined_by.is_empty()).then_some(())
    })
    .await;
    explained(&launcher, id, LACK).await;

    cloud.hide_flavors(false);
    let nodeset = zuul.accept(id).await;
    let node = &nodeset.nodes[0].1.value;
    assert_eq!(node.provider.as_ref().unwrap().as_str(), PROVIDER);
    // What the next one waits for is something else.
    let next = zuul.submit(&["small"]).await;
    let why = explained(&launcher, next, "instances").await;
    assert!(!why.contains(LACK), "{why}");
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_request_has_the_cloud_asked_for_what_its_label_lacked() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    cloud.hide_flavors(true);
    // The cloud is polled on request only.
    let never = Duration::from_secs(24 * 3600);
    let timing = LauncherTiming {
        cleanup: never,
        cloud_check: never,
        ..quick()
    };
    let drivers = Arc::clone(&cloud) as _;
    let text = config(1, SMALL);
    let launcher = Running::start_on(store.session().await, drivers, &text, timing).await;
    let zuul = Zuul::new(store.session().await);
    let id = zuul.submit(&["small"]).await;
    assert_eq!(zuul.done(id).await.state, RequestState::Failed);
    // The record is seen before the reason is noted, perhaps.
    eventually("the reason is shown", || async {
        let why = launcher.handle.ended(id)?.to_string();
        why.contains(LACK).then_some(())
    })
    .await;

    cloud.hide_flavors(false);
    let id = zuul.submit(&["small"]).await;
    zuul.run_job(id).await;
    launcher.stop().await;
}
