//! Failures of Zuul and of imports.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::*;
use crate::steward::fixtures::PATIENCE;

const PLAIN: &str = "    tenant: infra\n";

async fn told(test: &ZuulTest, records: &Records, text: &str) -> String {
    eventually(&format!("{text:?} is told"), || async {
        let why = test.why(records).await;
        why.contains(text).then_some(why)
    })
    .await
}

/// Runs a steward that polls Zuul without a worker, and stops it.
async fn seen_before(test: &ZuulTest, records: &Records) {
    let steward = test.steward().await;
    told(test, records, "no worker answers").await;
    steward.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_while_zuul_is_away_does_not_undo_the_pause_between_questions() {
    let test = ZuulTest::new(TENANT).await;
    test.zuul.publish("aaaa", |_| {});
    let records = Records::of(&test.store).await;
    seen_before(&test, &records).await;
    let away = Reply::new(500, "oops");
    test.zuul.change(|said| said.instead = Some(away));
    let before = test.zuul.asked_for("/builds");
    let (worker, steward) = (test.worker().await, test.steward().await);
    let failures = eventually("Zuul was asked again and again", || async {
        let failures = market(&records).await.failures;
        (failures >= 2).then_some(failures)
    })
    .await;
    let asked = test.zuul.asked_for("/builds") - before;
    assert_eq!(asked, failures as usize, "every question counts");
    told(&test, &records, "status 500").await;
    test.zuul.change(|said| said.instead = None);
    records.request().await;
    eventually("it is imported", || ready(&records, "aaaa")).await;
    steward.stop().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_vanishes_before_it_is_imported_is_let_go() {
    let test = ZuulTest::new(TENANT).await;
    test.zuul.publish("aaaa", |_| {});
    let records = Records::of(&test.store).await;
    seen_before(&test, &records).await;
    test.zuul.change(|said| said.builds.clear());
    test.zuul.publish("bbbb", |_| {});
    let (worker, steward) = (test.worker().await, test.steward().await);
    eventually("the other one is imported", || ready(&records, "bbbb")).await;
    records.settled(1, &test.clouds).await;
    assert_eq!(test.zuul.asked_for("/artifacts/aaaa"), 0);
    assert!(market(&records).await.bad.is_empty());
    steward.stop().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_cannot_be_reached_is_explained_and_a_new_address_is_used() {
    let test = ZuulTest::new(TENANT).await;
    test.zuul.publish("aaaa", |_| {});
    let port = nodeyard_testbeds::free_port().unwrap();
    let closed = format!("http://127.0.0.1:{port}/");
    let text = test.text.replace(&test.zuul.server.url("/"), &closed);
    let worker = test.worker().await;
    let steward = RunningSteward::start(&test.store, &test.server, &text).await;
    let records = Records::of(&test.store).await;
    told(&test, &records, "failed to connect").await;
    steward.config.send_replace(parse(&test.text));
    eventually("it is imported", || ready(&records, "aaaa")).await;
    steward.stop().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_that_make_no_sense_hide_no_build() {
    let test = ZuulTest::new(TENANT).await;
    test.zuul.publish("good", |build| {
        let artifacts = build["artifacts"].as_array_mut().unwrap();
        artifacts.insert(0, json!({"name": "nowhere"}));
    });
    test.zuul
        .publish("odd", |build| build["job_name"] = Value::Null);
    test.zuul.publish("none", |build| *build = Value::Null);
    let (worker, steward) = (test.worker().await, test.steward().await);
    let records = Records::of(&test.store).await;
    eventually("the good one is imported", || ready(&records, "good")).await;
    let why = test.why(&records).await;
    assert!(
        why.contains("Zuul's odd is rejected") && why.contains("`job_name` is not a string"),
        "{why}"
    );
    assert!(why.contains("Zuul's build without an id"), "{why}");
    steward.stop().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_worker_is_not_held_against_a_build() {
    let missing = "    download-auth: {type: bearer, token-env: NODEYARD_TEST_NO_SUCH_VARIABLE}\n";
    let test = ZuulTest::new(&format!("{PLAIN}{missing}")).await;
    test.zuul.publish("aaaa", |_| {});
    let (worker, steward) = (test.worker().await, test.steward().await);
    let records = Records::of(&test.store).await;
    told(&test, &records, "which should contain a secret, is not set").await;
    let bad = market(&records).await.bad;
    assert!(bad.values().all(|bad| bad.tries > 0), "{bad:?}");
    // Only the worker is mended; the steward does not know of it.
    let mended = parse(&test.text.replace(missing, ""));
    worker.config.send_replace(mended);
    eventually("it is imported", || ready(&records, "aaaa")).await;
    steward.stop().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_of_no_use_is_tried_again_when_the_configuration_has_changed() {
    let test = ZuulTest::new(TENANT).await;
    test.zuul.publish("aaaa", |build| {
        build["artifacts"][1]["metadata"] = json!({"type": "disk"});
    });
    let (worker, steward) = (test.worker().await, test.steward().await);
    let records = Records::of(&test.store).await;
    told(&test, &records, "no digest was promised").await;
    eventually("it is ruled out", || async {
        (market(&records).await.bad.len() == 1).then_some(())
    })
    .await;
    let lax = parse(
        &test
            .text
            .replace("checksum: required", "checksum: if-available"),
    );
    worker.config.send_replace(Arc::clone(&lax));
    steward.config.send_replace(lax);
    eventually("it is imported", || ready(&records, "aaaa")).await;
    steward.stop().await;
    worker.stop().await;
}

/// Captures the log of this thread.
#[derive(Clone, Default)]
struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl CapturedLog {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl std::io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

// One thread, whose log is this test's alone.
#[tokio::test]
async fn no_signature_of_an_address_is_kept() {
    let told = CapturedLog::default();
    let writer = told.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _ours = tracing_subscriber::util::SubscriberInitExt::set_default(subscriber);
    let test = ZuulTest::new(TENANT).await;
    let sign = |build: &mut Value| {
        build["log_url"] = "https://logs.example/aaaa/?X-Signature=geheim".into();
        let url = build["artifacts"][1]["url"].as_str().unwrap().to_owned();
        build["artifacts"][1]["url"] = format!("{url}?X-Signature=geheim").into();
    };
    test.zuul.publish("aaaa", sign);
    for (uuid, status) in [("gone", 404), ("moody", 503)] {
        test.zuul.publish(uuid, sign);
        let path = format!("/artifacts/{uuid}.qcow2.zst");
        let reply = Reply::new(status, "").with("Retry-After", "0");
        test.zuul.change(|said| said.special.insert(path, reply));
    }
    let text = format!("{}    download-retries: 1\n", test.text);
    let test = ZuulTest { text, ..test };
    let (worker, steward) = (test.worker().await, test.steward().await);
    let records = Records::of(&test.store).await;
    let (id, _) = eventually("it is imported", || ready(&records, "aaaa")).await;
    let place = test.host.0.path().join(format!("images/ubuntu-{id}.d"));
    let kept = std::fs::read_to_string(place.join("zuul.json")).unwrap();
    let notes = ImageNotes::read(&**records.0.tree(), &image())
        .await
        .unwrap();
    let noted = serde_json::to_string(&notes.builds[&id].provenance).unwrap();
    for text in [&kept, &noted] {
        assert!(text.contains("https://logs.example/aaaa/"), "{text}");
        assert!(text.contains("/artifacts/aaaa.qcow2.zst"), "{text}");
    }
    let seen = serde_json::to_string(&market(&records).await).unwrap();
    assert!(seen.contains("/artifacts/gone.qcow2.zst"), "{seen}");
    assert!(seen.contains("/artifacts/moody.qcow2.zst"), "{seen}");
    let logs = std::fs::read_dir(test.host.0.path().join("logs")).unwrap();
    let logs = logs.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap());
    let logs: String = logs.collect();
    for uuid in ["aaaa", "gone", "moody"] {
        let address = format!("/artifacts/{uuid}.qcow2.zst");
        assert!(logs.contains(&address), "{logs}");
    }
    let own = told.text();
    assert!(own.contains("failed to import Zuul build"), "{own}");
    for text in [kept, noted, seen, logs, own] {
        assert!(!text.contains("geheim"), "{text}");
    }
    steward.stop().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_admitted_unchecked_is_told_as_such() {
    let test = ZuulTest::new("    tenant: infra\n    checksum: off\n").await;
    test.zuul.publish("aaaa", |build| {
        build["artifacts"][1]["metadata"]["sha256"] = "0".repeat(64).into();
    });
    let (worker, steward) = (test.worker().await, test.steward().await);
    let records = Records::of(&test.store).await;
    let (id, _) = eventually("it is imported", || ready(&records, "aaaa")).await;
    let notes = ImageNotes::read(&**records.0.tree(), &image())
        .await
        .unwrap();
    let provenance = notes.builds[&id].provenance.as_ref().unwrap();
    let file = &provenance.artifacts["qcow2"];
    assert!(file.unchecked && file.promised.is_empty(), "{file:?}");
    let log = test.host.0.path().join(format!("logs/ubuntu-{id}.log"));
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("digest not checked"), "{log}");
    assert!(!log.contains("published"), "{log}");
    steward.stop().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_without_an_end_does_not_keep_others_out_for_ever() {
    let small = "images-dir-reserve: 0\nimages-dir-limit: 100M\nimage-size-estimate: 1M\n";
    let test = ZuulTest::new(&format!("{PLAIN}{small}")).await;
    test.zuul.publish("good", |_| {});
    test.zuul.publish("endless", |build| {
        let url = build["artifacts"][1]["url"].as_str().unwrap().to_owned();
        build["artifacts"][1]["url"] = url.replace(".zst", "").into();
    });
    let endless = Reply {
        status: 200,
        headers: Vec::new(),
        body: Body::Endless(vec![7; 100_000]),
    };
    let path = "/artifacts/endless.qcow2";
    test.zuul
        .change(|said| said.special.insert(path.to_owned(), endless));
    let (worker, steward) = (test.worker().await, test.steward().await);
    let records = Records::of(&test.store).await;
    let (first, _) = eventually("the other one is imported", || ready(&records, "good")).await;
    told(&test, &records, " times: ").await;
    let tries = market(&records).await.bad["endless"].tries;
    assert!(tries >= 5, "{tries}");
    // A request retries the import, and still succeeds with another build.
    let before = test.zuul.asked_for(path);
    records.request().await;
    eventually("the other one is imported again", || async {
        let builds = records.builds().await;
        let mut ready = builds.iter().filter(|(_, b)| b.state == BuildState::Ready);
        ready.any(|(id, _)| *id != first).then_some(())
    })
    .await;
    assert!(test.zuul.asked_for(path) > before);
    steward.stop().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_is_found_below_many_that_are_of_no_use() {
    let test = ZuulTest::new(TENANT).await;
    test.zuul.publish("good", |_| {});
    for number in 0..44 {
        test.zuul.publish(&format!("useless-{number}"), |build| {
            build["artifacts"] = json!([]);
        });
    }
    let (worker, steward) = (test.worker().await, test.steward().await);
    let records = Records::of(&test.store).await;
    eventually("the good one is imported", || ready(&records, "good")).await;
    let why = test.why(&records).await;
    assert!(why.contains("Zuul's useless-0 is rejected"), "{why}");
    // Once it is imported, older builds are not considered.
    test.zuul.publish("better", |_| {});
    let before = test.zuul.asked_for("skip=");
    records.request().await;
    eventually("the next one is imported", || ready(&records, "better")).await;
    assert_eq!(test.zuul.asked_for("skip="), before);
    steward.stop().await;
    worker.stop().await;
}

/// Sends no file before all files were requested.
fn impatient_store(files: BTreeMap<String, Vec<u8>>) -> WebServer {
    let asked_for: Mutex<BTreeSet<String>> = Mutex::default();
    WebServer::start(move |asked| {
        let Some(content) = files.get(&asked.target) else {
            return Reply::new(404, "");
        };
        if asked.method == "GET" {
            asked_for.lock().unwrap().insert(asked.target.clone());
            let deadline = Instant::now() + PATIENCE;
            while asked_for.lock().unwrap().len() < files.len() {
                if Instant::now() > deadline {
                    return Reply::new(410, "");
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Reply::file(asked, content, "\"1\"")
    })
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_artifacts_of_a_build_are_fetched_at_the_same_time() {
    let test =
        ZuulTest::new("    tenant: infra\n    formats: [raw]\n    allow-private-addresses: true\n");
    let test = test.await;
    let both = "artifacts: [{format: qcow2, type: disk}, {format: raw, type: disk-raw}]";
    let one = "artifacts: [{format: qcow2, type: disk}]";
    let text = test.text.replace(one, both);
    let test = ZuulTest { text, ..test };
    let (qcow2, raw) = (disk("qcow2"), vec![7; 200_000]);
    let store = impatient_store(BTreeMap::from([
        ("/a.qcow2".to_owned(), qcow2.clone()),
        ("/a.raw".to_owned(), raw.clone()),
    ]));
    test.zuul.publish("aaaa", |build| {
        build["artifacts"] = json!([
            {"name": "disk", "url": store.url("/a.qcow2"),
             "metadata": {"type": "disk", "sha256": sha256(&qcow2)}},
            {"name": "raw", "url": store.url("/a.raw"),
             "metadata": {"type": "disk-raw", "sha256": sha256(&raw)}},
        ]);
    });
    let (worker, steward) = (test.worker().await, test.steward().await);
    let records = Records::of(&test.store).await;
    let (id, build) = eventually("it is imported", || ready(&records, "aaaa")).await;
    let formats: Vec<String> = build.formats.iter().map(ToString::to_string).collect();
    assert_eq!(formats, ["qcow2", "raw"]);
    let log = test.host.0.path().join(format!("logs/ubuntu-{id}.log"));
    let log = std::fs::read_to_string(log).unwrap();
    assert_eq!(log.matches("digest matches").count(), 2, "{log}");
    steward.stop().await;
    worker.stop().await;
}
