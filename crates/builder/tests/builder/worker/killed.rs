//! `kill -9` of a worker during a build, an import, an upload and a deletion.
//!
//! The worker is a separate process: this test program, selected by an environment variable. The cloud is a server,
//! and survives.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nodeyard_builder::jobs::{FailureKind, LocalState, UploadProgress};
use nodeyard_builder::worker::{NoopWorkerEvents, Options, Worker, WorkerDependencies};
use nodeyard_config::Fake;
use nodeyard_driver::Error;
use nodeyard_driver_fake::{self as fake, Connector, Http, Simulate, Span, Transport};
use nodeyard_gearman::GearmanEndpoint;
use nodeyard_gearman::client::JobRequest;
use nodeyard_testbeds::web_server::{Asked, Body, Reply};
use nodeyard_testbeds::{SmallDisk, WebServer};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::worker::fixtures::{
    GOOD, JobServerKind, Jobs, PROVIDER, TestCloud, TestHost, connections, disk, kinds, logs,
    parse, sha256, until,
};

const CONFIG: &str = "NODEYARD_TEST_WORKER_CONFIG";
const GEARMAN: &str = "NODEYARD_TEST_WORKER_GEARMAN";
const CLOUD: &str = "NODEYARD_TEST_WORKER_CLOUD";

/// Reaches the cloud of the process that kills.
struct Remote(String);

impl Connector for Remote {
    fn connect(&self, _: &str, _: &Fake) -> Result<Arc<dyn Transport>, Error> {
        Ok(Arc::new(Http::new(&self.0, PROVIDER).unwrap()))
    }
}

#[test]
#[ignore = "the process that is killed; started by the other tests"]
fn working_until_killed() {
    logs();
    let text = |name| std::env::var(name).expect("the other tests say how");
    let config = parse(&std::fs::read_to_string(text(CONFIG)).unwrap());
    let gearman = GearmanEndpoint::new("127.0.0.1", text(GEARMAN).parse().unwrap());
    let options = Options::new("builder02.example.com", vec![gearman]);
    let (_sender, config) = watch::channel(config);
    let drivers = kinds(Arc::new(Remote(text(CLOUD))));
    let parts = WorkerDependencies {
        config,
        drivers,
        events: Arc::new(NoopWorkerEvents),
    };
    let (worker, _handle) = Worker::new(options, parts);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime
        .block_on(worker.run(CancellationToken::new()))
        .unwrap();
}

struct KilledWorkerTest {
    host: TestHost,
    jobs: Jobs,
    cloud: Arc<TestCloud>,
    cloud_url: String,
    /// A function that the worker has from its configuration.
    offers: &'static str,
}

/// Killed at the latest with this value.
struct WorkerProcess(Child);

impl WorkerProcess {
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl KilledWorkerTest {
    async fn new(between: JobServerKind, script: &str, simulate: Simulate) -> Self {
        let host = TestHost::new();
        let text = host.config(&[("trusty", script)], "");
        Self::with(host, &text, "image-build:trusty", between, simulate).await
    }

    async fn with(
        host: TestHost,
        text: &str,
        offers: &'static str,
        between: JobServerKind,
        simulate: Simulate,
    ) -> Self {
        std::fs::write(host.path("nodepool.yaml"), text).unwrap();
        let cloud = TestCloud::new(simulate);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let cloud_url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(fake::serve(
            listener,
            Arc::clone(&cloud.world),
            std::future::pending(),
        ));
        Self {
            host,
            jobs: Jobs::start(between).await,
            cloud,
            cloud_url,
            offers,
        }
    }

    async fn worker(&self) -> WorkerProcess {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "worker::killed::working_until_killed",
                "--exact",
                "--ignored",
                "--nocapture",
            ])
            .env(CONFIG, self.host.path("nodepool.yaml"))
            .env(GEARMAN, self.jobs.port().to_string())
            .env(CLOUD, &self.cloud_url)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let victim = WorkerProcess(child);
        self.jobs
            .taken(connections(&Options::new("", Vec::new())))
            .await;
        self.jobs.offered(self.offers).await;
        victim
    }

    async fn kill(&self, victim: WorkerProcess) {
        victim.kill();
        self.jobs.left().await;
    }
}

async fn submit(jobs: &Jobs, function: &str, payload: &str) {
    jobs.client()
        .submit_background(&JobRequest::new(function, payload.to_owned()))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn during_a_build() {
    for between in [
        JobServerKind::Ours,
        JobServerKind::Gearmand,
        JobServerKind::Geard,
    ] {
        let test = KilledWorkerTest::new(between, "", Simulate::default()).await;
        let pid = test.host.path("pid");
        let script = format!(
            r#"echo half > "$NODEYARD_OUTPUT.qcow2"; echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 1000"#,
            pid = pid.display(),
        );
        test.host.script("make-trusty", &script);
        let worker = test.worker().await;
        submit(&test.jobs, "image-build:trusty", r#"{"image-id": "1"}"#).await;
        let pid: u32 = until("the build has begun", || async {
            std::fs::read_to_string(&pid).ok()?.trim().parse().ok()
        })
        .await;
        assert!(test.host.path("images/trusty-1.qcow2").exists());
        test.host.script("make-trusty", GOOD);
        test.kill(worker).await;

        let worker = test.worker().await;
        until("the lost build's process is ended", || async {
            (!Path::new(&format!("/proc/{pid}")).exists()).then_some(())
        })
        .await;
        // gearmand may have given the job out again; otherwise the image has failed.
        let info = test.jobs.info("1").await;
        if info.state == LocalState::Failed {
            assert_eq!(info.failure.unwrap().kind, FailureKind::Unable);
            assert!(
                !test.host.path("images/trusty-1.qcow2").exists(),
                "half a file is no image"
            );
        }
        test.jobs
            .json("image-build:trusty", r#"{"image-id": "1"}"#)
            .await;
        assert_eq!(test.jobs.info("1").await.state, LocalState::Ready);
        worker.kill();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn during_a_build_that_has_filled_the_disk() {
    let host = TestHost::new();
    // It is not refused beforehand.
    let text = host.config(&[("trusty", "")], "") + "image-size-estimate: 1K\n";
    let offers = "image-build:trusty";
    let test = KilledWorkerTest::with(
        host,
        &text,
        offers,
        JobServerKind::Ours,
        Simulate::default(),
    )
    .await;
    let Some(_disk) = SmallDisk::mount(&test.host.path("images"), 8) else {
        return;
    };
    let full = test.host.path("full");
    let script = format!(
        r#"cat /dev/zero > "$NODEYARD_OUTPUT.qcow2"; touch {}; exec sleep 1000"#,
        full.display(),
    );
    test.host.script("make-trusty", &script);
    let worker = test.worker().await;
    submit(&test.jobs, "image-build:trusty", r#"{"image-id": "1"}"#).await;
    until("nothing more goes onto the disk", || async {
        full.exists().then_some(())
    })
    .await;
    test.host.script("make-trusty", GOOD);
    test.kill(worker).await;

    let worker = test.worker().await;
    let failure = test.jobs.info("1").await.failure.unwrap();
    assert_eq!(failure.kind, FailureKind::Unable, "{failure}");
    assert_eq!(test.host.files(), ["trusty-1.d"]);
    test.jobs
        .json("image-build:trusty", r#"{"image-id": "1"}"#)
        .await;
    worker.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn during_an_import() {
    const HALF: usize = 16 << 20;
    let plain = disk(2 * HALF);
    let is_stuck = Arc::new(AtomicBool::new(true));
    let (sent, stuck) = (plain.clone(), Arc::clone(&is_stuck));
    let server = WebServer::start(move |asked| {
        let is_second = asked.range().is_some_and(|(first, _)| first >= HALF);
        if is_second && stuck.load(Ordering::SeqCst) {
            return Reply {
                body: Body::Silence,
                ..Reply::new(200, "")
            };
        }
        Reply::file(asked, &sent, "\"1\"")
    });
    let server = server.unwrap();
    let host = TestHost::new();
    let text = host.import_config(&server.url("/"), ", download-connections: 1");
    let import = "image-import:trusty";
    let test = KilledWorkerTest::with(
        host,
        &text,
        import,
        JobServerKind::Ours,
        Simulate::default(),
    )
    .await;
    let job = json!({
        "image-id": "1", "build": {"uuid": "aaaa"},
        "artifacts": {"qcow2": {
            "name": "disk", "url": server.url("/disk.qcow2"), "metadata": {"sha256": sha256(&plain)},
        }},
    })
    .to_string();
    let worker = test.worker().await;
    submit(&test.jobs, import, &job).await;
    let part = test
        .host
        .path("images/.zuul-downloads/trusty/aaaa.qcow2.part.json");
    until("half of it is here to stay", || async {
        part.exists().then_some(())
    })
    .await;
    test.kill(worker).await;
    is_stuck.store(false, Ordering::SeqCst);
    let before = server.asked().len();

    let worker = test.worker().await;
    let info = test.jobs.info("1").await;
    if info.state == LocalState::Failed {
        assert_eq!(info.failure.unwrap().kind, FailureKind::Unable);
        let file = test.host.path("images/trusty-1.qcow2");
        assert!(!file.exists(), "half a file is no image");
    }
    test.jobs.json(import, &job).await;
    assert_eq!(test.jobs.info("1").await.state, LocalState::Ready);
    let file = std::fs::read(test.host.path("images/trusty-1.qcow2")).unwrap();
    assert!(file == plain, "the file is another one");
    let asked = server.asked().split_off(before);
    let first = asked
        .iter()
        .filter_map(Asked::range)
        .map(|(first, _)| first);
    assert_eq!(first.min(), Some(HALF), "it goes on where it was");
    assert!(!part.exists());
    worker.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn during_an_upload() {
    let long = Duration::from_secs(24 * 3600);
    let simulate = Simulate {
        upload_time: Span::exactly(long),
        ..Simulate::default()
    };
    let test = KilledWorkerTest::new(JobServerKind::Geard, GOOD, simulate).await;
    let worker = test.worker().await;
    test.jobs
        .json("image-build:trusty", r#"{"image-id": "1"}"#)
        .await;
    let managed = r#"{"provider": "fake-cloud", "managed": "s", "upload-id": "0000000001"}"#;
    let foreign = r#"{"provider": "fake-cloud", "image-name": "trusty"}"#;
    submit(&test.jobs, "image-upload:1", managed).await;
    submit(&test.jobs, "image-upload:1", foreign).await;
    until("both have begun", || async {
        (test.cloud.uploads().await.len() == 2).then_some(())
    })
    .await;
    test.kill(worker).await;

    let worker = test.worker().await;
    until("what nobody else looks after is removed", || async {
        (test.cloud.uploads().await.len() == 1).then_some(())
    })
    .await;
    let info = test.jobs.info("1").await;
    let of_steward = info
        .uploads
        .iter()
        .find(|upload| upload.upload_id == Some("0000000001".parse().unwrap()));
    let state = &of_steward.unwrap().state;
    assert!(
        matches!(state, UploadProgress::Failed(f) if f.kind == FailureKind::Unable),
        "{info:?}"
    );
    test.cloud.jump(long);
    let uploaded = test.jobs.json("image-upload:1", managed).await;
    let images = test.cloud.uploads().await;
    assert_eq!(images.len(), 1, "the upload went on where it was");
    assert_eq!(
        uploaded["external-id"].as_str(),
        images[0].id.as_text().as_deref()
    );
    worker.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn during_a_deletion() {
    let test = KilledWorkerTest::new(JobServerKind::Ours, GOOD, Simulate::default()).await;
    for round in 0..4 {
        let worker = test.worker().await;
        test.jobs
            .json("image-build:trusty", r#"{"image-id": "1"}"#)
            .await;
        submit(&test.jobs, "image-delete:1", "").await;
        // Wherever it is by then.
        tokio::time::sleep(Duration::from_millis(round)).await;
        test.kill(worker).await;

        // Either nothing was done yet, and the image is whole; or it is gone with all its files. A deletion that had
        // not begun is made now.
        let worker = test.worker().await;
        test.jobs.busy("image-delete:1", 0).await;
        let answered = test
            .jobs
            .json("image-build:trusty", r#"{"image-id": "1"}"#)
            .await;
        assert_eq!(answered["image-id"], "1");
        let expected = [
            "trusty-1.d",
            "trusty-1.qcow2",
            "trusty-1.qcow2.md5",
            "trusty-1.qcow2.sha256",
        ];
        assert_eq!(test.host.files(), expected);
        test.jobs.call("image-delete:1", "").await.unwrap();
        assert_eq!(test.host.files(), [""; 0]);
        test.kill(worker).await;
    }
}
