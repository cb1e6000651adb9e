//! The contract with clients, with every supported job server.

use nodeyard_builder::jobs::{FailureKind, LocalState, UploadProgress};
use nodeyard_gearman::client::{JobEvent, JobRequest};
use nodeyard_testbeds::gearman::{python, tool};
use serde_json::{Value, json};

use crate::worker::fixtures::{
    GOOD, JobServerKind, Jobs, TestCloud, TestHost, TestWorker, apart, parse, soon,
};

/// The same for every job server there is.
macro_rules! on_every_server {
    ($($name:ident),* $(,)?) => {
        mod ours { $(#[tokio::test(flavor = "multi_thread")] async fn $name() { super::$name(super::JobServerKind::Ours).await; })* }
        mod gearmand { $(#[tokio::test(flavor = "multi_thread")] async fn $name() { super::$name(super::JobServerKind::Gearmand).await; })* }
        mod geard { $(#[tokio::test(flavor = "multi_thread")] async fn $name() { super::$name(super::JobServerKind::Geard).await; })* }
    };
}

on_every_server!(
    an_image_is_built_uploaded_and_deleted,
    a_foreign_client_needs_one_line,
    gears_client_is_served,
    a_restarted_worker_answers_for_its_images,
    each_worker_does_what_only_it_can,
);

async fn an_image_is_built_uploaded_and_deleted(between: JobServerKind) {
    let (host, jobs) = (TestHost::new(), Jobs::start(between).await);
    let cloud = TestCloud::new(Default::default());
    let config = parse(&host.config(&[("trusty", GOOD)], ""));
    let worker = TestWorker::start(&jobs, cloud.clone(), config).await;
    jobs.offered("image-build:trusty").await;
    jobs.offered("upload-delete:fake-cloud").await;

    let id = "0123456789abcdef0123456789abcdef";
    let built = jobs
        .json("image-build:trusty", &json!({"image-id": id}).to_string())
        .await;
    assert_eq!(built["image-id"], id);
    assert_eq!(built["builder"], "builder01.example.com");
    let file = &built["formats"]["qcow2"];
    assert_eq!(
        file["size"].as_u64(),
        Some(format!("this is {id} as qcow2\n").len() as u64)
    );
    assert_eq!(file["md5"].as_str().map(str::len), Some(32));
    assert_eq!(file["sha256"].as_str().map(str::len), Some(64));
    assert_eq!(
        host.log("trusty", id),
        "making trusty\nnodeyard: progress 1/2\nnodeyard: progress 2/2\nExit code: 0\n"
    );
    for function in ["upload", "delete", "info"] {
        jobs.offered(&format!("image-{function}:{id}")).await;
    }

    let upload = json!({
        "provider": "fake-cloud", "image-name": "trusty", "managed": "system-1",
        "upload-id": "0000000007", "metadata": {"more": "said"},
    });
    let uploaded = jobs
        .json(&format!("image-upload:{id}"), &upload.to_string())
        .await;
    let images = cloud.uploads().await;
    let [image] = &images[..] else {
        panic!("{images:?}")
    };
    assert_eq!(
        uploaded["external-id"].as_str(),
        image.id.as_text().as_deref()
    );
    assert_eq!(uploaded["external-name"].as_str(), Some(&*image.name));
    assert!(image.name.starts_with("trusty-1"), "{}", image.name);
    let property = |key: &str| image.properties.get(key).map(String::as_str);
    assert_eq!(property("nodepool_build_id"), Some(id));
    assert_eq!(property("nodepool_upload_id"), Some("0000000007"));
    assert_eq!(property("nodepool_provider_name"), Some("fake-cloud"));
    assert_eq!(property("nodeyard_system_id"), Some("system-1"));
    assert_eq!(
        (property("of"), property("both")),
        (Some("image"), Some("provider"))
    );
    assert_eq!(property("more"), Some("said"));
    assert_eq!(property("md5"), file["md5"].as_str());

    // Asked again: the same answer, and nothing new in the cloud.
    let again = jobs
        .json(&format!("image-upload:{id}"), &upload.to_string())
        .await;
    assert_eq!(again, uploaded);
    assert_eq!(cloud.uploads().await.len(), 1);
    let info = jobs.info(id).await;
    assert_eq!(info.state, LocalState::Ready);
    assert!(
        matches!(info.uploads[0].state, UploadProgress::Ready(_)),
        "{info:?}"
    );

    assert_eq!(
        jobs.call(&format!("image-delete:{id}"), "").await,
        Ok(Vec::new())
    );
    for function in ["upload", "delete", "info"] {
        jobs.withdrawn(&format!("image-{function}:{id}")).await;
    }
    assert_eq!(host.files(), [""; 0]);
    assert_eq!(
        cloud.uploads().await.len(),
        1,
        "a delete never touches a cloud"
    );

    let gone = json!({"image": "trusty", "image-id": id, "managed": "system-1", "upload-id": "0000000007"});
    for _ in 0..2 {
        let answer = jobs
            .call("upload-delete:fake-cloud", &gone.to_string())
            .await;
        assert_eq!(answer, Ok(Vec::new()), "what is gone may be deleted again");
        assert!(cloud.uploads().await.is_empty());
    }
    worker.stop().await;
}

/// Returns the output of the `gearman` command: the result and the progress of the job.
async fn gearman(jobs: &Jobs, function: &str, payload: &str) -> (bool, String) {
    let (port, function, payload) = (
        jobs.port().to_string(),
        function.to_owned(),
        payload.to_owned(),
    );
    let output = apart(move || {
        tool(
            "gearman",
            &["-h", "127.0.0.1", "-p", &port, "-f", &function, &payload],
        )
        .unwrap()
    })
    .await;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), text)
}

fn first(text: &str) -> Value {
    let mut values = serde_json::Deserializer::from_str(text).into_iter();
    values.next().unwrap().unwrap()
}

async fn a_foreign_client_needs_one_line(between: JobServerKind) {
    let (host, jobs) = (TestHost::new(), Jobs::start(between).await);
    let cloud = TestCloud::new(Default::default());
    let config = parse(&host.config(&[("trusty", GOOD)], ""));
    let worker = TestWorker::start(&jobs, cloud.clone(), config).await;
    let (good, text) = gearman(&jobs, "image-build:trusty", r#"{"image-id": "42"}"#).await;
    assert!(good && first(&text)["image-id"] == "42", "{text}");
    let upload = r#"{"provider": "fake-cloud", "image-name": "trusty"}"#;
    let (good, text) = gearman(&jobs, "image-upload:42", upload).await;
    let images = cloud.uploads().await;
    assert!(good, "{text}");
    assert_eq!(
        first(&text)["external-id"].as_str(),
        images[0].id.as_text().as_deref()
    );
    let system = &images[0].properties["nodeyard_system_id"];
    assert!(
        system.starts_with("builder-"),
        "nobody else looks after it: {system}"
    );
    let (good, text) = gearman(&jobs, "image-delete:42", "\"\"").await;
    assert!(good && text.is_empty(), "{text}");
    let (good, text) = gearman(&jobs, "image-build:trusty", "{}").await;
    assert!(
        !good && text.contains("\"failure\"") && text.contains("refused"),
        "{text}"
    );
    worker.stop().await;
}

async fn gears_client_is_served(between: JobServerKind) {
    let (host, jobs) = (TestHost::new(), Jobs::start(between).await);
    let cloud = TestCloud::new(Default::default());
    let config = parse(&host.config(&[("trusty", GOOD), ("broken", "exit 7")], ""));
    let worker = TestWorker::start(&jobs, cloud.clone(), config).await;
    let gear = async |function: &'static str, payload: &'static str| {
        let port = jobs.port().to_string();
        let output =
            apart(move || python("gear_client.py", &[&port, function, payload]).unwrap()).await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let heard: Value = serde_json::from_str(&text).unwrap();
        heard
    };
    let heard = gear("image-build:trusty", r#"{"image-id": "42"}"#).await;
    assert_eq!(
        (&heard["complete"], &heard["failure"]),
        (&json!(true), &json!(false)),
        "{heard}"
    );
    let data = heard["data"].as_array().unwrap();
    assert_eq!(
        data.len(),
        1,
        "log lines come only when they are asked for: {heard}"
    );
    let heard = gear(
        "image-upload:42",
        r#"{"provider": "fake-cloud", "image-name": "trusty"}"#,
    )
    .await;
    assert!(
        heard["data"][0].as_str().unwrap().contains("external-id"),
        "{heard}"
    );
    let heard = gear("image-delete:42", "\"\"").await;
    assert_eq!(heard["failure"], false, "{heard}");
    let heard = gear("image-build:broken", r#"{"image-id": "43"}"#).await;
    assert_eq!(heard["failure"], true, "{heard}");
    assert!(
        heard["data"][0].as_str().unwrap().contains("exit code 7"),
        "{heard}"
    );
    // A client that missed it can query it.
    let heard = gear("image-info:43", "").await;
    let info: serde_json::Value = serde_json::from_str(heard["data"][0].as_str().unwrap()).unwrap();
    assert_eq!(info["failure"]["exit-code"], 7, "{info}");
    worker.stop().await;
}

async fn a_restarted_worker_answers_for_its_images(between: JobServerKind) {
    let (host, jobs) = (TestHost::new(), Jobs::start(between).await);
    let cloud = TestCloud::new(Default::default());
    let config = parse(&host.config(&[("trusty", GOOD), ("broken", "exit 7")], ""));
    let worker = TestWorker::start(&jobs, cloud.clone(), config.clone()).await;
    jobs.json("image-build:trusty", r#"{"image-id": "a.b-c"}"#)
        .await;
    let failure = jobs
        .call("image-build:broken", r#"{"image-id": "bad"}"#)
        .await
        .unwrap_err();
    assert_eq!(failure.kind, FailureKind::Failed);
    worker.stop().await;
    for function in ["image-build:trusty", "image-upload:a.b-c", "image-info:bad"] {
        jobs.withdrawn(function).await;
    }

    let worker = TestWorker::start(&jobs, cloud.clone(), config).await;
    assert_eq!(jobs.info("a.b-c").await.state, LocalState::Ready);
    let bad = jobs.info("bad").await;
    assert_eq!(
        (bad.state, bad.failure),
        (LocalState::Failed, Some(failure))
    );
    let built = jobs
        .json("image-build:trusty", r#"{"image-id": "a.b-c"}"#)
        .await;
    assert_eq!(built["image-id"], "a.b-c", "it is not built again");
    jobs.json(
        "image-upload:a.b-c",
        r#"{"provider": "fake-cloud", "image-name": "trusty"}"#,
    )
    .await;
    for id in ["a.b-c", "bad"] {
        jobs.call(&format!("image-delete:{id}"), "").await.unwrap();
        jobs.withdrawn(&format!("image-info:{id}")).await;
    }
    worker.stop().await;
}

async fn each_worker_does_what_only_it_can(between: JobServerKind) {
    let jobs = Jobs::start(between).await;
    let cloud = TestCloud::new(Default::default());
    let hosts = [("trusty", TestHost::new()), ("win2022", TestHost::new())];
    let mut workers = Vec::new();
    for (image, host) in &hosts {
        let config = parse(&host.config(&[(*image, GOOD)], ""));
        workers.push(TestWorker::start(&jobs, cloud.clone(), config).await);
    }
    let mut builders = Vec::new();
    for (image, host) in &hosts {
        let order = json!({"image-id": format!("id-of-{image}")}).to_string();
        let built = jobs.json(&format!("image-build:{image}"), &order).await;
        builders.push(built["builder-id"].clone());
        assert!(
            host.path(&format!("images/{image}-id-of-{image}.qcow2"))
                .exists()
        );
    }
    assert_ne!(builders[0], builders[1]);
    // Uploads reach the worker that has the image, regardless of free slots.
    for (image, _) in hosts.iter().rev() {
        let order = json!({"provider": "fake-cloud", "image-name": image}).to_string();
        jobs.json(&format!("image-upload:id-of-{image}"), &order)
            .await;
    }
    assert_eq!(cloud.uploads().await.len(), 2);
    jobs.call("image-delete:id-of-trusty", "").await.unwrap();
    jobs.withdrawn("image-upload:id-of-trusty").await;
    jobs.offered("image-upload:id-of-win2022").await;
    for worker in workers {
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_told_and_the_log_streamed_to_those_who_ask() {
    let (host, jobs) = (TestHost::new(), Jobs::start(JobServerKind::Ours).await);
    let config = parse(&host.config(&[("trusty", GOOD)], ""));
    let worker = TestWorker::start(&jobs, TestCloud::new(Default::default()), config).await;
    let request = JobRequest::new("image-build:trusty", r#"{"image-id": "1", "stream": true}"#);
    let mut job = jobs.client().submit(&request).await.unwrap();
    let (mut log, mut progress) = (Vec::new(), Vec::new());
    loop {
        match soon("the build ends", job.next()).await.unwrap() {
            JobEvent::Data(data) => log.extend(data),
            JobEvent::Status {
                numerator,
                denominator,
            } => progress.push((numerator, denominator)),
            JobEvent::Complete(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(String::from_utf8(log).unwrap(), host.log("trusty", "1"));
    assert_eq!(progress.first(), Some(&(0, 1)));
    assert_eq!(progress.last(), Some(&(2, 2)));
    worker.stop().await;
}
