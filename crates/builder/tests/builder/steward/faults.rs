//! Failures of workers, job servers and responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nodeyard_builder::jobs::Function;
use nodeyard_builder::steward::notes::ImageNotes;
use nodeyard_builder::steward::{BuildEnded, RegisteredFunctions, StewardEvents};
use nodeyard_image::ImageId;
use nodeyard_model::{BuildState, UploadState};
use nodeyard_plan::images::Subject;

use crate::steward::fixtures::{
    PATIENCE, Records, RunningSteward, Store, TWO_PROVIDERS, TestJobServer, eventually, image,
    logs, parse, provider,
};
use crate::steward::worker::{ScriptedCloud, ScriptedWorker, WorkerCall, WorkerFault};

/// The environment of a test, with an idle steward.
struct FaultTest {
    store: Store,
    server: TestJobServer,
    cloud: ScriptedCloud,
    worker: ScriptedWorker,
    records: Records,
}

impl FaultTest {
    async fn new() -> Self {
        logs();
        let store = Store::embedded();
        let server = TestJobServer::start().await;
        let cloud = ScriptedCloud::default();
        let worker = ScriptedWorker::start(&server, &cloud, &["ubuntu"]).await;
        let records = Records::of(&store).await;
        Self {
            store,
            server,
            cloud,
            worker,
            records,
        }
    }

    async fn steward(&self) -> RunningSteward {
        RunningSteward::start(&self.store, &self.server, TWO_PROVIDERS).await
    }

    /// Uses short timeouts for lost jobs.
    async fn impatient_steward(&self) -> RunningSteward {
        RunningSteward::start_impatient(&self.store, &self.server, TWO_PROVIDERS).await
    }

    async fn notes(&self) -> ImageNotes {
        let tree = &**self.records.0.tree();
        ImageNotes::read(tree, &image()).await.unwrap()
    }
}

/// Panics on the first build event.
#[derive(Debug, Default)]
struct PanickingEvents(AtomicBool);

impl StewardEvents for PanickingEvents {
    fn built(&self, _: &BuildEnded<'_>) {
        let is_first = !self.0.swap(true, Ordering::SeqCst);
        assert!(!is_first, "a mistake");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_costs_nothing_but_what_panicked() {
    let test = FaultTest::new().await;
    let events = Arc::<PanickingEvents>::default();
    let tree = test.store.session().await;
    let steward = RunningSteward::start_on(tree, &test.server, TWO_PROVIDERS, events);
    test.records.settled(1, &test.cloud).await;
    // The same kind of work on the same image.
    test.records.request().await;
    test.records.settled(2, &test.cloud).await;
    assert_eq!(test.worker.calls("image-build:"), 2);
    steward.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_or_garbled_answer_loses_nothing() {
    for fault in [WorkerFault::AnswerLost, WorkerFault::Garbage] {
        let test = FaultTest::new().await;
        test.worker.next(WorkerCall::Build, fault);
        test.worker.next(WorkerCall::Upload, fault);
        test.worker.next(WorkerCall::Upload, fault);
        let steward = test.steward().await;
        test.records.settled(1, &test.cloud).await;
        assert_eq!(test.worker.calls("image-build:"), 1, "{fault:?}");
        assert_eq!(test.worker.calls("image-upload:"), 2, "{fault:?}");
        steward.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_remembered_and_tried_again() {
    let test = FaultTest::new().await;
    for _ in 0..2 {
        test.worker.next(WorkerCall::Build, WorkerFault::Fails);
    }
    // The third one succeeds, but not before the failures have been looked at.
    test.worker.hold(true);
    let steward = test.steward().await;
    let setback = eventually("two failures are noted", || async {
        let notes = test.notes().await;
        let setback = notes.setbacks.get(&Subject::Build)?.clone();
        (setback.failures == 2).then_some(setback)
    })
    .await;
    assert_eq!(setback.reason, "the script says so");
    test.worker.hold(false);
    test.records.settled(1, &test.cloud).await;
    eventually("nothing of it is remembered", || async {
        test.notes().await.setbacks.is_empty().then_some(())
    })
    .await;
    assert_eq!(test.worker.calls("image-build:"), 3);

    test.worker.next(WorkerCall::Upload, WorkerFault::Fails);
    test.worker
        .next(WorkerCall::UploadDelete, WorkerFault::Fails);
    test.worker.next(WorkerCall::Delete, WorkerFault::Fails);
    for _ in 0..2 {
        test.records.request().await;
        test.records.settled(2, &test.cloud).await;
    }
    steward.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_everybody_forgot_does_not_stay_in_the_cloud() {
    let test = FaultTest::new().await;
    test.worker.next(WorkerCall::Upload, WorkerFault::Forgotten);
    let steward = test.impatient_steward().await;
    test.records.settled(1, &test.cloud).await;
    assert_eq!(test.cloud.ids().len(), 2);
    assert_eq!(test.worker.calls("image-upload:"), 3);
    steward.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_everybody_forgot_is_made_again() {
    let test = FaultTest::new().await;
    test.worker.next(WorkerCall::Build, WorkerFault::Forgotten);
    let steward = test.impatient_steward().await;
    test.records.settled(1, &test.cloud).await;
    assert_eq!(test.worker.calls("image-build:"), 2);
    steward.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_dies_during_a_build_and_another_comes() {
    let FaultTest {
        store,
        server,
        cloud,
        worker,
        records,
    } = FaultTest::new().await;
    worker.hold(true);
    let steward = RunningSteward::start(&store, &server, TWO_PROVIDERS).await;
    eventually("the build is under way", || async {
        (worker.calls("image-build:") == 1).then_some(())
    })
    .await;
    let disk = worker.kill().await;
    let worker = ScriptedWorker::start_again(&server, &cloud, disk, &["ubuntu"]).await;
    records.settled(1, &cloud).await;
    eventually("what the dead one left is gone", || async {
        (worker.disk.ids().len() == 1).then_some(())
    })
    .await;
    steward.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_hangs_is_given_up_and_cleaned_up_after() {
    let test = FaultTest::new().await;
    test.worker.hold(true);
    let steward = test.impatient_steward().await;
    eventually("the build is under way", || async {
        (test.worker.calls("image-build:") == 1).then_some(())
    })
    .await;
    test.worker.hang(true);
    eventually("nobody knows of the build", || async {
        let notes = test.notes().await;
        let setback = notes.setbacks.get(&Subject::Build)?;
        setback.reason.contains("no worker has it").then_some(())
    })
    .await;
    test.worker.hang(false);
    test.worker.hold(false);
    test.records.settled(1, &test.cloud).await;
    eventually("nothing is left of what was given up", || async {
        (test.worker.disk.ids().len() == 1).then_some(())
    })
    .await;
    steward.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_dies_during_uploads_and_comes_back() {
    let FaultTest {
        store,
        server,
        cloud,
        worker,
        records,
    } = FaultTest::new().await;
    worker.hold_uploads(true);
    let steward = RunningSteward::start_impatient(&store, &server, TWO_PROVIDERS).await;
    eventually("uploads are under way", || async {
        let ready = records.uploads().await.len() == 2;
        (ready && worker.calls("image-upload:") == 2).then_some(())
    })
    .await;
    let disk = worker.kill().await;
    let worker = ScriptedWorker::start_again(&server, &cloud, disk, &["ubuntu"]).await;
    records.settled(1, &cloud).await;
    assert_eq!(worker.calls("image-build:"), 0, "the file is still good");
    steward.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_server_that_restarts_loses_no_build_and_no_upload() {
    let FaultTest {
        store,
        server,
        cloud,
        worker,
        records,
    } = FaultTest::new().await;
    worker.hold(true);
    let steward = RunningSteward::start(&store, &server, TWO_PROVIDERS).await;
    eventually("the build is under way", || async {
        (worker.calls("image-build:") == 1).then_some(())
    })
    .await;
    let server = server.restart().await;
    worker.hold(false);
    eventually("the build is recorded", || async {
        let (_, build) = records.builds().await.pop()?;
        (build.state == BuildState::Ready).then_some(())
    })
    .await;
    records.settled(1, &cloud).await;
    assert_eq!(worker.calls("image-build:"), 1);

    worker.hold(true);
    records.request().await;
    eventually("the next build is under way", || async {
        (worker.calls("image-build:") == 2).then_some(())
    })
    .await;
    worker.hold(false);
    eventually("uploads are under way", || async {
        (worker.calls("image-upload:") >= 3).then_some(())
    })
    .await;
    let _server = server.restart().await;
    records.settled(2, &cloud).await;
    steward.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_on_a_worker_is_cleared_if_it_is_ours() {
    let FaultTest {
        store,
        server,
        cloud,
        worker,
        records,
    } = FaultTest::new().await;
    let disk = worker.stop().await;
    let system = records.0.system_id().await.unwrap();
    let ours = disk.put("0123456789abcdef0123456789abcdef", Some(&system));
    let theirs = disk.put("1123456789abcdef0123456789abcdef", Some("somebody else"));
    let foreign = disk.put("2123456789abcdef0123456789abcdef", None);
    let named = disk.put("42", Some(&system));
    let worker = ScriptedWorker::start_again(&server, &cloud, disk, &["ubuntu"]).await;
    let steward = RunningSteward::start(&store, &server, TWO_PROVIDERS).await;
    let [build] = records.settled(1, &cloud).await[..] else {
        panic!("one build");
    };
    eventually("ours is gone", || async {
        (!worker.disk.ids().contains(&ours)).then_some(())
    })
    .await;
    let left = [theirs, foreign, named, ImageId::from(build)];
    assert_eq!(worker.disk.ids(), left.into_iter().collect());
    steward.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_whose_worker_is_away_goes_and_its_files_follow() {
    let FaultTest {
        store,
        server,
        cloud,
        worker,
        records,
    } = FaultTest::new().await;
    let steward = RunningSteward::start(&store, &server, TWO_PROVIDERS).await;
    records.settled(1, &cloud).await;
    let disk = worker.stop().await;
    let other = ScriptedWorker::start(&server, &cloud, &[]).await;
    steward.config.send_replace(parse(
        "providers: [{name: one, driver: fake}, {name: two, driver: fake}]",
    ));
    eventually("records and uploads are gone", || async {
        let left = records.builds().await.len() + cloud.ids().len();
        (left == 0).then_some(())
    })
    .await;
    assert_eq!(disk.ids().len(), 1);
    let worker = ScriptedWorker::start_again(&server, &cloud, disk, &[]).await;
    eventually("so are the files", || async {
        worker.disk.ids().is_empty().then_some(())
    })
    .await;
    other.stop().await;
    steward.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_nobody_can_delete_waits_for_somebody() {
    let test = FaultTest::new().await;
    let steward = test.steward().await;
    test.records.settled(1, &test.cloud).await;
    let function = Function::UploadDelete(provider("one"));
    test.worker.withdraw(&function);
    eventually("the job server knows it", || async {
        let servers = std::slice::from_ref(&test.server.endpoint);
        let functions = RegisteredFunctions::fetch(servers, PATIENCE).await;
        let heard = functions.is_registered(&Function::UploadDelete(provider("two")));
        (heard && !functions.is_registered(&function)).then_some(())
    })
    .await;
    steward.config.send_replace(parse(
        "providers: [{name: one, driver: fake}, {name: two, driver: fake}]",
    ));
    eventually("the other one is gone", || async {
        let uploads = test.records.uploads().await;
        let [(_, to, _, upload)] = &uploads[..] else {
            return None;
        };
        (*to == provider("one") && upload.state == UploadState::Ready).then_some(())
    })
    .await;
    let helper = ScriptedWorker::start(&test.server, &test.cloud, &[]).await;
    eventually("it is deleted by somebody else", || async {
        let left = test.records.builds().await.len() + test.cloud.ids().len();
        (left == 0).then_some(())
    })
    .await;
    helper.stop().await;
    steward.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_was_given_up_is_taken_over_when_its_worker_is_back() {
    let FaultTest {
        store,
        server,
        cloud,
        worker,
        records,
    } = FaultTest::new().await;
    worker.hold(true);
    let steward = RunningSteward::start_impatient(&store, &server, TWO_PROVIDERS).await;
    let build = eventually("the build is under way", || async {
        let (build, _) = records.builds().await.pop()?;
        (worker.calls("image-build:") == 1).then_some(build)
    })
    .await;
    // The worker is disconnected and continues.
    let functions = [
        Function::Info(ImageId::from(build)),
        Function::Build(image()),
    ];
    for function in &functions {
        worker.withdraw(function);
    }
    let _server = server.restart().await;
    let lost = || async {
        let notes = ImageNotes::read(&**records.0.tree(), &image())
            .await
            .unwrap();
        notes.lost
    };
    eventually("the build is given up and its record is gone", || async {
        let given_up = lost().await.contains_key(&build);
        (given_up && records.builds().await.is_empty()).then_some(())
    })
    .await;
    for function in &functions {
        worker.offer(function);
    }
    eventually("it is under way again", || async {
        let (again, record) = records.builds().await.pop()?;
        (again == build && record.state == BuildState::Building).then_some(())
    })
    .await;
    worker.hold(false);
    assert_eq!(records.settled(1, &cloud).await, [build]);
    assert_eq!(worker.calls("image-build:"), 1, "it was built once");
    assert!(lost().await.is_empty());
    steward.stop().await;
}
