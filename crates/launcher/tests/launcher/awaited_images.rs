//! Requests that wait for an image that is being made, according to the reports of stewards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_launcher::LauncherTiming;
use nodeyard_model::layout::{image_jobs, image_stewards};
use nodeyard_model::{
    BuildId, BuildKey, ImageName, ImageUpload, Opaque, ProviderName, RequestId, RequestState,
    Timestamp, UploadState,
};
use nodeyard_plan::images::{ImageJobProgress, JobDurations, JobState, StewardReport};
use nodeyard_store::{CreateMode, Tree, TreePath, Version, ext};
use serde::Serialize;

use crate::bed::{Running, Store, eventually, logs, quick};
use crate::fake::{FakeCloud, PROVIDER, simulate};
use crate::zuul::{Zuul, now};

const BUILD: &str = "0123456789abcdef0123456789abcdef";
const CONFIG: &str = "
labels: [{name: small}, {name: patient, wait-for-image: true}]
diskimages: [{name: debian}]
providers:
  - name: fake-cloud
    driver: fake
    rate: 0
    diskimages: [{name: debian}]
    pools:
      - name: main
        labels:
          - {name: small, diskimage: debian, flavor-name: tiny}
          - {name: patient, diskimage: debian, flavor-name: tiny}
";

/// A launcher without periodic work, and no builder for its image yet.
struct Bed {
    store: Store,
    cloud: Arc<FakeCloud>,
    launcher: Running,
    zuul: Zuul,
    /// The steward's session.
    steward: Arc<dyn Tree>,
    grace: Duration,
}

fn image() -> ImageName {
    "debian".parse().unwrap()
}

fn build() -> BuildId {
    BUILD.parse().unwrap()
}

fn provider() -> ProviderName {
    PROVIDER.parse().unwrap()
}

fn running() -> JobState {
    JobState::Running {
        build: Some(build()),
        since: Some(now()),
    }
}

fn blocked(reason: &str) -> JobState {
    JobState::Blocked {
        reason: reason.to_owned(),
    }
}

async fn put(tree: &dyn Tree, path: String, value: &impl Serialize) {
    let path = TreePath::new(path).unwrap();
    ext::ensure_path(tree, &path.parent().unwrap())
        .await
        .unwrap();
    let data = serde_json::to_vec(value).unwrap();
    let set = tree.set(&path, data.clone().into(), Version::Any).await;
    if set.is_err() {
        tree.create(&path, data.into(), CreateMode::Ephemeral)
            .await
            .unwrap();
    }
}

impl Bed {
    async fn new(grace: Duration) -> Self {
        logs();
        let store = Store::embedded();
        let cloud = FakeCloud::new(simulate());
        let zuul = Zuul::new(store.session().await);
        let steward = store.session().await;
        Self {
            launcher: Self::launch(&store, &cloud, grace).await,
            store,
            cloud,
            zuul,
            steward,
            grace,
        }
    }

    async fn launch(store: &Store, cloud: &Arc<FakeCloud>, grace: Duration) -> Running {
        let never = Duration::from_secs(24 * 3600);
        let timing = LauncherTiming {
            pass: never,
            cleanup: never,
            cloud_check: never,
            builder_grace: grace,
            ..quick()
        };
        let drivers = Arc::clone(cloud) as _;
        Running::start_on(store.session().await, drivers, CONFIG, timing).await
    }

    async fn restart(self) -> Self {
        self.launcher.kill().await;
        let launcher = Self::launch(&self.store, &self.cloud, self.grace).await;
        Self { launcher, ..self }
    }

    /// Reports how the image stands.
    async fn report(&self, build: JobState, upload: JobState) {
        let mut durations = JobDurations::default();
        durations.add_build(Duration::from_secs(600));
        let report = StewardReport {
            build,
            uploads: BTreeMap::from([(provider(), upload)]),
            durations,
        };
        let path = format!("{}/steward", image_stewards(&image()));
        put(&*self.steward, path, &report).await;
    }

    async fn progress(&self, done: (u64, u64)) {
        let progress = ImageJobProgress {
            build: build(),
            provider: None,
            since: now(),
            done: Some(done),
        };
        let path = format!("{}/{BUILD}", image_jobs(&image()));
        put(&*self.steward, path, &progress).await;
    }

    async fn upload(&self) {
        let key = BuildKey {
            image: image(),
            build: build(),
        };
        let at = Timestamp::from_secs(5.0).unwrap();
        let mut upload = ImageUpload::new(UploadState::Ready, at);
        upload.external_id = Some(self.cloud.image_id("trixie").await.into());
        let images = self.zuul.registry.images();
        images
            .create_upload(&key, &provider(), &upload)
            .await
            .unwrap();
    }

    /// Asks as a lease does.
    async fn lease(&self) -> RequestId {
        let data = serde_json::json!({"nodeyard_wait_for_image": true});
        let data = Opaque::encode(&data).unwrap();
        let mark = |request: &mut nodeyard_model::NodeRequest| request.requestor_data = data;
        self.zuul.submit_with(200, &["small"], mark).await
    }

    /// Returns when the explanation of a request has this in it.
    async fn explained(&self, id: RequestId, text: &str) -> String {
        eventually(text, || async {
            let explained = self.launcher.handle.explain(id).await?.to_string();
            explained.contains(text).then_some(explained)
        })
        .await
    }

    async fn fails(&self, id: RequestId, reason: &str) {
        let failed = self.zuul.done(id).await;
        assert_eq!(failed.state, RequestState::Failed);
        self.ended(id, reason).await;
    }

    async fn ended(&self, id: RequestId, reason: &str) {
        eventually(reason, || async {
            let ended = self.launcher.handle.ended(id)?.to_string();
            ended.contains(reason).then_some(())
        })
        .await;
    }

    async fn stop(self) {
        self.launcher.stop().await;
    }
}

const LONG: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_waits_for_the_build_and_the_upload_and_zuul_does_not() {
    let bed = Bed::new(LONG).await;
    bed.report(running(), JobState::NoBuild).await;
    let lease = bed.lease().await;
    let text = "image debian of label small is being built (build 0123456789abcdef0123456789abcdef), should be ready in ";
    bed.explained(lease, text).await;
    let zuul = bed.zuul.submit(&["small"]).await;
    bed.fails(zuul, "image debian of label small is not available")
        .await;
    bed.progress((42, 100)).await;
    let text = bed.explained(lease, "42 % done").await;
    let next =
        "next: image debian has to be built and uploaded to fake-cloud, then fake-cloud/main";
    assert!(text.contains(next), "{text}");
    bed.report(JobState::Done, running()).await;
    bed.explained(lease, "is being uploaded to fake-cloud")
        .await;
    assert_eq!(bed.cloud.creates(), 0);
    bed.upload().await;
    bed.zuul.fulfilled(lease).await;
    assert_eq!(bed.cloud.creates(), 1);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_can_make_all_requests_wait() {
    let bed = Bed::new(LONG).await;
    bed.report(running(), JobState::NoBuild).await;
    let zuul = bed.zuul.submit(&["patient"]).await;
    bed.explained(zuul, "image debian of label patient is being built")
        .await;
    bed.upload().await;
    bed.zuul.fulfilled(zuul).await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_launcher_changes_nothing() {
    let bed = Bed::new(LONG).await;
    bed.report(running(), JobState::NoBuild).await;
    let lease = bed.lease().await;
    bed.explained(lease, "is being built").await;
    let bed = bed.restart().await;
    bed.explained(lease, "is being built").await;
    bed.upload().await;
    bed.zuul.fulfilled(lease).await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_paused_meanwhile_ends_the_wait_with_that_reason() {
    let bed = Bed::new(LONG).await;
    bed.report(running(), JobState::NoBuild).await;
    let lease = bed.lease().await;
    bed.explained(lease, "is being built").await;
    let paused = blocked("it is paused in the configuration");
    bed.report(paused, JobState::NoBuild).await;
    bed.fails(
        lease,
        "image debian of label small is not available: it is paused in the configuration",
    )
    .await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn builds_that_fail_too_often_end_it_too() {
    let bed = Bed::new(LONG).await;
    let failed = |failures| JobState::Retrying {
        build: None,
        failures,
        until: Timestamp::from_secs(now().as_secs() + 60.0).unwrap(),
        reason: "exit code 3".to_owned(),
    };
    bed.report(failed(2), JobState::NoBuild).await;
    let lease = bed.lease().await;
    bed.explained(lease, "failed to build 2 times, is tried again in ")
        .await;
    bed.report(failed(3), JobState::NoBuild).await;
    bed.fails(lease, "it failed to build 3 times in a row: exit code 3")
        .await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_builder_the_wait_is_short() {
    let bed = Bed::new(Duration::from_millis(300)).await;
    let lease = bed.lease().await;
    bed.fails(lease, "is not available: no builder manages it")
        .await;
    let no_worker = JobState::NoWorker {
        reason: "no worker answers image-build:debian".to_owned(),
    };
    bed.report(running(), JobState::NoBuild).await;
    let lease = bed.lease().await;
    bed.explained(lease, "is being built").await;
    bed.report(no_worker, JobState::NoBuild).await;
    bed.fails(lease, "no worker answers image-build:debian")
        .await;
    // A steward that goes takes its report along.
    bed.report(running(), JobState::NoBuild).await;
    let lease = bed.lease().await;
    bed.explained(lease, "is being built").await;
    bed.steward.close().await;
    bed.fails(lease, "no builder manages it").await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_builder_that_starts_with_the_launcher_is_waited_for() {
    let bed = Bed::new(LONG).await;
    let lease = bed.lease().await;
    bed.explained(lease, "waits for a builder: no builder manages it")
        .await;
    bed.report(running(), JobState::NoBuild).await;
    bed.explained(lease, "is being built").await;
    bed.upload().await;
    bed.zuul.fulfilled(lease).await;
    bed.stop().await;
}
