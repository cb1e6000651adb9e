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

use crate::worker::bed::{
    Between, Cloud, GOOD, Host, Jobs, PROVIDER, Running, disk, parse, sha256, soon, until,
};

const MANAGED: &str = r#"{"provider": "fake-cloud", "managed": "s", "upload-id": "0000000001"}"#;
const FOREIGN: &str = r#"{"provider": "fake-cloud", "image-name": "trusty"}"#;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Before,
    After,
}

/// A way to the cloud that ends at a call.
#[derive(Debug)]
struct Fuse {
    at: usize,
    moment: Moment,
    calls: AtomicUsize,
    blown: Notify,
}

#[derive(Debug)]
struct Mortal {
    transport: InProcess,
    fuse: Arc<Fuse>,
}

impl Fuse {
    fn new(at: usize, moment: Moment) -> Arc<Self> {
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
impl Transport for Mortal {
    async fn call(&self, method: &str, arguments: Vec<u8>) -> Result<Box<RawValue>, CallError> {
        let number = self.fuse.calls.fetch_add(1, Ordering::SeqCst);
        if number == self.fuse.at && self.fuse.moment == Moment::Before {
            self.fuse.blow().await;
        }
        let answer = self.transport.call(method, arguments).await;
        if number == self.fuse.at {
            self.fuse.blow().await;
        }
        answer
    }
}

struct MortalCloud {
    cloud: Arc<Cloud>,
    fuse: Arc<Fuse>,
}

impl Connector for MortalCloud {
    fn connect(&self, _: &str, _: &Fake) -> Result<Arc<dyn Transport>, Error> {
        Ok(Arc::new(Mortal {
            transport: InProcess::new(Arc::clone(&self.cloud.world), PROVIDER),
            fuse: Arc::clone(&self.fuse),
        }))
    }
}

struct Bed {
    host: Host,
    jobs: Jobs,
    cloud: Arc<Cloud>,
    config: Arc<Config>,
}

impl Bed {
    async fn new() -> Self {
        let host = Host::new();
        let config = parse(&host.config(&[("trusty", GOOD)], ""));
        let cloud = Cloud::new(Simulate {
            upload_time: Span::exactly(Duration::from_millis(50)),
            delete_time: Span::exactly(Duration::from_millis(20)),
            ..Simulate::default()
        });
        let jobs = Jobs::start(Between::Ours).await;
        let worker = Running::start(&jobs, cloud.clone(), Arc::clone(&config)).await;
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
    async fn die(&self, at: usize, moment: Moment, function: &str, payload: &'static str) -> bool {
        let fuse = Fuse::new(at, moment);
        let cloud = Arc::new(MortalCloud {
            cloud: Arc::clone(&self.cloud),
            fuse: Arc::clone(&fuse),
        });
        let request = JobRequest::new(function, payload);
        let died = die_of(&fuse, &self.jobs, cloud, &self.config, &request).await;
        self.jobs.withdrawn("image-build:trusty").await;
        died
    }

    async fn heir(&self) -> Running {
        Running::start(&self.jobs, self.cloud.clone(), Arc::clone(&self.config)).await
    }
}

/// Has a worker do a job until the fuse blows; false if the job ended before that.
async fn die_of(
    fuse: &Fuse,
    jobs: &Jobs,
    clouds: Arc<dyn Connector>,
    config: &Arc<Config>,
    request: &JobRequest,
) -> bool {
    let runtime = Runtime::new().unwrap();
    let worker = Running::start_on(&runtime, jobs, clouds, Arc::clone(config)).await;
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
fn files(plain: &[u8], fuse: &Arc<Fuse>) -> WebServer {
    let packed = zstd::encode_all(plain, 1).unwrap();
    let (digest, fuse) = (sha256(plain), Arc::clone(fuse));
    WebServer::start(move |asked| {
        let number = fuse.calls.fetch_add(1, Ordering::SeqCst);
        if number == fuse.at {
            fuse.blown.notify_one();
            if fuse.moment == Moment::Before {
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
    for moment in [Moment::Before, Moment::After] {
        for at in 0.. {
            let fuse = Fuse::new(at, moment);
            let server = files(&plain, &fuse);
            let (host, jobs) = (Host::new(), Jobs::start(Between::Ours).await);
            let config = parse(&host.import_config(&server.url("/"), ""));
            let cloud = Cloud::new(Simulate::default());
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
            let heir = Running::start(&jobs, cloud, Arc::clone(&config)).await;
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
            heir.stop().await;
            if !died {
                assert!(at > 2, "there is more than one file to ask for");
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_steward() {
    for moment in [Moment::Before, Moment::After] {
        for at in 0.. {
            let bed = Bed::new().await;
            let died = bed.die(at, moment, "image-upload:1", MANAGED).await;
            let heir = bed.heir().await;
            let uploaded = bed.jobs.json("image-upload:1", MANAGED).await;
            let images = bed.cloud.uploads().await;
            assert_eq!(images.len(), 1, "{at} {moment:?}");
            assert_eq!(
                uploaded["external-id"].as_str(),
                images[0].id.as_text().as_deref()
            );

            // The same for its removal.
            heir.stop().await;
            let gone = r#"{"image": "trusty", "image-id": "1", "managed": "s", "upload-id": "0000000001"}"#;
            bed.die(at, moment, "upload-delete:fake-cloud", gone).await;
            let heir = bed.heir().await;
            bed.jobs
                .call("upload-delete:fake-cloud", gone)
                .await
                .unwrap();
            assert!(bed.cloud.uploads().await.is_empty(), "{at} {moment:?}");
            assert!(bed.jobs.info("1").await.uploads.is_empty());
            heir.stop().await;
            if !died {
                assert!(at > 1, "there is more than one step");
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_nobody() {
    for moment in [Moment::Before, Moment::After] {
        for at in 0.. {
            let bed = Bed::new().await;
            let died = bed.die(at, moment, "image-upload:1", FOREIGN).await;
            let heir = bed.heir().await;
            if !died {
                assert_eq!(
                    bed.cloud.uploads().await.len(),
                    1,
                    "what was answered stays"
                );
                heir.stop().await;
                break;
            }
            until("what nobody looks after is gone", || async {
                let forgotten = bed.jobs.info("1").await.uploads.is_empty();
                (forgotten && bed.cloud.uploads().await.is_empty()).then_some(())
            })
            .await;
            let uploaded = bed.jobs.json("image-upload:1", FOREIGN).await;
            let delete =
                json!({"image": "trusty", "image-id": "1", "external-id": uploaded["external-id"]});
            bed.jobs
                .call("upload-delete:fake-cloud", &delete.to_string())
                .await
                .unwrap();
            assert!(bed.cloud.uploads().await.is_empty());
            assert!(bed.host.path("images/trusty-1.qcow2").exists());
            heir.stop().await;
        }
    }
}
