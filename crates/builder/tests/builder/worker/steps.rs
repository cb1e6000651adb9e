//! An upload whose worker dies before or after its n-th call to the cloud, for every n there is; and an import, whose
//! calls are those for files.
//!
//! The worker has a runtime of its own, which is dropped when it has come that far. Another one takes over. Whatever n
//! is: what a steward asked for is in the cloud once when it asks again, and what nobody looks after is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_config::{Config, Fake};
use nodeyard_driver::Error;
use nodeyard_driver_fake::{CallError, Connector, InProcess, Simulate, Span, Transport};
use nodeyard_gearman::client::JobRequest;
use nodeyard_testbeds::WebServer;
use nodeyard_testbeds::web_server::{Body, Reply};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use crate::worker::fixtures::{
    GOOD, JobServerKind, Jobs, PROVIDER, TestCloud, TestHost, TestWorker, disk, parse, sha256,
    soon, until,
};

const MANAGED: &str = r#"{"provider": "fake-cloud", "managed": "s", "upload-id": "0000000001"}"#;
const FOREIGN: &str = r#"{"provider": "fake-cloud", "image-name": "trusty"}"#;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KillMoment {
    Before,
    After,
}

/// A way to the cloud that ends at a call.
#[derive(Debug)]
struct KillTrigger {
    at: usize,
    moment: KillMoment,
    calls: AtomicUsize,
    blown: Notify,
}

#[derive(Debug)]
struct KillableTransport {
    transport: InProcess,
    fuse: Arc<KillTrigger>,
}

impl KillTrigger {
    fn new(at: usize, moment: KillMoment) -> Arc<Self> {
        Arc::new(Self {
            at,
            moment,
            calls: AtomicUsize::new(0),
            blown: Notify::new(),
        })
    }

    async fn blow(&self) -> ! {
        self.blown.notify_one();
        std::future::pending().await
    }
}

#[async_trait]
impl Transport for KillableTransport {
    async fn call(&self, method: &str, arguments: Vec<u8>) -> Result<Box<RawValue>, CallError> {
        let number = self.fuse.calls.fetch_add(1, Ordering::SeqCst);
        if number == self.fuse.at && self.fuse.moment == KillMoment::Before {
            self.fuse.blow().await;
        }
        let answer = self.transport.call(method, arguments).await;
        if number == self.fuse.at {
            self.fuse.blow().await;
        }
        answer
    }
}

struct KillableCloud {
    cloud: Arc<TestCloud>,
    fuse: Arc<KillTrigger>,
}

impl Connector for KillableCloud {
    fn connect(&self, _: &str, _: &Fake) -> Result<Arc<dyn Transport>, Error> {
        Ok(Arc::new(KillableTransport {
            transport: InProcess::new(Arc::clone(&self.cloud.world), PROVIDER),
            fuse: Arc::clone(&self.fuse),
        }))
    }
}

struct StepTest {
    host: TestHost,
    jobs: Jobs,
    cloud: Arc<TestCloud>,
    config: Arc<Config>,
}

impl StepTest {
    async fn new() -> Self {
        let host = TestHost::new();
        let config = parse(&host.config(&[("trusty", GOOD)], ""));
        let cloud = TestCloud::new(Simulate {
            upload_time: Span::exactly(Duration::from_millis(50)),
            delete_time: Span::exactly(Duration::from_millis(20)),
            ..Simulate::default()
        });
        let jobs = Jobs::start(JobServerKind::Ours).await;
        let worker = TestWorker::start(&jobs, cloud.clone(), Arc::clone(&config)).await;
        jobs.json("image-build:trusty", r#"{"image-id": "1"}"#)
            .await;
        worker.stop().await;
        Self {
            host,
            jobs,
            cloud,
            config,
        }
    }

    /// Calls a function of a worker that dies at a call; false if the job ended before that.
    async fn die(
        &self,
        at: usize,
        moment: KillMoment,
        function: &str,
        payload: &'static str,
    ) -> bool {
        let fuse = KillTrigger::new(at, moment);
        let cloud = Arc::new(KillableCloud {
            cloud: Arc::clone(&self.cloud),
            fuse: Arc::clone(&fuse),
        });
        let request = JobRequest::new(function, payload);
        let died = die_of(&fuse, &self.jobs, cloud, &self.config, &request).await;
        self.jobs.withdrawn("image-build:trusty").await;
        died
    }

    async fn successor(&self) -> TestWorker {
        TestWorker::start(&self.jobs, self.cloud.clone(), Arc::clone(&self.config)).await
    }
}

/// Has a worker do a job until the fuse blows; false if the job ended before that.
async fn die_of(
    fuse: &KillTrigger,
    jobs: &Jobs,
    clouds: Arc<dyn Connector>,
    config: &Arc<Config>,
    request: &JobRequest,
) -> bool {
    let runtime = Runtime::new().unwrap();
    let worker = TestWorker::start_on(&runtime, jobs, clouds, Arc::clone(config)).await;
    let job = jobs.client().submit(request).await.unwrap();
    let died = soon("the worker comes to its end", async {
        tokio::select! {
            () = fuse.blown.notified() => true,
            _ = job.wait() => false,
        }
    })
    .await;
    drop(worker);
    tokio::task::spawn_blocking(|| runtime.shutdown_timeout(Duration::from_secs(30)))
        .await
        .unwrap();
    died
}

/// A packed disk with its digest beside it. The n-th request is not answered, or its answer is the last.
fn files(plain: &[u8], fuse: &Arc<KillTrigger>) -> WebServer {
    let packed = zstd::encode_all(plain, 1).unwrap();
    let (digest, fuse) = (sha256(plain), Arc::clone(fuse));
    WebServer::start(move |asked| {
        let number = fuse.calls.fetch_add(1, Ordering::SeqCst);
        if number == fuse.at {
            fuse.blown.notify_one();
            if fuse.moment == KillMoment::Before {
                return Reply {
                    body: Body::Silence,
                    ..Reply::new(200, "")
                };
            }
        }
        match asked.target.as_str() {
            "/disk.qcow2.zst.sha256" => Reply::new(200, digest.clone()),
            _ => Reply::file(asked, &packed, "\"1\""),
        }
    })
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_an_import() {
    let plain = disk(300_000);
    for moment in [KillMoment::Before, KillMoment::After] {
        for at in 0.. {
            let fuse = KillTrigger::new(at, moment);
            let server = files(&plain, &fuse);
            let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
            let config = parse(&host.import_config(&server.url("/"), ""));
            let cloud = TestCloud::new(Simulate::default());
            let url = server.url("/disk.qcow2.zst");
            let job = json!({
                "image-id": "1", "build": {"uuid": "aaaa"},
                "artifacts": {"qcow2": {"name": "disk", "url": url}},
            })
            .to_string();
            let import = "image-import:trusty";
            let request = JobRequest::new(import, job.clone());
            let died = die_of(&fuse, &jobs, cloud.clone(), &config, &request).await;
            jobs.withdrawn(import).await;
            let successor = TestWorker::start(&jobs, cloud, Arc::clone(&config)).await;
            jobs.json(import, &job).await;
            let expected = [
                "trusty-1.d",
                "trusty-1.qcow2",
                "trusty-1.qcow2.md5",
                "trusty-1.qcow2.sha256",
            ];
            assert_eq!(host.files(), expected, "{at} {moment:?}");
            let file = std::fs::read(host.path("images/trusty-1.qcow2")).unwrap();
            assert!(file == plain, "{at} {moment:?}");
            until("nothing is left of the download", || async {
                let left = std::fs::read_dir(host.path("images/.zuul-downloads/trusty"));
                left.map_or(true, |mut left| left.next().is_none())
                    .then_some(())
            })
            .await;
            successor.stop().await;
            if !died {
                assert!(at > 2, "there is more than one file to ask for");
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_steward() {
    for moment in [KillMoment::Before, KillMoment::After] {
        for at in 0.. {
            let test = StepTest::new().await;
            let died = test.die(at, moment, "image-upload:1", MANAGED).await;
            let successor = test.successor().await;
            let uploaded = test.jobs.json("image-upload:1", MANAGED).await;
            let images = test.cloud.uploads().await;
            assert_eq!(images.len(), 1, "{at} {moment:?}");
            assert_eq!(
                uploaded["external-id"].as_str(),
                images[0].id.as_text().as_deref()
            );

            // The same for its removal.
            successor.stop().await;
            let gone = r#"{"image": "trusty", "image-id": "1", "managed": "s", "upload-id": "0000000001"}"#;
            test.die(at, moment, "upload-delete:fake-cloud", gone).await;
            let successor = test.successor().await;
            test.jobs
                .call("upload-delete:fake-cloud", gone)
                .await
                .unwrap();
            assert!(test.cloud.uploads().await.is_empty(), "{at} {moment:?}");
            assert!(test.jobs.info("1").await.uploads.is_empty());
            successor.stop().await;
            if !died {
                assert!(at > 1, "there is more than one step");
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_nobody() {
    for moment in [KillMoment::Before, KillMoment::After] {
        for at in 0.. {
            let test = StepTest::new().await;
            let died = test.die(at, moment, "image-upload:1", FOREIGN).await;
            let successor = test.successor().await;
            if !died {
                assert_eq!(
                    test.cloud.uploads().await.len(),
                    1,
                    "what was answered stays"
                );
                successor.stop().await;
                break;
            }
            until("what nobody looks after is gone", || async {
                let forgotten = test.jobs.info("1").await.uploads.is_empty();
                (forgotten && test.cloud.uploads().await.is_empty()).then_some(())
            })
            .await;
            let uploaded = test.jobs.json("image-upload:1", FOREIGN).await;
            let delete =
                json!({"image": "trusty", "image-id": "1", "external-id": uploaded["external-id"]});
            test.jobs
                .call("upload-delete:fake-cloud", &delete.to_string())
                .await
                .unwrap();
            assert!(test.cloud.uploads().await.is_empty());
            assert!(test.host.path("images/trusty-1.qcow2").exists());
            successor.stop().await;
        }
    }
}
