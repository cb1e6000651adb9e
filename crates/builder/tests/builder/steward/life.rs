//! The lifecycle of images without failures.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use nodeyard_builder::steward::{
    BuildEnded, RegisteredFunctions, StewardEvents, WorkState, load_image_state, progress,
};
use nodeyard_image::ImageId;
use nodeyard_model::{BuildState, ImageName, ProviderName, UploadState};
use nodeyard_plan::images::{self, BuildVerdict, Pace, WaitReason};

use crate::steward::fixtures::{
    Records, RunningSteward, Store, TWO_PROVIDERS, TestJobServer, eventually, image, logs, parse,
    provider,
};
use crate::steward::worker::{ScriptedCloud, ScriptedWorker};

async fn stores() -> [Store; 2] {
    [Store::embedded(), Store::zookeeper().await]
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_built_uploaded_replaced_and_removed() {
    logs();
    for store in stores().await {
        let server = TestJobServer::start().await;
        let cloud = ScriptedCloud::default();
        let worker = ScriptedWorker::start(&server, &cloud, &["ubuntu"]).await;
        let steward = RunningSteward::start(&store, &server, TWO_PROVIDERS).await;
        let records = Records::of(&store).await;
        records.settled(1, &cloud).await;

        let (_, build) = records.builds().await.remove(0);
        assert_eq!(build.builder.as_deref(), Some("worker.example.com"));
        assert_eq!(build.builder_id.as_deref(), Some("w1"));
        assert_eq!(build.username.as_deref(), Some("zuul"));
        assert_eq!(build.python_path.as_deref(), Some("/usr/bin/python3"));
        assert!(build.formats.contains("qcow2"));
        let (.., upload) = records.uploads().await.remove(0);
        assert_eq!(upload.format.as_deref(), Some("qcow2"));
        assert_eq!(upload.external_name.as_deref(), Some("ubuntu-1"));
        assert_eq!(upload.python_path.as_deref(), Some("/usr/bin/python3"));

        for count in [2, 2] {
            records.request().await;
            let builds = records.settled(count, &cloud).await;
            let held: Vec<ImageId> = builds.into_iter().map(ImageId::from).collect();
            let disk = worker.disk.ids();
            assert_eq!(disk, held.into_iter().collect());
        }
        assert_eq!(worker.calls("image-build:"), 3);
        assert_eq!(worker.most_building(), 1);

        steward.config.send_replace(parse(
            "providers: [{name: one, driver: fake}, {name: two, driver: fake}]",
        ));
        eventually("the image is gone everywhere", || async {
            let left = records.builds().await.len() + cloud.ids().len() + worker.disk.ids().len();
            (left == 0).then_some(())
        })
        .await;
        steward.stop().await;
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_left_the_configuration_is_left_alone() {
    let store = Store::embedded();
    let server = TestJobServer::start().await;
    let cloud = ScriptedCloud::default();
    let worker = ScriptedWorker::start(&server, &cloud, &["ubuntu"]).await;
    let steward = RunningSteward::start(&store, &server, TWO_PROVIDERS).await;
    let records = Records::of(&store).await;
    records.settled(1, &cloud).await;
    steward
        .config
        .send_replace(parse("providers: [{name: one, driver: fake}]"));
    eventually("only the upload to the other provider is left", || async {
        let uploads = records.uploads().await;
        let left = uploads.len() == 1 && uploads[0].1 == provider("two");
        (left && cloud.ids().len() == 1).then_some(())
    })
    .await;
    assert_eq!(records.builds().await.len(), 1);
    steward.stop().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_image_is_built_when_it_is_let_go() {
    let store = Store::embedded();
    let server = TestJobServer::start().await;
    let cloud = ScriptedCloud::default();
    let worker = ScriptedWorker::start(&server, &cloud, &["ubuntu"]).await;
    let records = Records::of(&store).await;
    records.request().await;
    records.0.images().pause(&image()).await.unwrap();
    let mut steward = RunningSteward::start(&store, &server, TWO_PROVIDERS).await;
    assert!(steward.handle.until_ready().await);
    assert_eq!(worker.calls("image-build:"), 0);
    assert!(records.0.images().unpause(&image()).await.unwrap());
    records.settled(1, &cloud).await;
    assert_eq!(worker.calls("image-build:"), 1, "one build serves both");
    steward.stop().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_waits_for_a_worker_and_says_so() {
    let store = Store::embedded();
    let server = TestJobServer::start().await;
    let cloud = ScriptedCloud::default();
    let steward = RunningSteward::start(&store, &server, TWO_PROVIDERS).await;
    let records = Records::of(&store).await;
    let explain = async || {
        let servers = [server.endpoint.clone()];
        let functions =
            RegisteredFunctions::fetch(&servers, crate::steward::fixtures::PATIENCE).await;
        let config = parse(TWO_PROVIDERS);
        let image_state = load_image_state(&records.0, &config, &functions, &image())
            .await
            .unwrap();
        let now = nodeyard_model::now();
        images::decide(&image_state, &Pace::default(), now).explanation
    };
    let BuildVerdict::Waits { wait, .. } = explain().await.build else {
        panic!("{:?}", explain().await);
    };
    let function = "image-build:ubuntu".to_owned();
    assert_eq!(wait, WaitReason::Worker { function });
    assert_eq!(records.builds().await, []);

    let other = ScriptedWorker::start(&server, &cloud, &["debian"]).await;
    let worker = ScriptedWorker::start_held(&server, &cloud, &["ubuntu"]).await;
    let (build, record) = eventually("the build begins", || async {
        records.builds().await.pop()
    })
    .await;
    assert_eq!(record.state, BuildState::Building);
    assert_eq!(record.builder.as_deref(), Some("steward.example.com"));
    eventually("progress is shown", || async {
        let tree = &**records.0.tree();
        let jobs = progress::list(tree, &image()).await.unwrap();
        let [job] = &jobs[..] else { return None };
        (job.build == build && job.provider.is_none()).then_some(())
    })
    .await;
    assert!(
        matches!(explain().await.build, BuildVerdict::UnderWay { build: Some(b), .. } if b == build)
    );
    worker.hold(false);
    records.settled(1, &cloud).await;
    let jobs = progress::list(&**records.0.tree(), &image()).await.unwrap();
    assert_eq!(jobs, []);
    assert_eq!(other.calls("image-"), 0);
    steward.stop().await;
    worker.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_go_when_every_provider_has_the_image() {
    let store = Store::embedded();
    let server = TestJobServer::start().await;
    let cloud = ScriptedCloud::default();
    let worker = ScriptedWorker::start(&server, &cloud, &["ubuntu"]).await;
    let text = TWO_PROVIDERS.replace(
        "elements: [vm]",
        "elements: [vm], delete-after-upload: true",
    );
    let steward = RunningSteward::start(&store, &server, &text).await;
    let records = Records::of(&store).await;
    let [build] = records.settled(1, &cloud).await[..] else {
        panic!("one build");
    };
    eventually("the file is gone", || async {
        let formats = worker.disk.formats(&ImageId::from(build));
        formats.is_empty().then_some(())
    })
    .await;
    records.settled(1, &cloud).await;
    assert_eq!(worker.calls("image-delete:"), 1);
    steward.stop().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_people_delete_goes_and_is_made_again() {
    let store = Store::embedded();
    let server = TestJobServer::start().await;
    let cloud = ScriptedCloud::default();
    let worker = ScriptedWorker::start(&server, &cloud, &["ubuntu"]).await;
    let steward = RunningSteward::start(&store, &server, TWO_PROVIDERS).await;
    let records = Records::of(&store).await;
    records.settled(1, &cloud).await;
    let before = cloud.ids();
    let (build, to, upload, _) = records.uploads().await.remove(0);
    let key = nodeyard_model::UploadKey {
        build: nodeyard_model::BuildKey {
            image: image(),
            build,
        },
        provider: to,
        upload,
    };
    let images = records.0.images();
    let patience = nodeyard_store::registry::Patience::For(crate::steward::fixtures::PATIENCE);
    let held = images.lock_upload(&key, patience).await.unwrap().held();
    let mut held = held.unwrap();
    let now = nodeyard_model::now();
    held.value.set_state(UploadState::Deleting, now);
    images
        .store_upload(&held.guard, &key, &held.value)
        .await
        .unwrap();
    held.guard.release().await.unwrap();
    eventually("it is replaced", || async {
        (cloud.ids() != before && cloud.ids().len() == 2).then_some(())
    })
    .await;
    records.settled(1, &cloud).await;
    steward.stop().await;
    worker.stop().await;
}

/// Records all events.
#[derive(Debug, Default)]
struct RecordedEvents(Mutex<Vec<String>>);

impl RecordedEvents {
    fn note(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }
}

impl StewardEvents for RecordedEvents {
    fn built(&self, build: &BuildEnded<'_>) {
        let formats = build.formats.map(<[_]>::len);
        self.note(format!("built {} {formats:?}", build.image));
    }

    fn uploaded(&self, image: &ImageName, provider: &ProviderName, _: Duration) {
        self.note(format!("uploaded {image} {provider}"));
    }

    fn building(&self, image: &ImageName, state: WorkState) {
        self.note(format!("building {image} {}", state as u8));
    }

    fn uploading(&self, image: &ImageName, provider: &ProviderName, state: WorkState) {
        self.note(format!("uploading {image} {provider} {}", state as u8));
    }

    fn requested(&self, image: &ImageName, waits: bool) {
        self.note(format!("requested {image} {waits}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_is_told() {
    let store = Store::embedded();
    let server = TestJobServer::start().await;
    let cloud = ScriptedCloud::default();
    let records = Records::of(&store).await;
    records.request().await;
    let diary = Arc::new(RecordedEvents::default());
    let events = Arc::clone(&diary) as Arc<dyn StewardEvents>;
    let steward = RunningSteward::start_on(store.session().await, &server, TWO_PROVIDERS, events);
    let told = async |text: &str| {
        eventually(text, || async {
            let diary = diary.0.lock().unwrap();
            diary.iter().any(|line| line == text).then_some(())
        })
        .await;
    };
    told("requested ubuntu true").await;
    let worker = ScriptedWorker::start_held(&server, &cloud, &["ubuntu"]).await;
    told("building ubuntu 1").await;
    told("requested ubuntu false").await;
    worker.hold(false);
    told("built ubuntu Some(1)").await;
    told("uploaded ubuntu one").await;
    told("uploaded ubuntu two").await;
    records.settled(1, &cloud).await;
    let paused = TWO_PROVIDERS.replace("[vm]", "[vm], pause: true");
    steward.config.send_replace(parse(&paused));
    told("building ubuntu 3").await;
    steward.stop().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_stewards_do_not_get_in_each_others_way() {
    for store in stores().await {
        let server = TestJobServer::start().await;
        let cloud = ScriptedCloud::default();
        let worker = ScriptedWorker::start(&server, &cloud, &["ubuntu"]).await;
        let one = RunningSteward::start(&store, &server, TWO_PROVIDERS).await;
        let other = RunningSteward::start(&store, &server, TWO_PROVIDERS).await;
        let records = Records::of(&store).await;
        records.settled(1, &cloud).await;
        for _ in 0..3 {
            records.request().await;
            records.settled(2, &cloud).await;
        }
        assert_eq!(worker.calls("image-build:"), 4);
        assert_eq!(worker.calls("image-upload:"), 8);
        assert_eq!(worker.most_building(), 1);
        one.stop().await;
        other.stop().await;
        worker.stop().await;
    }
}
