//! The rules of uploads, deletions and registered functions.

use std::sync::Arc;
use std::time::Duration;

use nodeyard_builder::jobs::{FailureKind, ImageInfo, LocalState, UploadProgress};
use nodeyard_builder::worker::Options;
use nodeyard_driver_fake::{FailureRates, Simulate, Span};
use nodeyard_gearman::client::{JobEvent, JobOutcome, JobRequest};
use serde_json::json;

use crate::worker::fixtures::{
    GOOD, JobServerKind, Jobs, TestCloud, TestHost, TestWorker, parse, soon, until,
};

const UPLOAD: &str = r#"{"provider": "fake-cloud", "image-name": "trusty"}"#;
const MANAGED: &str = r#"{"provider": "fake-cloud", "managed": "s", "upload-id": "0000000001"}"#;

async fn start(simulate: Simulate, keys: &str) -> (TestHost, Jobs, Arc<TestCloud>, TestWorker) {
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let cloud = TestCloud::new(simulate);
    let config = parse(&host.config(&[("trusty", GOOD)], keys));
    let worker = TestWorker::start(&jobs, cloud.clone(), config).await;
    (host, jobs, cloud, worker)
}

/// The duration of an upload that ends only when the clock of the cloud is advanced.
const LONG: Duration = Duration::from_secs(24 * 3600);

fn slow_cloud() -> Simulate {
    Simulate {
        upload_time: Span::exactly(LONG),
        ..Simulate::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hook_sees_the_upload_and_has_a_veto() {
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let cloud = TestCloud::new(Simulate::default());
    let hook = host.script(
        "hook",
        &format!(
            "echo \"$@\" > {}; exit $(cat {})",
            host.path("seen").display(),
            host.path("verdict").display()
        ),
    );
    let keys = format!(
        "    post-upload-hook: {}\n    image-name-format: 'my {{image_name}} {{upload_id}}'\n",
        hook.display()
    );
    let config = parse(&host.config(&[("trusty", GOOD)], &keys));
    let worker = TestWorker::start(&jobs, cloud.clone(), config).await;
    jobs.json("image-build:trusty", r#"{"image-id": "1"}"#)
        .await;

    std::fs::write(host.path("verdict"), "0").unwrap();
    let uploaded = jobs.json("image-upload:1", MANAGED).await;
    assert_eq!(uploaded["external-name"], "my trusty 0000000001");
    let seen = std::fs::read_to_string(host.path("seen")).unwrap();
    let file = host.path("images/trusty-1.qcow2");
    let expected = format!(
        "fake-cloud {} {}\n",
        uploaded["external-id"].as_str().unwrap(),
        file.display()
    );
    assert_eq!(seen, expected);

    std::fs::write(host.path("verdict"), "3").unwrap();
    let other = MANAGED.replace("0000000001", "0000000002");
    let failure = jobs.call("image-upload:1", &other).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Failed);
    assert!(
        failure.reason.contains("hook") && failure.reason.contains("exit code 3"),
        "{failure}"
    );
    let images = cloud.uploads().await;
    assert_eq!(
        images.len(),
        1,
        "what the hook does not want is not left in the cloud"
    );
    assert_eq!(
        images[0].id.as_text().as_deref(),
        uploaded["external-id"].as_str()
    );
    let again = jobs.call("image-upload:1", &other).await.unwrap_err();
    assert_eq!(again, failure, "the same upload has the same end");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_format_is_made_by_conversion() {
    let script = r#"head -c 3000000 /dev/urandom > "$NODEYARD_OUTPUT.raw""#;
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let cloud = TestCloud::new(Simulate::default());
    let config = parse(&host.config(&[("trusty", script)], ""));
    let worker = TestWorker::start(&jobs, cloud.clone(), config).await;
    let built = jobs
        .json(
            "image-build:trusty",
            r#"{"image-id": "1", "formats": ["raw"]}"#,
        )
        .await;
    assert_eq!(built["formats"].as_object().unwrap().len(), 1);
    let uploaded = jobs.json("image-upload:1", UPLOAD).await;
    assert_eq!(uploaded["format"], "qcow2");
    let info = jobs.info("1").await;
    let made = &info.formats["qcow2"];
    let image = &cloud.uploads().await[0];
    assert_eq!(image.properties["md5"], **made.md5.as_ref().unwrap());
    assert_eq!(image.properties["sha256"], **made.sha256.as_ref().unwrap());
    let head = std::fs::read(host.path("images/trusty-1.qcow2")).unwrap();
    assert!(head.starts_with(b"QFI\xfb"));

    // Files can go one by one.
    jobs.call("image-delete:1", r#"{"formats": ["raw"]}"#)
        .await
        .unwrap();
    assert!(
        !host.path("images/trusty-1.raw").exists() && host.path("images/trusty-1.qcow2").exists()
    );
    assert_eq!(jobs.info("1").await.formats.len(), 1);
    worker.stop().await;
}

/// Version of a qcow2 file, and whether its clusters are packed by zstd.
fn qcow2(file: &[u8]) -> (u32, bool) {
    let version = u32::from_be_bytes(file[4..8].try_into().unwrap());
    let features = u64::from_be_bytes(file[72..80].try_into().unwrap());
    // Without that feature, or before version 3, there is no such field.
    let typed = version > 2 && features & 8 != 0;
    (version, typed && file[104] == 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn conversions_are_compressed_as_every_taker_of_the_file_allows() {
    const SIZE: u64 = 3_000_000;
    let script = format!(r#"yes | head -c {SIZE} > "$NODEYARD_OUTPUT.raw""#);
    let other = |keys: &str| {
        format!(
            "  - {{name: other, driver: fake, diskimages: [{{name: trusty}}], pools: []{keys}}}\n"
        )
    };
    let compression = |word: &str| format!("    image-compression: {word}\n");
    let cases = [
        (String::new(), String::new(), (2, false)),
        (compression("zlib"), String::new(), (2, false)),
        (compression("zstd"), String::new(), (3, true)),
        (compression("none"), String::new(), (2, false)),
        // The same file goes to both.
        (compression("zstd"), other(""), (2, false)),
        (
            compression("zstd"),
            other(", image-compression: zstd"),
            (3, true),
        ),
    ];
    for (keys, more, expected) in cases {
        let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
        let cloud = TestCloud::new(Simulate::default());
        let config = host.config(&[("trusty", &script)], &keys) + &more;
        let worker = TestWorker::start(&jobs, cloud.clone(), parse(&config)).await;
        let build = r#"{"image-id": "1", "formats": ["raw"]}"#;
        jobs.json("image-build:trusty", build).await;
        jobs.json("image-upload:1", UPLOAD).await;
        let file = std::fs::read(host.path("images/trusty-1.qcow2")).unwrap();
        let uploaded = &cloud.uploads().await[0];
        assert_eq!(
            uploaded.properties["sha256"],
            crate::worker::fixtures::sha256(&file),
            "{keys}{more}"
        );
        assert_eq!(qcow2(&file), expected, "{keys}{more}");
        let packed = (file.len() as u64) < SIZE;
        assert_eq!(packed, !keys.contains("none"), "{keys}{more}");
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversion_says_how_far_it_is() {
    // It takes a while to find that nothing of it can be packed.
    let script = r#"head -c 32M /dev/urandom > "$NODEYARD_OUTPUT.raw""#;
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let config = parse(&host.config(&[("trusty", script)], ""));
    let worker = TestWorker::start(&jobs, TestCloud::new(Simulate::default()), config).await;
    let build = r#"{"image-id": "1", "formats": ["raw"]}"#;
    jobs.json("image-build:trusty", build).await;
    let upload = JobRequest::new("image-upload:1", UPLOAD);
    let mut upload = jobs.client().submit(&upload).await.unwrap();
    let mut told = Vec::new();
    loop {
        match soon("the upload goes on", upload.next()).await.unwrap() {
            JobEvent::Status {
                numerator,
                denominator,
            } => told.push((numerator, denominator)),
            JobEvent::Complete(_) => break,
            other => panic!("{other:?}"),
        }
    }
    // It is the first of three steps.
    let within = |(done, all): &(u64, u64)| *done > 0 && done * 3 < *all;
    assert!(told.iter().any(within), "{told:?}");
    assert!(told.is_sorted(), "{told:?}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_not_deleted_while_it_is_uploaded() {
    let (host, jobs, cloud, worker) = start(slow_cloud(), "").await;
    jobs.json("image-build:trusty", r#"{"image-id": "1"}"#)
        .await;
    let request = JobRequest::new("image-upload:1", MANAGED);
    let upload = jobs.client().submit(&request).await.unwrap();
    until("the cloud has something", || async {
        (!cloud.uploads().await.is_empty()).then_some(())
    })
    .await;
    assert_eq!(
        jobs.info("1").await.uploads[0].state,
        UploadProgress::Uploading
    );
    let failure = jobs.call("image-delete:1", "").await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unable);
    let job =
        json!({"image": "trusty", "image-id": "1", "managed": "s", "upload-id": "0000000001"});
    let failure = jobs
        .call("upload-delete:fake-cloud", &job.to_string())
        .await
        .unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unable);
    // An identical request joins the running upload.
    let joined = jobs.client().submit(&request).await.unwrap();
    jobs.busy("image-upload:1", 2).await;
    cloud.jump(LONG);
    let outcome = soon("the upload ends", upload.wait()).await;
    assert!(matches!(outcome, JobOutcome::Complete(_)), "{outcome:?}");
    assert_eq!(soon("for both", joined.wait()).await, outcome);
    assert_eq!(cloud.uploads().await.len(), 1);
    jobs.call("image-delete:1", "").await.unwrap();
    assert_eq!(host.files(), [""; 0]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_whose_answer_is_lost_is_there_once() {
    let rates = FailureRates {
        lost: 0.5,
        ..FailureRates::default()
    };
    let simulate = Simulate {
        failures: [("create_image".to_owned(), rates)].into_iter().collect(),
        ..Simulate::default()
    };
    let (_host, jobs, cloud, worker) = start(simulate, "").await;
    jobs.json("image-build:trusty", r#"{"image-id": "1"}"#)
        .await;
    for number in 1..=4 {
        let job = MANAGED.replace("0000000001", &format!("{number:010}"));
        jobs.json("image-upload:1", &job).await;
        assert_eq!(cloud.uploads().await.len(), number);
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_fails_leaves_nothing_in_the_cloud() {
    let simulate = Simulate {
        upload_time: Span::exactly(Duration::from_secs(1000)),
        ..Simulate::default()
    };
    let (_host, jobs, cloud, worker) = start(simulate, "    image-upload-timeout: 1\n").await;
    jobs.json("image-build:trusty", r#"{"image-id": "1"}"#)
        .await;
    let failure = jobs.call("image-upload:1", MANAGED).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Failed);
    assert!(failure.reason.contains("longer"), "{failure}");
    assert!(cloud.uploads().await.is_empty());
    let info = jobs.info("1").await;
    assert!(
        matches!(info.uploads[0].state, UploadProgress::Failed(_)),
        "{info:?}"
    );
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_offered_follows_the_configuration() {
    let (host, jobs, _cloud, worker) = start(Simulate::default(), "").await;
    jobs.offered("image-build:trusty").await;
    jobs.json("image-build:trusty", r#"{"image-id": "1"}"#)
        .await;
    let both = host.config(&[("xenial", GOOD), ("xenial-arm", GOOD)], "");
    worker.config.send_replace(parse(&both));
    jobs.offered("image-build:xenial-arm").await;
    jobs.withdrawn("image-build:trusty").await;
    jobs.offered("image-info:1").await;
    let failure = jobs.call("image-upload:1", UPLOAD).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Refused, "{failure}");

    worker
        .config
        .send_replace(parse(&format!("{both}builder-images: '*-arm'\n")));
    jobs.withdrawn("image-build:xenial").await;
    jobs.offered("image-build:xenial-arm").await;
    let clouds = both.split("providers:").next().unwrap().to_owned();
    worker.config.send_replace(parse(&clouds));
    jobs.withdrawn("upload-delete:fake-cloud").await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_are_answered_during_a_build_and_its_log_can_be_followed() {
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let gate = host.path("gate");
    let script = format!(
        "echo first; while [ ! -e {} ]; do sleep 0.02; done; echo second; {GOOD}",
        gate.display()
    );
    let config = parse(&host.config(&[("trusty", &script)], ""));
    let worker = TestWorker::start(&jobs, TestCloud::new(Simulate::default()), config).await;
    let build = JobRequest::new("image-build:trusty", r#"{"image-id": "1"}"#);
    let build = jobs.client().submit(&build).await.unwrap();
    jobs.offered("image-info:1").await;
    assert_eq!(jobs.info("1").await.state, LocalState::Building);
    assert_eq!(worker.handle.status().unwrap().building.len(), 1);

    let follow = JobRequest::new("image-info:1", r#"{"log-from": 2, "follow": true}"#);
    let mut follow = jobs.client().submit(&follow).await.unwrap();
    let first = soon("the log begins", follow.next()).await.unwrap();
    assert_eq!(first, JobEvent::Data("rst\n".into()));
    std::fs::write(&gate, "").unwrap();
    let mut rest = Vec::new();
    let info = loop {
        match soon("the log goes on", follow.next()).await.unwrap() {
            JobEvent::Data(data) => rest.extend(data),
            JobEvent::Complete(info) => break info,
            other => panic!("{other:?}"),
        }
    };
    let log = host.log("trusty", "1");
    assert_eq!(String::from_utf8(rest).unwrap(), log["first\n".len()..]);
    assert!(log.ends_with("Exit code: 0\n"));
    assert!(serde_json::from_slice::<serde_json::Value>(&info).is_ok());
    soon("the build ends", build.wait()).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_follow_a_log_and_go_leave_room_for_others() {
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let gate = host.path("gate");
    // The last line before the gate has no end yet.
    let script = format!(
        "echo first; printf sec; while [ ! -e {} ]; do sleep 0.02; done; echo ond; {GOOD}",
        gate.display()
    );
    let config = parse(&host.config(&[("trusty", &script)], ""));
    let limit = Duration::from_millis(200);
    let hasty = |options: &mut Options| options.follow_limit = limit;
    let worker = TestWorker::start_with(&jobs, config, hasty).await;
    let build = JobRequest::new("image-build:trusty", r#"{"image-id": "1"}"#);
    let build = jobs.client().submit(&build).await.unwrap();
    until("the log has its first lines", || async {
        (host.log("trusty", "1") == "first\nsec").then_some(())
    })
    .await;

    let ask = async |from: u64| {
        let question = json!({"log-from": from, "follow": true}).to_string();
        let request = JobRequest::new("image-info:1", question);
        jobs.client().submit(&request).await.unwrap()
    };
    // More jobs than slots, from clients that disconnect silently.
    for _ in 0..8 {
        let first = soon("the log begins", ask(0).await.next()).await;
        assert_eq!(first, Some(JobEvent::Data("first\n".into())));
    }
    let mut told = Vec::new();
    let mut next = Some(0);
    let mut times = 0;
    while let Some(from) = next {
        let mut follow = ask(from).await;
        let info = loop {
            match soon("the log goes on", follow.next()).await.unwrap() {
                JobEvent::Data(data) => told.extend(data),
                JobEvent::Complete(info) => break info,
                other => panic!("{other:?}"),
            }
        };
        let info: ImageInfo = serde_json::from_slice(&info).unwrap();
        next = info.log_next;
        times += 1;
        if times == 2 {
            assert_eq!(next, Some("first\n".len() as u64));
            std::fs::write(&gate, "").unwrap();
        }
    }
    assert_eq!(String::from_utf8(told).unwrap(), host.log("trusty", "1"));
    soon("the build ends", build.wait()).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_ends_a_build_and_leaves_an_upload_to_be_resumed() {
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let cloud = TestCloud::new(slow_cloud());
    let config = parse(&host.config(&[("trusty", GOOD), ("slow", "echo begun; sleep 1000")], ""));
    let worker = TestWorker::start(&jobs, cloud.clone(), config.clone()).await;
    jobs.json("image-build:trusty", r#"{"image-id": "1"}"#)
        .await;
    let client = jobs.client();
    let build = JobRequest::new("image-build:slow", r#"{"image-id": "2"}"#);
    let build = client.submit(&build).await.unwrap();
    let upload = client
        .submit(&JobRequest::new("image-upload:1", MANAGED))
        .await
        .unwrap();
    until("both have begun", || async {
        (host.log("slow", "2") == "begun\n" && !cloud.uploads().await.is_empty()).then_some(())
    })
    .await;
    worker.stop().await;
    for (job, what) in [(build, "build"), (upload, "upload")] {
        let outcome = format!("{:?}", soon(what, job.wait()).await);
        assert!(
            outcome.contains("interrupted") && outcome.contains("the worker stopped"),
            "{outcome}"
        );
    }

    let worker = TestWorker::start(&jobs, cloud.clone(), config).await;
    let info = jobs.info("2").await;
    assert_eq!(info.state, LocalState::Failed);
    assert_eq!(info.failure.unwrap().kind, FailureKind::Interrupted);
    let info = jobs.info("1").await;
    assert!(
        matches!(&info.uploads[0].state, UploadProgress::Failed(failure) if failure.kind == FailureKind::Interrupted),
        "{info:?}"
    );
    cloud.jump(LONG);
    let uploaded = jobs.json("image-upload:1", MANAGED).await;
    let images = cloud.uploads().await;
    assert_eq!(images.len(), 1, "the upload went on where it was");
    assert_eq!(
        uploaded["external-id"].as_str(),
        images[0].id.as_text().as_deref()
    );
    assert_eq!(uploaded["external-name"].as_str(), Some(&*images[0].name));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn downloads_that_nobody_goes_on_with_are_removed_while_it_works() {
    let (host, _jobs, _cloud, worker) = start(Simulate::default(), "").await;
    let ready = host.path("ready");
    std::fs::create_dir(&ready).unwrap();
    std::fs::write(ready.join("new.part"), "half").unwrap();
    let days = Duration::from_secs(2 * 24 * 60 * 60);
    let old = std::fs::File::create(ready.join("old.part")).unwrap();
    old.set_modified((nodeyard_model::now() - days).into())
        .unwrap();
    let place = host.path("images/.zuul-downloads/trusty");
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    std::fs::rename(ready, &place).unwrap();
    until("the old one is gone", || async {
        (!place.join("old.part").exists()).then_some(())
    })
    .await;
    assert!(place.join("new.part").exists());
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_is_cancelled() {
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let config = parse(&host.config(&[("slow", "echo begun; sleep 1000")], ""));
    let worker = TestWorker::start(&jobs, TestCloud::new(Simulate::default()), config).await;
    let build = JobRequest::new("image-build:slow", r#"{"image-id": "1"}"#);
    let build = jobs.client().submit(&build).await.unwrap();
    until("it has begun", || async {
        (host.log("slow", "1") == "begun\n").then_some(())
    })
    .await;
    jobs.call("image-cancel:1", "").await.unwrap();
    let info = jobs.info("1").await;
    assert_eq!(info.state, LocalState::Failed);
    assert_eq!(info.failure.unwrap().kind, FailureKind::Failed);
    let outcome = format!("{:?}", soon("the build ends", build.wait()).await);
    assert!(outcome.contains("the build was cancelled"), "{outcome}");
    jobs.withdrawn("image-cancel:1").await;
    worker.stop().await;
}
