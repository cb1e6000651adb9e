//! Builds and callers that mean no good, and disks and servers that fail.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use nodeyard_builder::jobs::{FailureKind, LocalState};
use nodeyard_config::{self as config, Environment, Fake, Mode};
use nodeyard_driver::Error;
use nodeyard_driver_fake::{CallError, Connector, Simulate, Transport};
use nodeyard_gearman::client::{JobOutcome, JobRequest};
use nodeyard_testbeds::SmallDisk;
use serde_json::value::RawValue;

use crate::worker::fixtures::{
    GOOD, JobServerKind, Jobs, TestCloud, TestHost, TestWorker, parse, soon, until,
};

async fn start(script: &str, keys: &str) -> (TestHost, Jobs, TestWorker) {
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let config = parse(&host.config_with(&[("good", GOOD), ("bad", script)], "", keys));
    let worker = TestWorker::start(&jobs, TestCloud::new(Simulate::default()), config).await;
    (host, jobs, worker)
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_calls_are_refused_one_by_one() {
    let (_host, jobs, worker) = start("exit 1", "").await;
    jobs.json("image-build:good", r#"{"image-id": "1"}"#).await;
    let long = "x".repeat(200);
    for (function, payload) in [
        ("image-build:good", ""),
        ("image-build:good", "{}"),
        ("image-build:good", "not json"),
        ("image-build:good", "[1, 2]"),
        ("image-build:good", "{\"image-id\": \"a\""),
        ("image-build:good", r#"{"image-id": 42}"#),
        ("image-build:good", r#"{"image-id": "../../etc/passwd"}"#),
        ("image-build:good", r#"{"image-id": "a/b"}"#),
        ("image-build:good", r#"{"image-id": ""}"#),
        (
            "image-build:good",
            r#"{"image-id": "2", "formats": ["../x"]}"#,
        ),
        (
            "image-build:good",
            r#"{"image-id": "2", "formats": ["md5"]}"#,
        ),
        ("image-build:good", r#"{"image-id": "2", "managed": ""}"#),
        (
            "image-build:good",
            &format!(r#"{{"image-id": "2", "managed": "{long}"}}"#),
        ),
        ("image-build:bad", r#"{"image-id": "1"}"#),
        ("image-upload:1", ""),
        ("image-upload:1", r#"{"provider": "nobody"}"#),
        ("image-upload:1", r#"{"provider": "a/b"}"#),
        (
            "image-upload:1",
            r#"{"provider": "fake-cloud", "image-name": "bad"}"#,
        ),
        (
            "image-upload:1",
            r#"{"provider": "fake-cloud", "upload-id": "7", "managed": "s"}"#,
        ),
        (
            "image-upload:1",
            r#"{"provider": "fake-cloud", "upload-id": "0000000007"}"#,
        ),
        (
            "image-upload:1",
            r#"{"provider": "fake-cloud", "upload-id": "9000000000", "managed": "s"}"#,
        ),
        (
            "image-upload:1",
            r#"{"provider": "fake-cloud", "managed": "s"}"#,
        ),
        (
            "image-upload:1",
            r#"{"provider": "fake-cloud", "metadata": {"a": 1}}"#,
        ),
        ("image-delete:1", r#"{"formats": "qcow2"}"#),
        ("image-delete:1", r#"{"formats": ["../x"]}"#),
        ("image-info:1", r#"{"log-from": -1}"#),
        ("image-info:1", r#"{"log-from": "x"}"#),
        ("upload-delete:fake-cloud", ""),
        (
            "upload-delete:fake-cloud",
            r#"{"image": "good", "image-id": "1"}"#,
        ),
        (
            "upload-delete:fake-cloud",
            r#"{"image": "good", "image-id": "a/b", "external-id": "x"}"#,
        ),
    ] {
        let failure = jobs.call(function, payload).await;
        let failure = failure.expect_err(&format!("{function} {payload}"));
        assert_eq!(
            failure.kind,
            FailureKind::Refused,
            "{function} {payload}: {failure}"
        );
    }
    // A log has an end, wherever it is asked for.
    jobs.json("image-info:1", r#"{"log-from": 18446744073709551615}"#)
        .await;
    assert_eq!(
        jobs.info("1").await.state,
        LocalState::Ready,
        "it is still there"
    );
    // Whatever was sent by clients of old.
    jobs.call("image-delete:1", "anything at all")
        .await
        .unwrap();
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_hangs_is_ended() {
    let script = "sh -c 'echo $$; exec sleep 1000' & wait";
    // Long enough to print something on a busy machine.
    let (host, jobs, worker) = start(script, ", build-timeout: 10").await;
    let failure = jobs
        .call("image-build:bad", r#"{"image-id": "1"}"#)
        .await
        .unwrap_err();
    assert_eq!(failure.kind, FailureKind::Failed);
    assert!(failure.reason.contains("build-timeout"), "{failure}");
    let log = host.log("bad", "1");
    let pid: u32 = log.lines().next().unwrap().parse().unwrap();
    assert!(!log.contains("Exit code"), "{log}");
    until("what it started is gone", || async move {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    })
    .await;
    let info = jobs.info("1").await;
    assert_eq!(
        (info.state, info.failure),
        (LocalState::Failed, Some(failure))
    );
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_prints_without_end_fills_neither_disk_nor_client() {
    let script = format!("yes 'all work and no play' | head -c 20000000; {GOOD}");
    let (host, jobs, worker) = start(&script, "").await;
    let request = r#"{"image-id": "1", "stream": true}"#;
    let job = jobs
        .client()
        .submit(&JobRequest::new("image-build:bad", request))
        .await
        .unwrap();
    let JobOutcome::Complete(data) = soon("the build ends", job.wait()).await else {
        panic!("it did nothing wrong");
    };
    let log = host.log("bad", "1");
    assert!(log.len() < 100_000, "{}", log.len());
    assert!(log.contains("bytes omitted]") && log.ends_with("Exit code: 0\n"));
    assert!(data.starts_with(log.as_bytes()));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_an_image_is_none() {
    let missing = r#"echo x > "$NODEYARD_OUTPUT.raw""#;
    let (host, jobs, worker) = start(missing, "").await;
    let failure = jobs
        .call("image-build:bad", r#"{"image-id": "1"}"#)
        .await
        .unwrap_err();
    assert_eq!(failure.kind, FailureKind::Failed);
    assert!(failure.reason.contains("bad-1.qcow2"), "{failure}");
    assert_eq!(
        host.files(),
        ["bad-1.d"],
        "only the note that it failed is left"
    );
    let lies = r#"
        echo image > "$NODEYARD_OUTPUT.qcow2"
        echo "00000000000000000000000000000000  x" > "$NODEYARD_OUTPUT.qcow2.md5""#;
    host.script("make-bad", lies);
    let failure = jobs
        .call("image-build:bad", r#"{"image-id": "1"}"#)
        .await
        .unwrap_err();
    assert!(failure.reason.contains("MD5"), "{failure}");
    host.script("make-bad", GOOD);
    jobs.json("image-build:bad", r#"{"image-id": "1"}"#).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_builder_left_is_checked_before_it_is_uploaded() {
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let images = host.path("images");
    std::fs::create_dir(&images).unwrap();
    let (right, wrong) = ("4".repeat(32), "5".repeat(32));
    for id in [&right, &wrong] {
        let file = images.join(format!("good-{id}.qcow2"));
        std::fs::write(&file, "abc").unwrap();
    }
    let promise = |id: &str, digest: &str| {
        let file = images.join(format!("good-{id}.qcow2.md5"));
        std::fs::write(file, format!("{digest}  good-{id}.qcow2\n")).unwrap();
    };
    promise(&right, "900150983cd24fb0d6963f7d28e17f72");
    promise(&wrong, "900150983cd24fb0d6963f7d28e17f73");
    let config = parse(&host.config(&[("good", GOOD)], ""));
    let cloud = TestCloud::new(Simulate::default());
    let worker = TestWorker::start(&jobs, cloud.clone(), config).await;
    let order = r#"{"provider": "fake-cloud", "image-name": "good"}"#;
    jobs.json(&format!("image-upload:{right}"), order).await;
    let failure = jobs.call(&format!("image-upload:{wrong}"), order).await;
    let failure = failure.unwrap_err();
    assert!(failure.reason.contains("MD5"), "{failure}");
    assert_eq!(cloud.uploads().await.len(), 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_work_fails_with_a_reason_and_what_is_there_stays() {
    // Zeros would take no room in the image that is made of it.
    const RAW: &str = r#"head -c 6000000 /dev/urandom > "$NODEYARD_OUTPUT.raw""#;
    const UPLOAD: &str = r#"{"provider": "fake-cloud"}"#;
    // Does not look whether it could write.
    const CARELESS: &str = r#"cat /dev/zero > "$NODEYARD_OUTPUT.qcow2" 2> /dev/null; true"#;
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let images = host.path("images");
    let Some(_disk) = SmallDisk::mount(&images, 8) else {
        return;
    };
    let scripts = [
        ("good", GOOD),
        ("raw", RAW),
        ("large", RAW),
        ("careless", CARELESS),
    ];
    let cloud = TestCloud::new(Simulate::default());
    // Nothing is refused beforehand.
    let text = host.config(&scripts, "") + "image-size-estimate: 1K\n";
    let config = parse(&text);
    let worker = TestWorker::start(&jobs, cloud.clone(), config.clone()).await;
    jobs.json("image-build:good", r#"{"image-id": "1"}"#).await;
    let raw = r#"{"image-id": "2", "formats": ["raw"]}"#;
    jobs.json("image-build:raw", raw).await;
    // Of a build that failed there is a record.
    let files = || {
        let mut files = host.files();
        files.retain(|name| !name.ends_with(".d"));
        files
    };
    let before = files();

    for (function, payload, reason) in [
        (
            "image-build:large",
            r#"{"image-id": "3", "formats": ["raw"]}"#,
            "exit code 1",
        ),
        (
            "image-build:careless",
            r#"{"image-id": "4"}"#,
            "No space left",
        ),
        // There is no room for another format.
        ("image-upload:2", UPLOAD, "are needed"),
    ] {
        let failure = jobs.call(function, payload).await.unwrap_err();
        assert!(failure.reason.contains(reason), "{function}: {failure}");
        assert_eq!(files(), before, "{function}: {failure}");
    }
    assert_eq!(cloud.uploads().await.len(), 0);
    jobs.json("image-upload:1", UPLOAD).await;

    // A worker that starts on a disk without any room has what it had.
    worker.stop().await;
    jobs.left().await;
    let filler = host.path("images/.filler");
    let _full = std::fs::write(&filler, vec![1; 16 << 20]);
    let worker = TestWorker::start(&jobs, cloud.clone(), config).await;
    assert_eq!(jobs.info("1").await.state, LocalState::Ready);
    jobs.call("image-delete:1", "").await.unwrap();
    jobs.call("image-delete:2", "").await.unwrap();
    std::fs::remove_file(&filler).unwrap();
    jobs.json("image-build:raw", raw).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_not_here_may_be_elsewhere() {
    let (host, jobs, worker) = start(GOOD, "").await;
    std::fs::remove_file(host.path("make-bad")).unwrap();
    let failure = jobs
        .call("image-build:bad", r#"{"image-id": "1"}"#)
        .await
        .unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unable, "{failure}");
    assert!(failure.reason.contains("make-bad"), "{failure}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_of_a_build_are_in_no_answer() {
    const SECRET: &str = "correct-horse-battery";
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let script = "set -x; echo \"token $TOKEN\"; set +x; printf 'split correct-horse-'; sleep 0.1; echo battery; exit 1";
    let main = host.config(&[("bad", script)], "");
    let secure = format!("diskimages: [{{name: bad, env-vars: {{TOKEN: {SECRET}}}}}]");
    let (config, problems) = config::load_bytes(
        (Path::new("nodepool.yaml"), main.as_bytes()),
        Some((Path::new("secure.yaml"), secure.as_bytes())),
        &Environment::default(),
        Mode::Daemon,
    );
    let config = Arc::new(config.unwrap_or_else(|| panic!("{problems:?}")));
    let worker = TestWorker::start(&jobs, TestCloud::new(Simulate::default()), config).await;
    let streamed = jobs
        .outcome("image-build:bad", r#"{"image-id": "1", "stream": true}"#)
        .await;
    let told = jobs.outcome("image-info:1", r#"{"log-from": 0}"#).await;
    let log = host.log("bad", "1");
    assert!(
        log.contains("token ********\n") && log.contains("split ********\n"),
        "{log}"
    );
    for heard in [format!("{streamed:?}"), format!("{told:?}"), log] {
        assert!(
            heard.contains("token") && !heard.contains(SECRET),
            "{heard}"
        );
    }
    worker.stop().await;
}

/// A driver with a mistake in it.
/// A cloud whose driver panics when it uploads.
#[derive(Debug)]
struct Panicking;

impl Connector for Panicking {
    fn connect(&self, _: &str, _: &Fake) -> Result<Arc<dyn Transport>, Error> {
        Ok(Arc::new(Self))
    }
}

#[async_trait]
impl Transport for Panicking {
    async fn call(&self, method: &str, _: Vec<u8>) -> Result<Box<RawValue>, CallError> {
        assert!(method == "list_images", "password is hunter2");
        Ok(serde_json::value::to_raw_value(&[(); 0]).unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_harms_nothing_else() {
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Geard).await);
    let config = parse(&host.config(&[("good", GOOD)], ""));
    let worker = TestWorker::start(&jobs, Arc::new(Panicking), config).await;
    jobs.json("image-build:good", r#"{"image-id": "1"}"#).await;
    for _ in 0..6 {
        let outcome = jobs
            .outcome(
                "image-upload:1",
                r#"{"provider": "fake-cloud", "managed": "s", "upload-id": "0000000001"}"#,
            )
            .await;
        let JobOutcome::Exception(text) = outcome else {
            panic!("{outcome:?}");
        };
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(!text.contains("hunter2"), "{text}");
    }
    assert_eq!(jobs.info("1").await.state, LocalState::Ready);
    jobs.call("image-delete:1", "").await.unwrap();
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_job_server_costs_no_build() {
    for between in [
        JobServerKind::Ours,
        JobServerKind::Gearmand,
        JobServerKind::Geard,
    ] {
        let (host, mut jobs) = (TestHost::new(), Jobs::start(between).await);
        let (gate, begun) = (host.path("gate"), host.path("begun"));
        let script = format!(
            "echo x >> {}; while [ ! -e {} ]; do sleep 0.02; done; {GOOD}",
            begun.display(),
            gate.display()
        );
        let config = parse(&host.config(&[("good", &script)], ""));
        let worker = TestWorker::start(&jobs, TestCloud::new(Simulate::default()), config).await;
        let request = JobRequest::new("image-build:good", r#"{"image-id": "1"}"#);
        let job = jobs.client().submit(&request).await.unwrap();
        until("the build has begun", || async {
            begun.exists().then_some(())
        })
        .await;
        jobs.restart().await;
        assert_eq!(
            soon("the client notices", job.wait()).await,
            JobOutcome::Unknown
        );
        jobs.offered("image-info:1").await;
        assert_eq!(jobs.info("1").await.state, LocalState::Building);
        std::fs::write(&gate, "").unwrap();
        let built = jobs.json("image-build:good", r#"{"image-id": "1"}"#).await;
        assert_eq!(built["image-id"], "1");
        assert_eq!(
            std::fs::read_to_string(&begun).unwrap(),
            "x\n",
            "it was built once"
        );
        jobs.offered("image-upload:1").await;
        worker.stop().await;
    }
}
