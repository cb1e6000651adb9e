//! Steward, worker and a simulated cloud: an image from its configuration to its end.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nodeyard_builder::jobs::Function;
use nodeyard_builder::steward::RegisteredFunctions;
use nodeyard_builder::steward::notes::ImageNotes;
use nodeyard_builder::worker::{NoopWorkerEvents, Options, Worker, WorkerDependencies};
use nodeyard_config::{Config, Fake};
use nodeyard_driver::{Driver as _, Error, Owner, SystemId};
use nodeyard_driver_common::DriverKinds;
use nodeyard_driver_fake::{
    self as fake, Connector, FakeDriver, FakeKind, InProcess, Simulate, Transport, World,
};
use nodeyard_image::ImageId;
use nodeyard_model::{BuildId, BuildState, Clock, ImageName, ProviderName, UploadState};
use nodeyard_store::registry::Registry;
use nodeyard_testbeds::executable;
use nodeyard_testbeds::gearman::Kind;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::steward::fixtures::{
    PATIENCE, Records, RunningSteward, Store, TestJobServer, UploadedImages, eventually, image,
    logs, parse, provider,
};

/// Two simulated clouds.
pub(crate) struct TwoClouds {
    world: Arc<World>,
    /// Seconds by which their time runs ahead each time they look at it.
    haste: Arc<AtomicU64>,
}

impl TwoClouds {
    pub(crate) fn new() -> Arc<Self> {
        Self::with(&Simulate::default())
    }

    pub(crate) fn with(simulate: &Simulate) -> Arc<Self> {
        let options = ["one", "two"].map(|name| (name.to_owned(), simulate.clone()));
        let (haste, ahead) = (Arc::<AtomicU64>::default(), AtomicU64::new(0));
        let clock = Clock::new({
            let haste = Arc::clone(&haste);
            move || {
                let step = haste.load(Ordering::SeqCst);
                let ahead = ahead.fetch_add(step, Ordering::SeqCst) + step;
                nodeyard_model::now() + Duration::from_secs(ahead)
            }
        });
        let world = Arc::new(World::new(HashMap::from(options), clock));
        Arc::new(Self { world, haste })
    }

    /// Makes all later operations fast.
    pub(crate) fn hurry(&self) {
        self.haste.store(24 * 60 * 60, Ordering::SeqCst);
    }

    fn driver(&self, provider: &str, owner: Owner) -> FakeDriver {
        let transport = InProcess::new(Arc::clone(&self.world), provider);
        FakeDriver::new(fake::Options::new(owner), Arc::new(transport))
    }

    async fn uploads_to(&self, provider: &ProviderName) -> BTreeSet<String> {
        let owner = Owner {
            system: SystemId::new("test"),
            provider: provider.clone(),
        };
        let driver = self.driver(provider.as_str(), owner);
        let images = driver.images().unwrap().list_images().await;
        let images = images.unwrap().into_iter();
        let uploaded = images.filter(|image| image.tags().build.is_some());
        uploaded
            .map(|image| format!("{provider}/{}", image.id))
            .collect()
    }
}

impl UploadedImages for Arc<TwoClouds> {
    async fn ids(&self) -> BTreeSet<String> {
        let mut ids = self.uploads_to(&provider("one")).await;
        ids.extend(self.uploads_to(&provider("two")).await);
        ids
    }
}

impl Connector for TwoClouds {
    fn connect(&self, provider: &str, _: &Fake) -> Result<Arc<dyn Transport>, Error> {
        let world = Arc::clone(&self.world);
        Ok(Arc::new(InProcess::new(world, provider)))
    }
}

impl fmt::Debug for TwoClouds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TwoClouds")
    }
}

/// The directory of a builder with its `nodepool.yaml`.
pub(crate) struct WorkerHost(pub(crate) TempDir);

pub(crate) const BUILD: &str = r#"#!/bin/sh
for format in $(echo "$NODEYARD_FORMATS" | tr , ' '); do
    echo "this is $NODEYARD_IMAGE_ID as $format" > "$NODEYARD_OUTPUT.$format"
done
"#;

impl WorkerHost {
    pub(crate) fn new() -> Self {
        let host = Self(tempfile::tempdir().unwrap());
        executable(&host.program(), BUILD).unwrap();
        host
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.0.path().join("make-image")
    }

    pub(crate) fn config(&self, images: &str, providers: &str) -> String {
        let dir = self.0.path().display();
        format!(
            "images-dir: {dir}/images\nbuild-log-dir: {dir}/logs\n\
             diskimages: [{images}]\nproviders: [{providers}]\n"
        )
    }

    pub(crate) fn image(&self, more: &str) -> String {
        let program = self.program().display().to_string();
        format!("{{name: ubuntu, builder: command, command: {program}{more}}}")
    }

    /// How many image files there are.
    pub(crate) fn files(&self) -> usize {
        let entries = std::fs::read_dir(self.0.path().join("images")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".qcow2")).count()
    }
}

pub(crate) const BOTH: &str = "{name: one, driver: fake, diskimages: [{name: ubuntu}]}, \
                    {name: two, driver: fake, diskimages: [{name: ubuntu}]}";

pub(crate) struct RunningWorker {
    pub(crate) config: watch::Sender<Arc<Config>>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl RunningWorker {
    pub(crate) async fn start(server: &TestJobServer, clouds: &Arc<TwoClouds>, text: &str) -> Self {
        Self::start_at("builder01.example.com", server, clouds, text).await
    }

    pub(crate) async fn start_at(
        hostname: &str,
        server: &TestJobServer,
        clouds: &Arc<TwoClouds>,
        text: &str,
    ) -> Self {
        let threads = tokio::runtime::Handle::current();
        Self::start_on(&threads, hostname, server, clouds, text).await
    }

    pub(crate) async fn start_on(
        threads: &tokio::runtime::Handle,
        hostname: &str,
        server: &TestJobServer,
        clouds: &Arc<TwoClouds>,
        text: &str,
    ) -> Self {
        let mut options = Options::new(hostname, vec![server.endpoint.clone()]);
        options.unable_pause = Duration::from_millis(500);
        let (sender, config) = watch::channel(parse(text));
        let drivers = DriverKinds::default().with(FakeKind::new(Arc::clone(clouds) as _));
        let parts = WorkerDependencies {
            config,
            drivers,
            events: Arc::new(NoopWorkerEvents),
        };
        let (worker, mut handle) = Worker::new(options, parts);
        let stop = CancellationToken::new();
        let run = worker.run(stop.clone());
        let task = threads.spawn(async move { run.await.unwrap() });
        assert!(handle.until_ready().await);
        Self {
            config: sender,
            stop,
            task,
        }
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.task)
            .await
            .unwrap()
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_from_its_configuration_to_its_end() {
    logs();
    let store = Store::embedded();
    let server = TestJobServer::start().await;
    let clouds = TwoClouds::new();
    let host = WorkerHost::new();
    let text = host.config(&host.image(""), BOTH);
    let worker = RunningWorker::start(&server, &clouds, &text).await;
    let steward = RunningSteward::start(&store, &server, &text).await;
    let records = Records::of(&store).await;
    let change = |text: &str| {
        worker.config.send_replace(parse(text));
        steward.config.send_replace(parse(text));
    };

    records.settled(1, &clouds).await;
    let (_, build) = records.builds().await.remove(0);
    assert_eq!(build.builder.as_deref(), Some("builder01.example.com"));
    assert!(build.builder_id.is_some());

    // Retention: two of three builds stay, with their uploads and files.
    for _ in 0..2 {
        records.request().await;
        records.settled(2, &clouds).await;
    }
    eventually("two files are left", || async {
        (host.files() == 2).then_some(())
    })
    .await;

    // A pause holds the next build back.
    records.0.images().pause(&image()).await.unwrap();
    records.request().await;
    records.settled_but_asked(2, &clouds).await;
    records.0.images().unpause(&image()).await.unwrap();
    records.settled(2, &clouds).await;

    // A provider that does not take the image any more loses it.
    let only_one =
        "{name: one, driver: fake, diskimages: [{name: ubuntu}]}, {name: two, driver: fake}";
    change(&host.config(&host.image(""), only_one));
    eventually("the second cloud is empty", || async {
        let gone = clouds.uploads_to(&provider("two")).await.is_empty();
        (gone && records.uploads().await.len() == 2).then_some(())
    })
    .await;

    // One that takes it again gets the newest build.
    change(&text);
    eventually("the second cloud has it again", || async {
        let uploads = clouds.uploads_to(&provider("two")).await;
        (uploads.len() == 1).then_some(())
    })
    .await;
    records.settled(2, &clouds).await;

    // A provider that was removed from the configuration keeps its uploads; the image is deleted everywhere else.
    change(&host.config("", "{name: one, driver: fake}"));
    eventually("only the second cloud has something", || async {
        let gone = clouds.uploads_to(&provider("one")).await.is_empty();
        let uploads = records.uploads().await;
        let kept = uploads
            .iter()
            .all(|(_, to, _, upload)| *to == provider("two") && upload.state == UploadState::Ready);
        (gone && kept && records.builds().await.len() == 1).then_some(())
    })
    .await;
    change(&host.config("", "{name: one, driver: fake}, {name: two, driver: fake}"));
    eventually("everything is gone", || async {
        let left = records.builds().await.len() + clouds.ids().await.len() + host.files();
        (left == 0).then_some(())
    })
    .await;
    steward.stop().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_stopped_during_a_build_costs_one_attempt() {
    let store = Store::zookeeper().await;
    let server = TestJobServer::start().await;
    let clouds = TwoClouds::new();
    let host = WorkerHost::new();
    let slow = format!("#!/bin/sh\nsleep 600\n{BUILD}");
    executable(&host.program(), &slow).unwrap();
    let text = host.config(&host.image(", delete-after-upload: true"), BOTH);
    let worker = RunningWorker::start(&server, &clouds, &text).await;
    let steward = RunningSteward::start(&store, &server, &text).await;
    let records = Records::of(&store).await;
    eventually("the build is under way", || async {
        let (_, build) = records.builds().await.pop()?;
        let logs = std::fs::read_dir(host.0.path().join("logs")).ok()?;
        (build.state == BuildState::Building && logs.count() > 0).then_some(())
    })
    .await;
    worker.stop().await;
    executable(&host.program(), BUILD).unwrap();
    let worker = RunningWorker::start(&server, &clouds, &text).await;
    records.settled(1, &clouds).await;
    eventually("the file is gone after the uploads", || async {
        (host.files() == 0).then_some(())
    })
    .await;
    records.settled(1, &clouds).await;
    steward.stop().await;
    worker.stop().await;
}

/// What `hostname` has built of an image is ready, and in both clouds.
async fn is_everywhere(registry: &Registry, image: &ImageName, hostname: &str) -> Option<BuildId> {
    let images = registry.images();
    let ready = images
        .newest_builds(image, BuildState::Ready)
        .await
        .unwrap();
    let [(key, build)] = &ready[..] else {
        return None;
    };
    for name in ["one", "two"] {
        let uploads = images.uploads(key, &provider(name)).await.unwrap();
        let mut uploads = uploads.iter().map(|(_, upload)| upload.value.state);
        uploads.find(|state| *state == UploadState::Ready)?;
    }
    (build.value.builder.as_deref() == Some(hostname)).then_some(key.build)
}

#[tokio::test(flavor = "multi_thread")]
async fn builders_make_what_only_they_can_with_real_job_servers_between() {
    for kind in [Kind::Gearmand, Kind::Geard] {
        let store = Store::zookeeper().await;
        let server = TestJobServer::foreign(kind);
        let clouds = TwoClouds::new();
        let names = ["ubuntu", "debian"];
        let hosts = names.map(|_| WorkerHost::new());
        let hostnames = names.map(|name| format!("{name}.example.com"));
        let providers = |image: &str| BOTH.replace("ubuntu", image);
        let image_of = |index: usize| hosts[index].image("").replace("ubuntu", names[index]);
        let own = |index: usize| hosts[index].config(&image_of(index), &providers(names[index]));
        let mut workers = Vec::new();
        for (index, hostname) in hostnames.iter().enumerate() {
            let text = own(index);
            let worker = RunningWorker::start_at(hostname, &server, &clouds, &text).await;
            workers.push(worker);
        }
        let both = "[{name: ubuntu}, {name: debian}]";
        let everything = hosts[0].config(
            &format!("{}, {}", image_of(0), image_of(1)),
            &BOTH.replace("[{name: ubuntu}]", both),
        );
        let steward = RunningSteward::start(&store, &server, &everything).await;
        let records = Records::of(&store).await;
        let mut builds = Vec::new();
        for (name, hostname) in names.iter().zip(&hostnames) {
            let image = name.parse().unwrap();
            let ready = eventually("each has built and uploaded its own", || {
                is_everywhere(&records.0, &image, hostname)
            });
            builds.push(ImageId::from(ready.await));
        }
        // A restarted builder registers its old images, so the next deletion reaches their files.
        let debian = workers.pop().unwrap();
        debian.stop().await;
        let text = own(1);
        let debian = RunningWorker::start_at(&hostnames[1], &server, &clouds, &text).await;
        let only_ubuntu = hosts[0].config(&image_of(0), BOTH);
        steward.config.send_replace(parse(&only_ubuntu));
        eventually(
            "the other image is gone, and nobody answers for it",
            || async {
                let functions =
                    RegisteredFunctions::fetch(std::slice::from_ref(&server.endpoint), PATIENCE)
                        .await;
                let gone = !functions.is_registered(&Function::Info(builds[1].clone()))
                    && functions.is_registered(&Function::Upload(builds[0].clone()));
                let images = records.0.images();
                let debian = images.builds(&names[1].parse().unwrap()).await.unwrap();
                let left = hosts[1].files() + debian.len();
                (gone && left == 0 && clouds.ids().await.len() == 2).then_some(())
            },
        )
        .await;
        steward.stop().await;
        debian.stop().await;
        for worker in workers {
            worker.stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_worker_is_unable_to_build_another_one_builds() {
    let store = Store::embedded();
    let server = TestJobServer::start().await;
    let clouds = TwoClouds::new();
    let (able, unable) = (WorkerHost::new(), WorkerHost::new());
    std::fs::remove_file(unable.program()).unwrap();
    let mut workers = Vec::new();
    for (host, name) in [(&able, "able.example.com"), (&unable, "unable.example.com")] {
        let text = host.config(&host.image(""), BOTH);
        workers.push(RunningWorker::start_at(name, &server, &clouds, &text).await);
    }
    let text = able.config(&able.image(""), BOTH);
    let steward = RunningSteward::start_without_retries(&store, &server, &text).await;
    let records = Records::of(&store).await;
    records.settled(1, &clouds).await;
    // Which of them gets a job is up to the server.
    let was_asked = || unable.0.path().join("logs").exists();
    while !was_asked() {
        records.request().await;
        records.settled(2, &clouds).await;
    }
    let notes = ImageNotes::read(&**records.0.tree(), &image())
        .await
        .unwrap();
    assert!(notes.setbacks.is_empty(), "{notes:?}");
    steward.stop().await;
    for worker in workers {
        worker.stop().await;
    }
}
