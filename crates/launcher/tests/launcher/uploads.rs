//! Launches from built and uploaded images, according to their records.

use std::sync::Arc;
use std::time::Duration;

use nodeyard_launcher::{LauncherTiming, canary};
use nodeyard_model::{
    BuildKey, ImageName, ImageUpload, ProviderName, RequestState, Timestamp, UploadState,
};
use nodeyard_plan::canary::TrialOutcome;

use crate::bed::{Running, Store, eventually, logs, quick};
use crate::fake::{FakeCloud, PROVIDER, simulate};
use crate::zuul::Zuul;

const BUILD: &str = "0123456789abcdef0123456789abcdef";
const CONFIG: &str = "
labels: [{name: small, min-ready: 1}]
diskimages: [{name: debian, username: unused}]
providers:
  - name: fake-cloud
    driver: fake
    rate: 0
    diskimages: [{name: debian, connection-port: 2222}]
    pools:
      - name: main
        labels: [{name: small, diskimage: debian, flavor-name: tiny}]
";

/// Records an upload to the provider of the test, as a builder does.
async fn upload(zuul: &Zuul, provider: &str, at: f64, state: UploadState, id: &str) {
    upload_of(BUILD, zuul, provider, at, state, id).await;
}

async fn upload_of(
    build: &str,
    zuul: &Zuul,
    provider: &str,
    at: f64,
    state: UploadState,
    id: &str,
) {
    let build = BuildKey {
        image: ImageName::new("debian").unwrap(),
        build: build.parse().unwrap(),
    };
    let mut upload = ImageUpload::new(state, Timestamp::from_secs(at).unwrap());
    upload.external_id = Some(id.into());
    upload.username = Some(format!("user-{id}").into());
    upload.python_path = Some("/usr/bin/python3".into());
    upload.shell_type = Some("sh".into());
    let provider = ProviderName::new(provider).unwrap();
    let images = zuul.registry.images();
    images
        .create_upload(&build, &provider, &upload)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_was_deleted_in_the_cloud_is_noticed_and_launches_use_what_is_left() {
    logs();
    let store = Store::embedded();
    let mut simulate = simulate();
    simulate.images = ["older", "newest"].map(str::to_owned).into();
    let cloud = FakeCloud::new(simulate);
    let zuul = Zuul::new(store.session().await);
    let (older, newest) = (
        cloud.image_id("older").await,
        cloud.image_id("newest").await,
    );
    upload(&zuul, PROVIDER, 5.0, UploadState::Ready, &older).await;
    upload(&zuul, PROVIDER, 9.0, UploadState::Ready, &newest).await;
    // This one was never in any list of the cloud.
    upload(&zuul, PROVIDER, 1.0, UploadState::Ready, "unlisted").await;
    let drivers = Arc::clone(&cloud) as _;
    let text = CONFIG.replace(", min-ready: 1", "");
    let launcher = Running::start_on(store.session().await, drivers, &text, quick()).await;
    cloud.listed_times(2).await;
    cloud.delete_image(&newest).await;
    let states = || async {
        let images = zuul.registry.images();
        let build = BuildKey {
            image: ImageName::new("debian").unwrap(),
            build: BUILD.parse().unwrap(),
        };
        let provider = ProviderName::new(PROVIDER).unwrap();
        let uploads = images.uploads(&build, &provider).await.unwrap();
        let uploads = uploads.into_iter().map(|(_, stored)| stored.value);
        let pairs = uploads.map(|upload| (upload.external_id.unwrap().into_string(), upload.state));
        pairs.collect::<std::collections::BTreeMap<String, UploadState>>()
    };
    eventually("the upload is marked", || async {
        (states().await[&newest] == UploadState::Deleting).then_some(())
    })
    .await;
    assert_eq!(states().await[&older], UploadState::Ready);
    assert_eq!(states().await["unlisted"], UploadState::Ready);
    let id = zuul.submit(&["small"]).await;
    zuul.accept(id).await;
    assert_eq!(cloud.boot_images().await, [older]);
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_boot_from_the_newest_upload_as_soon_as_there_is_one() {
    logs();
    let store = Store::embedded();
    let mut simulate = simulate();
    simulate.images = ["early", "late", "newest"].map(str::to_owned).into();
    let cloud = FakeCloud::new(simulate);
    // Only events lead to anything.
    let never = Duration::from_secs(24 * 3600);
    let timing = LauncherTiming {
        pass: never,
        cleanup: never,
        cloud_check: never,
        ..quick()
    };
    let drivers = Arc::clone(&cloud) as _;
    let launcher = Running::start_on(store.session().await, drivers, CONFIG, timing).await;
    let zuul = Zuul::new(store.session().await);
    let [early, late, newest] = [
        cloud.image_id("early").await,
        cloud.image_id("late").await,
        cloud.image_id("newest").await,
    ];
    // None of these will do: one has failed, one is elsewhere.
    upload(&zuul, PROVIDER, 9.0, UploadState::Failed, &newest).await;
    upload(&zuul, "elsewhere", 9.0, UploadState::Ready, &newest).await;
    let id = zuul.submit(&["small"]).await;
    let failed = zuul.done(id).await;
    assert_eq!(failed.state, RequestState::Failed);
    eventually("the launcher says why", || async {
        let why = launcher.handle.explain(id).await?.to_string();
        why.contains("debian").then_some(())
    })
    .await;
    assert_eq!(cloud.creates(), 0);

    upload(&zuul, PROVIDER, 5.0, UploadState::Ready, &late).await;
    eventually("a node is launched ahead of requests", || async {
        (cloud.boot_images().await == [late.as_str()]).then_some(())
    })
    .await;
    let id = zuul.submit(&["small"]).await;
    let nodeset = zuul.accept(id).await;
    let all_from_late = || async {
        let booted = cloud.boot_images().await;
        booted.iter().all(|id| *id == late)
    };
    assert!(all_from_late().await);
    let node = &nodeset.nodes[0].1.value;
    assert_eq!(node.username.as_deref(), Some(&*format!("user-{late}")));
    assert_eq!(node.python_path.as_deref(), Some("/usr/bin/python3"));
    assert_eq!(node.shell_type.as_deref(), Some("sh"));
    assert_eq!(
        node.connection_port,
        nodeyard_model::ConnectionPort::Number(2222)
    );
    let record = node.image_id.as_deref().unwrap();
    let place = format!("/debian/builds/{BUILD}/providers/fake-cloud/");
    assert!(record.contains(&place), "{record}");

    // An older one that was recorded later is not the newest.
    upload(&zuul, PROVIDER, 3.0, UploadState::Ready, &early).await;
    give_back(&zuul, nodeset).await;
    let id = zuul.submit(&["small"]).await;
    let nodeset = zuul.accept(id).await;
    assert!(all_from_late().await);
    give_back(&zuul, nodeset).await;
    launcher.stop().await;
}

async fn give_back(zuul: &Zuul, mut nodeset: crate::zuul::Nodeset) {
    zuul.set_state(&mut nodeset, nodeyard_model::NodeState::Used)
        .await;
    zuul.unlock(nodeset).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_build_that_fails_is_rolled_back_and_one_that_works_is_used_by_all() {
    logs();
    let store = Store::embedded();
    let mut simulate = simulate();
    simulate.images = ["old", "better"].map(str::to_owned).into();
    // The nodes are never returned.
    simulate.quota.instances = 1000;
    simulate.quota.cores = 10_000;
    simulate.quota.ram = 100_000_000;
    let cloud = FakeCloud::new(simulate);
    let config = CONFIG
        .replace("min-ready: 1", "min-ready: 0")
        .replace("username: unused", "canary: {share: 100, successes: 2}");
    let drivers = Arc::clone(&cloud) as _;
    let launcher = Running::start_on(store.session().await, drivers, &config, quick()).await;
    let zuul = Zuul::new(store.session().await);
    let image = ImageName::new("debian").unwrap();
    let state = || canary::read(&**zuul.registry.tree(), &image);
    let [old, better] = [cloud.image_id("old").await, cloud.image_id("better").await];
    let builds = ["1", "2", "3"].map(|digit| digit.repeat(32));
    let ready = UploadState::Ready;
    upload_of(&builds[0], &zuul, PROVIDER, 1.0, ready, &old).await;
    upload_of(&builds[1], &zuul, PROVIDER, 2.0, ready, "no such image").await;

    // The new one serves all launches until it has failed too often, without an operator.
    eventually("a request is served in the end", || async {
        let id = zuul.submit(&["small"]).await;
        (zuul.done(id).await.state == RequestState::Fulfilled).then_some(())
    })
    .await;
    assert!(cloud.boot_images().await.iter().all(|id| *id == old));
    let failed_build = builds[1].parse().unwrap();
    let trial = eventually("the failed one is rolled back", || async {
        let trial = state().await.unwrap().trials.get(&failed_build)?.clone();
        matches!(trial.ended, Some(TrialOutcome::RolledBack { .. })).then_some(trial)
    })
    .await;
    assert_eq!((trial.succeeded, trial.failed), (0, 2));

    upload_of(&builds[2], &zuul, PROVIDER, 3.0, ready, &better).await;
    let better_build = builds[2].parse().unwrap();
    eventually("the next one has proved itself", || async {
        let id = zuul.submit(&["small"]).await;
        zuul.done(id).await;
        let trials = state().await.unwrap().trials;
        let ended = trials
            .get(&better_build)
            .and_then(|trial| trial.ended.clone());
        matches!(ended, Some(TrialOutcome::Passed { .. })).then_some(())
    })
    .await;
    assert!(cloud.boot_images().await.contains(&better));

    // A person has the last word.
    let before = cloud
        .boot_images()
        .await
        .iter()
        .filter(|id| **id == old)
        .count();
    let pin = builds[0].parse().unwrap();
    canary::change(&**zuul.registry.tree(), &image, |state| {
        state.pinned = Some(pin);
    })
    .await
    .unwrap();
    let id = zuul.submit(&["small"]).await;
    assert_eq!(zuul.done(id).await.state, RequestState::Fulfilled);
    let after = cloud
        .boot_images()
        .await
        .iter()
        .filter(|id| **id == old)
        .count();
    assert!(after > before);
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_build_that_others_fall_back_on_is_not_judged() {
    logs();
    let store = Store::embedded();
    let mut simulate = simulate();
    simulate.images = ["new"].map(str::to_owned).into();
    let cloud = FakeCloud::new(simulate);
    let config = CONFIG
        .replace("min-ready: 1", "min-ready: 0")
        .replace("username: unused", "canary: {share: 20, successes: 1000}");
    let drivers = Arc::clone(&cloud) as _;
    let launcher = Running::start_on(store.session().await, drivers, &config, quick()).await;
    let zuul = Zuul::new(store.session().await);
    let image = ImageName::new("debian").unwrap();
    let new = cloud.image_id("new").await;
    let builds = ["1", "2"].map(|digit| digit.repeat(32));
    let ready = UploadState::Ready;
    upload_of(&builds[0], &zuul, PROVIDER, 1.0, ready, "no such image").await;
    upload_of(&builds[1], &zuul, PROVIDER, 2.0, ready, &new).await;

    // Most launches use the old one, and fail.
    let tried = builds[1].parse().unwrap();
    let state = eventually("the new one has served", || async {
        let id = zuul.submit(&["small"]).await;
        zuul.done(id).await;
        let state = canary::read(&**zuul.registry.tree(), &image).await.unwrap();
        let trial = state.trials.get(&tried);
        trial
            .is_some_and(|trial| trial.succeeded >= 2)
            .then_some(state)
    })
    .await;
    assert_eq!(state.trials.keys().collect::<Vec<_>>(), [&tried]);
    assert_eq!(state.trials[&tried].failed, 0);
    launcher.stop().await;
}
