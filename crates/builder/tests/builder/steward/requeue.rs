//! A steward and a real worker, and between them job servers that are restarted, or that hand the job of a worker that
//! died out again, or do not.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_builder::steward::{NoopStewardEvents, StewardTiming};
use nodeyard_driver_fake::{Simulate, Span};
use nodeyard_model::{UploadId, UploadState};
use nodeyard_testbeds::executable;
use nodeyard_testbeds::gearman::Kind;
use tokio::runtime::Runtime;

use crate::steward::fixtures::{
    PATIENCE, Records, RunningSteward, Store, TestJobServer, UploadedImages as _, eventually, logs,
    quick,
};
use crate::steward::together::{BOTH, BUILD, RunningWorker, TwoClouds, WorkerHost};

/// The duration of an upload that ends only when the clouds are sped up.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);

struct RequeueTest {
    store: Store,
    clouds: Arc<TwoClouds>,
    host: WorkerHost,
    text: String,
    records: Records,
}

impl RequeueTest {
    async fn new() -> Self {
        logs();
        let store = Store::embedded();
        let clouds = TwoClouds::with(&Simulate {
            upload_time: Span::exactly(LONG),
            ..Simulate::default()
        });
        let host = WorkerHost::new();
        let text = host.config(&host.image(""), BOTH);
        let records = Records::of(&store).await;
        let test = Self {
            store,
            clouds,
            host,
            text,
            records,
        };
        test.hold_builds(true);
        test
    }

    fn path(&self, name: &str) -> PathBuf {
        self.host.0.path().join(name)
    }

    /// A build that is held notes its id and does no more.
    fn hold_builds(&self, hold: bool) {
        let begun = self.path("begun");
        let note = format!("echo $NODEYARD_IMAGE_ID >> {}", begun.display());
        let wait = if hold {
            let gate = self.path("gate").display().to_string();
            format!("while [ ! -e {gate} ]; do sleep 0.05; done")
        } else {
            String::new()
        };
        let program = BUILD.replace("#!/bin/sh\n", &format!("#!/bin/sh\n{note}\n{wait}\n"));
        executable(&self.host.program(), &program).unwrap();
    }

    /// The ids of builds that were begun, as often as they were.
    fn begun(&self) -> Vec<String> {
        let begun = std::fs::read_to_string(self.path("begun")).unwrap_or_default();
        begun.lines().map(str::to_owned).collect()
    }

    /// Uses long timeouts, so that a busy machine does not cause lost jobs.
    async fn steward(&self, server: &TestJobServer) -> RunningSteward {
        let timing = StewardTiming {
            lost_after: PATIENCE,
            silence_timeout: PATIENCE,
            ..quick()
        };
        let (tree, events) = (self.store.session().await, Arc::new(NoopStewardEvents));
        RunningSteward::start_with(tree, server, &self.text, events, timing)
    }

    async fn until_begun(&self, builds: usize) {
        eventually("a build is under way", || async {
            (self.begun().len() == builds).then_some(())
        })
        .await;
    }

    async fn until_uploading(&self) {
        eventually("both uploads are under way", || async {
            (self.clouds.ids().await.len() == 2).then_some(())
        })
        .await;
    }

    async fn upload_ids(&self) -> Vec<UploadId> {
        let uploads = self.records.uploads().await.into_iter();
        uploads.map(|(_, _, id, _)| id).collect()
    }

    /// Asserts that there is exactly one build, uploaded to both clouds.
    async fn until_settled(&self) {
        self.records.settled(1, &self.clouds).await;
        eventually("one file is left", || async {
            (self.host.files() == 1).then_some(())
        })
        .await;
        self.records.settled(1, &self.clouds).await;
    }
}

/// A worker with threads of its own, which end with it.
struct KillableWorker {
    threads: Runtime,
    worker: RunningWorker,
}

impl KillableWorker {
    async fn start(test: &RequeueTest, server: &TestJobServer) -> Self {
        let threads = Runtime::new().unwrap();
        let name = "builder01.example.com";
        let (handle, clouds) = (threads.handle(), &test.clouds);
        let worker = RunningWorker::start_on(handle, name, server, clouds, &test.text).await;
        Self { threads, worker }
    }

    async fn kill(self) {
        let Self { threads, worker } = self;
        drop(worker);
        tokio::task::spawn_blocking(move || threads.shutdown_timeout(PATIENCE))
            .await
            .unwrap();
    }
}

async fn the_job_server_restarts(server: TestJobServer) {
    let test = RequeueTest::new().await;
    let worker = RunningWorker::start(&server, &test.clouds, &test.text).await;
    let steward = test.steward(&server).await;
    test.until_begun(1).await;
    let server = server.restart().await;
    std::fs::write(test.path("gate"), "").unwrap();
    test.until_uploading().await;
    let (uploads, images) = (test.upload_ids().await, test.clouds.ids().await);
    let _server = server.restart().await;
    test.clouds.hurry();
    test.until_settled().await;
    assert_eq!(test.begun().len(), 1, "it was built once");
    assert_eq!(test.clouds.ids().await, images, "it was uploaded once");
    assert_eq!(test.upload_ids().await, uploads);
    steward.stop().await;
    worker.stop().await;
}

async fn the_worker_dies(server: TestJobServer, is_requeueing: bool) {
    let test = RequeueTest::new().await;
    let worker = KillableWorker::start(&test, &server).await;
    let steward = test.steward(&server).await;
    test.until_begun(1).await;
    test.hold_builds(false);
    worker.kill().await;

    let worker = KillableWorker::start(&test, &server).await;
    test.until_begun(2).await;
    test.until_uploading().await;
    let (uploads, images) = (test.upload_ids().await, test.clouds.ids().await);
    worker.kill().await;

    let worker = KillableWorker::start(&test, &server).await;
    test.clouds.hurry();
    test.until_settled().await;
    let begun = test.begun();
    assert_eq!(begun.len(), 2);
    // Handed out again, it is the same work; otherwise the steward begins anew.
    assert_eq!(begun[0] == begun[1], is_requeueing);
    assert_eq!(test.upload_ids().await == uploads, is_requeueing);
    assert_eq!(test.clouds.ids().await == images, is_requeueing);
    steward.stop().await;
    worker.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_job_server_restarts() {
    the_job_server_restarts(TestJobServer::start().await).await;
    the_job_server_restarts(TestJobServer::requeueing().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gearmand_restarts() {
    the_job_server_restarts(TestJobServer::foreign(Kind::Gearmand)).await;
    the_job_server_restarts(TestJobServer::foreign(Kind::RequeueingGearmand)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn geard_restarts() {
    the_job_server_restarts(TestJobServer::foreign(Kind::Geard)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_dies_and_our_job_server_hands_its_jobs_out_again_or_not() {
    the_worker_dies(TestJobServer::requeueing().await, true).await;
    the_worker_dies(TestJobServer::start().await, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_dies_and_gearmand_hands_its_jobs_out_again_or_not() {
    the_worker_dies(TestJobServer::foreign(Kind::RequeueingGearmand), true).await;
    the_worker_dies(TestJobServer::foreign(Kind::Gearmand), false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_dies_and_geard_forgets_its_jobs() {
    the_worker_dies(TestJobServer::foreign(Kind::Geard), false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orderly_stop_of_a_builder_is_no_setback() {
    let server = TestJobServer::start().await;
    // Its own steward stops with it, or another one is notified.
    for steward_stops in [true, false] {
        let test = RequeueTest::new().await;
        let mut worker = RunningWorker::start(&server, &test.clouds, &test.text).await;
        let mut steward =
            RunningSteward::start_without_retries(&test.store, &server, &test.text).await;
        test.until_begun(1).await;
        test.hold_builds(false);
        for _ in 0..2 {
            if steward_stops {
                tokio::join!(worker.stop(), steward.stop());
                steward =
                    RunningSteward::start_without_retries(&test.store, &server, &test.text).await;
            } else {
                worker.stop().await;
            }
            worker = RunningWorker::start(&server, &test.clouds, &test.text).await;
            eventually("uploads are under way", || async {
                let uploads = test.records.uploads().await;
                let uploading = uploads
                    .iter()
                    .filter(|(.., upload)| upload.state == UploadState::Uploading);
                (uploading.count() == 2 && test.clouds.ids().await.len() >= 2).then_some(())
            })
            .await;
        }
        test.clouds.hurry();
        test.until_settled().await;
        steward.stop().await;
        worker.stop().await;
    }
}
