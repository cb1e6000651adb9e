//! Which builds and imports a worker takes while its disk is full, and when it was unable to do one.

use nodeyard_builder::jobs::{FailureKind, LocalState};
use nodeyard_driver_fake::Simulate;
use nodeyard_testbeds::WebServer;
use nodeyard_testbeds::web_server::Reply;
use serde_json::json;

use crate::worker::fixtures::{
    GOOD, JobServerKind, Jobs, TestCloud, TestHost, TestWorker, disk, parse, sha256,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_a_full_disk_takes_no_builds() {
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let roomy = host.config(&[("good", GOOD)], "");
    let full = roomy.replace("images-dir-reserve: 0", "images-dir-reserve: 1000000T");
    let worker = TestWorker::start(&jobs, TestCloud::new(Simulate::default()), parse(&full)).await;
    let offers = || worker.handle.status().unwrap().functions;
    assert_eq!(offers(), ["upload-delete:fake-cloud"]);
    // Space was freed.
    worker.config.send_replace(parse(&roomy));
    jobs.offered("image-build:good").await;
    // The operator configures the size estimate of a first build.
    let large = format!("{roomy}images-dir-limit: 1G\nimage-size-estimate: 2G\n");
    worker.config.send_replace(parse(&large));
    jobs.withdrawn("image-build:good").await;
    worker.config.send_replace(parse(&roomy));
    let order = r#"{"image-id": "1"}"#;
    jobs.json("image-build:good", order).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_room_a_build_is_not_begun() {
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    // Each is offered space, and only one fits.
    let text = host.config(&[("one", "sleep 1000"), ("two", GOOD)], "")
        + "images-dir-limit: 3G\nimage-size-estimate: 2G\n";
    let worker =
        TestWorker::start_with(&jobs, parse(&text), |options| options.build_workers = 2).await;
    let client = jobs.client();
    let first =
        nodeyard_gearman::client::JobRequest::new("image-build:one", r#"{"image-id": "1"}"#);
    let _first = client.submit(&first).await.unwrap();
    jobs.offered("image-info:1").await;
    let failure = jobs
        .call("image-build:two", r#"{"image-id": "2"}"#)
        .await
        .unwrap_err();
    assert_eq!(
        failure.kind,
        FailureKind::Unable,
        "another worker may have room: {failure}"
    );
    assert!(
        failure.reason.contains("2.0 GiB are needed"),
        "{}",
        failure.reason
    );
    assert_eq!(host.files(), ["one-1.d"]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_a_worker_was_unable_to_do_is_not_offered_for_a_while() {
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let config = parse(&host.config(&[("good", GOOD), ("gone", GOOD)], ""));
    let program = host.path("make-gone");
    std::fs::remove_file(&program).unwrap();
    let worker = TestWorker::start(&jobs, TestCloud::new(Simulate::default()), config).await;
    let order = r#"{"image-id": "1"}"#;
    let failure = jobs.call("image-build:gone", order).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unable, "{failure}");
    // Before the answer is here, the next call goes elsewhere.
    let offered = worker.handle.status().unwrap().functions;
    assert!(
        offered.contains(&"image-build:good".to_owned()),
        "{offered:?}"
    );
    host.script("make-gone", GOOD);
    jobs.json("image-build:gone", order).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_fits_reserves_its_space_once() {
    const MIB: usize = 1 << 20;
    let plain = disk(20 * MIB);
    let sent = plain.clone();
    let server = WebServer::start(move |asked| Reply::file(asked, &sent, "\"1\"")).unwrap();
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let text = host.import_config(&server.url("/"), "") + "images-dir-limit: 45M\n";
    let worker = TestWorker::start(&jobs, TestCloud::new(Simulate::default()), parse(&text)).await;
    for id in ["1", "2"] {
        let job = json!({
            "image-id": id, "build": {"uuid": format!("build{id}")},
            "artifacts": {"qcow2": {
                "name": "disk", "url": server.url("/disk.qcow2"), "metadata": {"sha256": sha256(&plain)},
            }},
        });
        jobs.json("image-import:trusty", &job.to_string()).await;
        assert_eq!(jobs.info(id).await.state, LocalState::Ready);
    }
    // There is no more space until an image is deleted.
    let tight = text.replace("images-dir-limit: 45M", "images-dir-limit: 40M");
    worker.config.send_replace(parse(&tight));
    jobs.withdrawn("image-import:trusty").await;
    jobs.call("image-delete:1", "").await.unwrap();
    jobs.offered("image-import:trusty").await;
    worker.stop().await;
}
