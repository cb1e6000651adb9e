//! Remains of failed work on disk and in clouds, and clouds that fail to delete images.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use nodeyard_builder::jobs::{FailureKind, LocalState, UploadProgress};
use nodeyard_config::Fake;
use nodeyard_driver::Error;
use nodeyard_driver_fake::{CallError, CloudError, Connector, InProcess, Simulate, Transport};
use nodeyard_gearman::client::{JobOutcome, JobRequest};
use nodeyard_testbeds::SmallDisk;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::watch;

use crate::worker::fixtures::{
    GOOD, JobServerKind, Jobs, PROVIDER, TestCloud, TestHost, TestWorker, parse, soon, until,
};

const UPLOAD: &str = r#"{"provider": "fake-cloud", "image-name": "trusty"}"#;
const MANAGED: &str = r#"{"provider": "fake-cloud", "managed": "s", "upload-id": "0000000001"}"#;

/// The behavior of a cloud when it deletes an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeletionFault {
    Willing,
    Refuses,
    /// Until it is in another mood.
    Hangs,
}

/// A cloud with moods.
struct FaultyCloud {
    cloud: Arc<TestCloud>,
    mood: watch::Sender<DeletionFault>,
    /// How often it was to delete an image.
    deletions: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct FaultyDriver {
    transport: InProcess,
    mood: watch::Receiver<DeletionFault>,
    deletions: Arc<AtomicUsize>,
}

#[async_trait]
impl Transport for FaultyDriver {
    async fn call(&self, method: &str, arguments: Vec<u8>) -> Result<Box<RawValue>, CallError> {
        if method == "delete_image" {
            self.deletions.fetch_add(1, Ordering::SeqCst);
            let mut mood = self.mood.clone();
            let mood = *mood
                .wait_for(|mood| *mood != DeletionFault::Hangs)
                .await
                .unwrap();
            if mood == DeletionFault::Refuses {
                return Err(CallError::Refused(CloudError {
                    status: 403,
                    class: "Forbidden".to_owned(),
                    message: "not today".to_owned(),
                    resource_id: None,
                }));
            }
        }
        self.transport.call(method, arguments).await
    }
}

impl Connector for FaultyCloud {
    fn connect(&self, _: &str, _: &Fake) -> Result<Arc<dyn Transport>, Error> {
        Ok(Arc::new(FaultyDriver {
            transport: InProcess::new(Arc::clone(&self.cloud.world), PROVIDER),
            mood: self.mood.subscribe(),
            deletions: Arc::clone(&self.deletions),
        }))
    }
}

impl FaultyCloud {
    fn new(mood: DeletionFault) -> Arc<Self> {
        Arc::new(Self {
            cloud: TestCloud::new(Simulate::default()),
            mood: watch::Sender::new(mood),
            deletions: Arc::default(),
        })
    }
}

async fn build(jobs: &Jobs, id: &str) {
    let order = json!({ "image-id": id }).to_string();
    jobs.json("image-build:trusty", &order).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_upload_of_nobody_leaves_in_a_cloud_is_not_forgotten() {
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let cloud = FaultyCloud::new(DeletionFault::Refuses);
    let hook = host.script("hook", "exit 3");
    let keys = format!("    post-upload-hook: {}\n", hook.display());
    let config = parse(&host.config(&[("trusty", GOOD)], &keys));
    let worker = TestWorker::start(&jobs, cloud.clone(), Arc::clone(&config)).await;
    build(&jobs, "1").await;
    let failure = jobs.call("image-upload:1", UPLOAD).await.unwrap_err();
    assert!(failure.reason.contains("hook"), "{failure}");
    assert_eq!(cloud.cloud.uploads().await.len(), 1);

    // The last trace of it does not go, neither now nor after a restart.
    for worker in [Some(worker), None] {
        let worker = match worker {
            Some(worker) => worker,
            None => TestWorker::start(&jobs, cloud.clone(), Arc::clone(&config)).await,
        };
        let failure = jobs.call("image-delete:1", "").await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unable, "{failure}");
        assert!(failure.reason.contains(PROVIDER), "{failure}");
        assert!(host.path("images/trusty-1.qcow2").exists());
        worker.stop().await;
        jobs.left().await;
    }

    // A worker that runs all the time tries again.
    let worker = TestWorker::start(&jobs, cloud.clone(), config).await;
    let tried = cloud.deletions.load(Ordering::SeqCst);
    until("it is tried again", || async {
        (cloud.deletions.load(Ordering::SeqCst) > tried + 1).then_some(())
    })
    .await;
    assert_eq!(cloud.cloud.uploads().await.len(), 1);
    cloud.mood.send_replace(DeletionFault::Willing);
    until("the cloud is clean, and the worker knows", || async {
        let forgotten = jobs.info("1").await.uploads.is_empty();
        (forgotten && cloud.cloud.uploads().await.is_empty()).then_some(())
    })
    .await;
    jobs.call("image-delete:1", "").await.unwrap();
    assert_eq!(host.files(), [""; 0]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_in_a_provider_that_has_left_keeps_no_image_here() {
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let cloud = FaultyCloud::new(DeletionFault::Refuses);
    let hook = host.script("hook", "exit 3");
    let keys = format!("    post-upload-hook: {}\n", hook.display());
    let text = host.config(&[("trusty", GOOD)], &keys);
    let worker = TestWorker::start(&jobs, cloud.clone(), parse(&text)).await;
    build(&jobs, "1").await;
    jobs.call("image-upload:1", UPLOAD).await.unwrap_err();
    let elsewhere = text.replace(&format!("name: {PROVIDER}"), "name: another");
    worker.config.send_replace(parse(&elsewhere));
    until("the image can be deleted", || async {
        jobs.call("image-delete:1", "").await.ok()
    })
    .await;
    assert_eq!(host.files(), [""; 0]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_upload_of_a_steward_leaves_is_the_stewards() {
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let cloud = FaultyCloud::new(DeletionFault::Refuses);
    let hook = host.script("hook", "exit 3");
    let keys = format!("    post-upload-hook: {}\n", hook.display());
    let config = parse(&host.config(&[("trusty", GOOD)], &keys));
    let worker = TestWorker::start(&jobs, cloud.clone(), config).await;
    build(&jobs, "1").await;
    let failure = jobs.call("image-upload:1", MANAGED).await.unwrap_err();
    let info = jobs.info("1").await;
    assert_eq!(info.uploads[0].state, UploadProgress::Failed(failure));
    jobs.call("image-delete:1", "").await.unwrap();
    cloud.mood.send_replace(DeletionFault::Willing);
    let job =
        json!({"image": "trusty", "image-id": "1", "managed": "s", "upload-id": "0000000001"});
    jobs.call("upload-delete:fake-cloud", &job.to_string())
        .await
        .unwrap();
    assert!(cloud.cloud.uploads().await.is_empty());
    worker.stop().await;
}

/// A worker that has uploaded an image to a cloud where no deletion ends.
async fn with_a_hanging_cloud(host: &TestHost, jobs: &Jobs) -> (Arc<FaultyCloud>, TestWorker) {
    let cloud = FaultyCloud::new(DeletionFault::Hangs);
    let config = parse(&host.config(&[("trusty", GOOD)], ""));
    let worker = TestWorker::start(jobs, cloud.clone(), config).await;
    build(jobs, "1").await;
    jobs.json("image-upload:1", MANAGED).await;
    (cloud, worker)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cloud_that_hangs_keeps_nothing_else_waiting() {
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let (cloud, worker) = with_a_hanging_cloud(&host, &jobs).await;
    let client = jobs.client();
    let function = "upload-delete:fake-cloud";
    let delete = |external: &str| {
        let job = json!({"image": "trusty", "image-id": "1", "external-id": external});
        JobRequest::new(function, job.to_string())
    };
    let mut waiting = Vec::new();
    for number in 2..10 {
        let order = MANAGED.replace("0000000001", &format!("{number:010}"));
        let uploaded = jobs.json("image-upload:1", &order).await;
        let external = uploaded["external-id"].as_str().unwrap();
        waiting.push(client.submit(&delete(external)).await.unwrap());
    }
    until("it has as much to do as it can", || async {
        (cloud.deletions.load(Ordering::SeqCst) >= 4).then_some(())
    })
    .await;
    let last = MANAGED.replace("0000000001", "0000000010");
    jobs.json("image-upload:1", &last).await;
    jobs.call("image-delete:1", "").await.unwrap();
    cloud.mood.send_replace(DeletionFault::Willing);
    for job in waiting {
        soon("a deletion ends", job.wait()).await;
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_for_the_same_deletion_joins() {
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let (cloud, worker) = with_a_hanging_cloud(&host, &jobs).await;
    let order =
        r#"{"image": "trusty", "image-id": "1", "managed": "s", "upload-id": "0000000001"}"#;
    let request = JobRequest::new("upload-delete:fake-cloud", order);
    let first = jobs.client().submit(&request).await.unwrap();
    until("the cloud is asked", || async {
        (cloud.deletions.load(Ordering::SeqCst) == 1).then_some(())
    })
    .await;
    let second = jobs.client().submit(&request).await.unwrap();
    jobs.busy("upload-delete:fake-cloud", 2).await;
    cloud.mood.send_replace(DeletionFault::Willing);
    for job in [first, second] {
        let outcome = soon("the deletion ends", job.wait()).await;
        assert!(matches!(outcome, JobOutcome::Complete(_)), "{outcome:?}");
    }
    assert_eq!(cloud.deletions.load(Ordering::SeqCst), 1);
    assert!(cloud.cloud.uploads().await.is_empty());
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_file_is_not_offered_for_upload() {
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let config = parse(&host.config(&[("trusty", GOOD)], ""));
    let cloud = TestCloud::new(Simulate::default());
    let worker = TestWorker::start(&jobs, cloud.clone(), Arc::clone(&config)).await;
    for id in ["1", "2", "3"] {
        build(&jobs, id).await;
    }
    jobs.call("image-delete:1", r#"{"formats": ["qcow2"]}"#)
        .await
        .unwrap();
    jobs.withdrawn("image-upload:1").await;
    assert_eq!(jobs.info("1").await.state, LocalState::Ready);
    worker.stop().await;
    jobs.left().await;

    // Nor a damaged file.
    std::fs::write(host.path("images/trusty-2.qcow2"), "").unwrap();
    let worker = TestWorker::start(&jobs, cloud, config).await;
    let offered = worker.handle.status().unwrap().functions;
    let uploads = offered
        .iter()
        .filter(|name| name.starts_with("image-upload:"));
    assert_eq!(uploads.collect::<Vec<_>>(), ["image-upload:3"]);
    for id in ["1", "2", "3"] {
        jobs.call(&format!("image-delete:{id}"), "").await.unwrap();
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_fails_half_way_is_finished_later() {
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let config = parse(&host.config(&[("trusty", GOOD)], ""));
    let cloud = TestCloud::new(Simulate::default());
    let worker = TestWorker::start(&jobs, cloud.clone(), Arc::clone(&config)).await;
    build(&jobs, "1").await;
    // A mount point cannot be removed and is retried last.
    let Some(in_the_way) = SmallDisk::mount(&host.path("images/trusty-1.vmdk"), 1) else {
        return;
    };
    for _ in 0..2 {
        let failure = jobs.call("image-delete:1", "").await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unable, "{failure}");
        assert!(failure.reason.contains("trusty-1.vmdk"), "{failure}");
        assert!(!host.path("images/trusty-1.qcow2").exists());
        let info = jobs.info("1").await;
        assert_eq!(info.state, LocalState::Failed);
    }
    jobs.withdrawn("image-upload:1").await;
    worker.stop().await;
    jobs.left().await;

    // It does not keep a worker from starting.
    let worker = TestWorker::start(&jobs, cloud, config).await;
    assert_eq!(jobs.info("1").await.state, LocalState::Failed);
    drop(in_the_way);
    for function in ["image-info:1", "image-delete:1"] {
        jobs.withdrawn(function).await;
    }
    assert_eq!(host.files(), [""; 0]);
    worker.stop().await;
}
