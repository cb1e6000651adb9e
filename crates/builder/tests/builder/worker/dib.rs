//! diskimage-builder itself, on an element small enough for a test.

use std::path::Path;
use std::process::Command;

use nodeyard_driver_fake::Simulate;
use nodeyard_gearman::client::{JobEvent, JobRequest};
use nodeyard_testbeds::dib::{self, Workspace};
use nodeyard_testbeds::skipped;
use serde_json::Value;

use crate::worker::fixtures::{
    JobServerKind, Jobs, PROVIDER, TestCloud, TestHost, TestWorker, parse, until,
};

fn config(host: &TestHost, workspace: &Workspace) -> String {
    let program = dib::program().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    format!(
        r#"
images-dir: {images}
build-log-dir: {logs}
elements-dir: {elements}
diskimages:
  - name: tiny
    elements: [{element}]
    release: bookworm
    formats: [raw]
    dib-cmd: "'{program}' -n"
    env-vars:
      PATH: "{bin}:{path}"
      TMP_DIR: {work}
      DIB_IMAGE_SIZE: "0.1"
      DIB_JOURNAL_SIZE: "4"
      NODEYARD_FLAVOUR: vanilla
providers:
  - name: {PROVIDER}
    driver: fake
    diskimages: [{{name: tiny}}]
    pools: []
"#,
        images = host.path("images").display(),
        logs = host.path("logs").display(),
        elements = dib::elements().display(),
        element = dib::ELEMENT,
        program = program.display(),
        bin = program.parent().unwrap().display(),
        work = workspace.path().display(),
    )
}

/// Prints a message if the test tools are missing.
fn can_run() -> bool {
    let obstacle = dib::obstacle();
    if let Some(obstacle) = obstacle {
        skipped("diskimage-builder cannot run on this machine", obstacle);
    }
    obstacle.is_none()
}

/// A program's standard output.
fn output(program: &str, arguments: &[&str], file: &Path) -> String {
    let output = Command::new(program)
        .args(arguments)
        .arg(file)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn diskimage_builder_makes_two_formats() {
    if !can_run() {
        return;
    }
    let workspace = Workspace::new().unwrap();
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Gearmand).await);
    let cloud = TestCloud::new(Simulate::default());
    let config = parse(&config(&host, &workspace));
    let worker = TestWorker::start(&jobs, cloud.clone(), config).await;

    let id = "0123456789abcdef0123456789abcdef";
    let request = JobRequest::new("image-build:tiny", format!(r#"{{"image-id": "{id}"}}"#));
    let mut job = jobs.client().submit(&request).await.unwrap();
    let mut progress = Vec::new();
    let built = loop {
        match job.next().await.unwrap() {
            JobEvent::Status {
                numerator,
                denominator,
            } => progress.push((numerator, denominator)),
            JobEvent::Complete(data) => break data,
            JobEvent::Data(data) => println!("{}", String::from_utf8_lossy(&data)),
            other => panic!("{other:?}\n{}", host.log("tiny", id)),
        }
    };
    let built: Value = serde_json::from_slice(&built).unwrap();
    let log = host.log("tiny", id);
    assert!(
        log.contains("Build completed successfully") && log.ends_with("Exit code: 0\n"),
        "{log}"
    );
    assert!(
        progress.contains(&(0, 10)),
        "its first phase is recognised: {progress:?}"
    );

    for format in ["qcow2", "raw"] {
        let file = host.path("images").join(format!("tiny-{id}.{format}"));
        let digests = nodeyard_image::digest(&file).unwrap();
        let told = &built["formats"][format];
        assert_eq!(told["md5"].as_str(), digests.md5.as_deref(), "{format}");
        assert_eq!(
            told["sha256"].as_str(),
            digests.sha256.as_deref(),
            "{format}"
        );
    }
    let raw = host.path("images").join(format!("tiny-{id}.raw"));
    assert_eq!(
        output("debugfs", &["-R", "cat /etc/motd"], &raw),
        "tiny of bookworm, vanilla\n"
    );
    let qcow2 = host.path("images").join(format!("tiny-{id}.qcow2"));
    let info: Value =
        serde_json::from_str(&output("qemu-img", &["info", "--output=json"], &qcow2)).unwrap();
    assert_eq!(info["format-specific"]["data"]["compat"], "0.10");

    let upload = format!(r#"{{"provider": "{PROVIDER}", "image-name": "tiny"}}"#);
    jobs.json(&format!("image-upload:{id}"), &upload).await;
    assert_eq!(
        cloud.uploads().await[0].properties["sha256"],
        built["formats"]["qcow2"]["sha256"]
    );
    jobs.call(&format!("image-delete:{id}"), "").await.unwrap();
    assert_eq!(
        host.files(),
        [""; 0],
        "what diskimage-builder left beside the image is gone with it"
    );
    assert_eq!(workspace.leftovers().unwrap(), [""; 0]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn diskimage_builder_unmounts_when_it_is_stopped() {
    if !can_run() {
        return;
    }
    let workspace = Workspace::new().unwrap();
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let hangs = host.path("hangs");
    let text = config(&host, &workspace);
    let text = text.replace(
        "NODEYARD_FLAVOUR",
        &format!("NODEYARD_HANG: {}\n      NODEYARD_FLAVOUR", hangs.display()),
    );
    let worker = TestWorker::start(&jobs, TestCloud::new(Simulate::default()), parse(&text)).await;
    let request = JobRequest::new("image-build:tiny", r#"{"image-id": "1"}"#);
    let job = jobs.client().submit(&request).await.unwrap();
    until("the image is mounted", || async {
        hangs.exists().then_some(())
    })
    .await;
    assert_ne!(workspace.leftovers().unwrap(), [""; 0]);
    worker.stop().await;
    assert_eq!(workspace.leftovers().unwrap(), [""; 0]);
    let outcome = format!("{:?}", job.wait().await);
    assert!(outcome.contains("the worker stopped"), "{outcome}");
}
