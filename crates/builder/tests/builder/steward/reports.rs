//! Reports about images for launchers.

use nodeyard_model::layout::image_stewards;
use nodeyard_plan::images::{JobState, StewardReport};
use nodeyard_store::{Tree, TreePath};

use crate::steward::fixtures::{
    Records, RunningSteward, Store, TWO_PROVIDERS, TestJobServer, eventually, image, logs, provider,
};
use crate::steward::worker::{ScriptedCloud, ScriptedWorker};

async fn reports(tree: &dyn Tree) -> Vec<StewardReport> {
    let dir = TreePath::new(image_stewards(&image())).unwrap();
    let records = tree.list(&dir).await.unwrap_or_default();
    let reports = records
        .iter()
        .map(|(_, record)| serde_json::from_slice(&record.data));
    reports.map(Result::unwrap).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn they_say_how_the_image_stands_as_long_as_the_steward_runs() {
    logs();
    let store = Store::embedded();
    let server = TestJobServer::start().await;
    let cloud = ScriptedCloud::default();
    let steward = RunningSteward::start(&store, &server, TWO_PROVIDERS).await;
    let records = Records::of(&store).await;
    let tree = &**records.0.tree();
    let one = provider("one");
    let reported = async |what: &str, is_it: &dyn Fn(&StewardReport) -> bool| {
        eventually(what, || async {
            let reports = reports(tree).await;
            let [report] = &reports[..] else { return None };
            is_it(report).then(|| report.clone())
        })
        .await
    };
    let nobody = JobState::NoWorker {
        reason: "no worker answers image-build:ubuntu".to_owned(),
    };
    let report = reported("there is no worker", &|report| report.build == nobody).await;
    assert_eq!(report.uploads[&one], JobState::NoBuild);

    let worker = ScriptedWorker::start_held(&server, &cloud, &["ubuntu"]).await;
    let is_named = |state: &JobState| {
        matches!(
            state,
            JobState::Running {
                build: Some(_),
                since: Some(_)
            }
        )
    };
    reported("a build is under way", &|report| is_named(&report.build)).await;
    worker.hold_uploads(true);
    worker.hold(false);
    let report = reported("uploads are", &|report| {
        report.uploads.values().all(is_named) && report.durations.usual_build().is_some()
    })
    .await;
    assert_eq!(report.build, JobState::Done);
    worker.hold_uploads(false);
    reported("all is done", &|report| {
        let done = |state: &JobState| *state == JobState::Done;
        report.uploads.values().all(done) && report.durations.usual_upload(&one).is_some()
    })
    .await;

    records.0.images().pause(&image()).await.unwrap();
    let report = reported("it is paused", &|report| {
        matches!(report.build, JobState::Blocked { .. })
    })
    .await;
    assert_eq!(report.uploads[&one], JobState::Done);
    steward.stop().await;
    eventually("the report goes with the steward", || async {
        reports(tree).await.is_empty().then_some(())
    })
    .await;
    worker.stop().await;
}
