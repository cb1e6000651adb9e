//! Images that jobs of Zuul make: steward and worker as they are, a simulated cloud, and a Zuul that says what a test
//! wants. The complete Zuul has its test where all programs come together.

mod faults;
mod gone;
mod killed;
mod several;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use nodeyard_builder::steward::notes::ImageNotes;
use nodeyard_builder::steward::{RegisteredFunctions, load_image_state, read_market};
use nodeyard_image::Hasher;
use nodeyard_model::{BuildState, ImageBuild};
use nodeyard_plan::images::{Pace, ZuulBuildList, decide};
use nodeyard_testbeds::WebServer;
use nodeyard_testbeds::web_server::{Asked, Body, Reply};
use serde_json::{Value, json};

use crate::steward::fixtures::{
    Records, RunningSteward, Store, TestJobServer, eventually, image, logs, parse,
};
use crate::steward::together::{BOTH, RunningWorker, TwoClouds, WorkerHost};

/// The builds of Zuul and its behavior.
#[derive(Default)]
struct ZuulResponses {
    builds: Vec<Value>,
    files: BTreeMap<String, Vec<u8>>,
    /// Replaces the response to all build queries.
    instead: Option<Reply>,
    /// Overridden responses by path.
    special: BTreeMap<String, Reply>,
    token: Option<&'static str>,
    white_label: bool,
}

#[derive(Clone)]
struct FakeZuul {
    server: WebServer,
    said: Arc<Mutex<ZuulResponses>>,
}

impl FakeZuul {
    fn start() -> Self {
        let said: Arc<Mutex<ZuulResponses>> = Arc::default();
        let shared = Arc::clone(&said);
        let server = WebServer::start(move |asked| answer(&shared.lock().unwrap(), asked)).unwrap();
        Self { server, said }
    }

    fn change<T>(&self, change: impl FnOnce(&mut ZuulResponses) -> T) -> T {
        change(&mut self.said.lock().unwrap())
    }

    /// A new build with a packed disk; `spoil` may take something from it.
    fn publish(&self, uuid: &str, spoil: impl FnOnce(&mut Value)) -> Vec<u8> {
        let plain = disk(uuid);
        let packed = pack(&plain);
        self.change(|said| {
            let place = said.builds.len();
            let path = format!("/artifacts/{uuid}.qcow2.zst");
            let mut build = json!({
                "uuid": uuid, "job_name": "build-image", "result": "SUCCESS", "held": false, "final": true,
                "end_time": format!("2026-11-15T10:{place:02}:00"), "pipeline": "post", "log_url": null,
                "ref": {"project": "infra/images", "branch": "main", "newrev": "abc"},
                "artifacts": [
                    {"name": "log", "url": "https://elsewhere.example/log"},
                    {"name": "disk", "url": self.server.url(&path),
                     "metadata": {"type": "disk", "sha256": sha256(&plain)}},
                ],
            });
            spoil(&mut build);
            said.builds.insert(0, build);
            said.files.insert(path, packed);
        });
        plain
    }

    fn asked_for(&self, part: &str) -> usize {
        let asked = self.server.asked();
        asked
            .iter()
            .filter(|asked| asked.target.contains(part))
            .count()
    }
}

fn answer(said: &ZuulResponses, asked: &Asked) -> Reply {
    let path = asked.target.split('?').next().unwrap_or_default();
    if let Some(reply) = said.special.get(path) {
        return reply.clone();
    }
    if let Some(content) = said.files.get(path) {
        return Reply::file(asked, content, &format!("\"{}\"", content.len()));
    }
    let builds = if said.white_label {
        "/api/builds"
    } else {
        "/api/tenant/infra/builds"
    };
    let wanted = said.token.map(|token| format!("Bearer {token}"));
    if wanted.is_some() && asked.header("authorization") != wanted.as_deref() {
        return Reply::new(401, "{}");
    }
    if path == "/api/info" && said.white_label {
        return json_reply(&json!({"info": {"tenant": "infra", "capabilities": {}}}));
    }
    if path != builds {
        return Reply::new(404, "<html>");
    }
    said.instead
        .clone()
        .unwrap_or_else(|| json_reply(&page(&said.builds, &asked.target)))
}

/// As many builds as are asked for, from where they are asked for.
fn page(builds: &[Value], target: &str) -> Value {
    let query = target.split_once('?').map_or("", |(_, query)| query);
    let number = |key: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let value = pairs.find(|(known, _)| *known == key)?.1;
        value.parse::<usize>().ok()
    };
    let (skip, limit) = (number("skip"), number("limit"));
    let page = builds.iter().skip(skip.unwrap_or(0));
    page.take(limit.unwrap_or(50)).cloned().collect()
}

fn json_reply(value: &Value) -> Reply {
    Reply::new(200, value.to_string()).with("Content-Type", "application/json")
}

/// A disk that is one, with something of its own in it.
fn disk(text: &str) -> Vec<u8> {
    let mut disk = vec![0; 300_000];
    disk[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    disk[31] = 1;
    disk[200_000..][..text.len()].copy_from_slice(text.as_bytes());
    disk
}

fn pack(plain: &[u8]) -> Vec<u8> {
    zstd::encode_all(plain, 1).unwrap()
}

fn sha256(bytes: &[u8]) -> String {
    let mut hasher = Hasher::new().unwrap();
    hasher.update(bytes);
    hasher.finish().unwrap().sha256.unwrap().into()
}

struct ZuulTest {
    zuul: FakeZuul,
    store: Store,
    server: TestJobServer,
    clouds: Arc<TwoClouds>,
    host: WorkerHost,
    text: String,
}

impl ZuulTest {
    async fn new(more: &str) -> Self {
        logs();
        let zuul = FakeZuul::start();
        let host = WorkerHost::new();
        let dir = host.0.path().display();
        let text = format!(
            "images-dir: {dir}/images\nbuild-log-dir: {dir}/logs\nproviders: [{BOTH}]\n\
             zuul-images:\n  - name: ubuntu\n    api-url: {}\n    allow-insecure: true\n    project: infra/images\n    \
             pipelines: [post]\n    branch: main\n    job: build-image\n    poll-interval: 5\n    \
             artifacts: [{{format: qcow2, type: disk}}]\n{more}",
            zuul.server.url("/")
        );
        Self {
            zuul,
            store: Store::embedded(),
            server: TestJobServer::start().await,
            clouds: TwoClouds::new(),
            host,
            text,
        }
    }

    async fn worker(&self) -> RunningWorker {
        RunningWorker::start(&self.server, &self.clouds, &self.text).await
    }

    async fn steward(&self) -> RunningSteward {
        RunningSteward::start(&self.store, &self.server, &self.text).await
    }

    /// Returns the output of `image why`.
    async fn why(&self, records: &Records) -> String {
        let functions = RegisteredFunctions::fetch(
            std::slice::from_ref(&self.server.endpoint),
            crate::steward::fixtures::PATIENCE,
        )
        .await;
        let config = parse(&self.text);
        let image_state = load_image_state(&records.0, &config, &functions, &image())
            .await
            .unwrap();
        let now = nodeyard_model::now();
        let plan = decide(&image_state, &Pace::default(), now);
        plan.explanation.display_at(now).to_string()
    }
}

/// The ready build of this build of Zuul.
async fn ready(records: &Records, uuid: &str) -> Option<(nodeyard_model::BuildId, ImageBuild)> {
    let builds = records.builds().await;
    builds.into_iter().find(|(_, build)| {
        build.state == BuildState::Ready && build.zuul_build_uuid.as_deref() == Some(uuid)
    })
}

/// Returns the recorded state of Zuul.
async fn market(records: &Records) -> ZuulBuildList {
    let market = read_market(&**records.0.tree(), &image()).await.unwrap();
    market.unwrap_or_default()
}

const TENANT: &str = "    tenant: infra\n    checksum: required\n";

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_zuul_made_from_its_api_to_its_end() {
    let test = ZuulTest::new(TENANT).await;
    let plain = test.zuul.publish("aaaa", |_| {});
    let (worker, steward) = (test.worker().await, test.steward().await);
    let records = Records::of(&test.store).await;
    records.settled(1, &test.clouds).await;
    let (id, build) = ready(&records, "aaaa").await.unwrap();
    assert_eq!(build.source.as_deref(), Some("zuul"));
    assert!(build.zuul_end_time.is_some());
    let path = test.host.0.path().join(format!("images/ubuntu-{id}"));
    let file = std::fs::read(path.with_extension("qcow2")).unwrap();
    assert_eq!(file, plain);
    assert!(path.with_extension("qcow2.sha256").exists());
    let kept = std::fs::read_to_string(path.with_extension("d").join("zuul.json")).unwrap();
    assert!(kept.contains("aaaa") && kept.contains(&sha256(&plain)));
    let notes = ImageNotes::read(&**records.0.tree(), &image())
        .await
        .unwrap();
    let provenance = notes.builds[&id].provenance.as_ref().unwrap();
    assert_eq!(provenance.build.project.as_deref(), Some("infra/images"));
    let log = test.host.0.path().join(format!("logs/ubuntu-{id}.log"));
    assert!(
        std::fs::read_to_string(log)
            .unwrap()
            .contains("digest matches the published one")
    );

    // The next one is found without being asked for, and in the end two are kept.
    test.zuul.publish("bbbb", |_| {});
    eventually("the next build is imported", || ready(&records, "bbbb")).await;
    test.zuul.publish("cccc", |_| {});
    records.request().await;
    eventually("the one after it is imported", || ready(&records, "cccc")).await;
    records.settled(2, &test.clouds).await;
    eventually("two files are left", || async {
        (test.host.files() == 2 && ready(&records, "aaaa").await.is_none()).then_some(())
    })
    .await;
    let why = test.why(&records).await;
    assert!(why.contains("nothing newer than cccc"), "{why}");
    let left = test.host.0.path().join("images/.zuul-downloads/ubuntu");
    assert!(std::fs::read_dir(left).unwrap().next().is_none());
    steward.stop().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn builds_that_are_of_no_use_are_passed_over_and_not_tried_for_ever() {
    let test = ZuulTest::new(TENANT).await;
    test.zuul.publish("good", |_| {});
    test.zuul.publish("wrong-digest", |build| {
        build["artifacts"][1]["metadata"]["sha256"] = "0".repeat(64).into();
    });
    test.zuul.publish("no-digest", |build| {
        build["artifacts"][1]["metadata"] = json!({"type": "disk"});
    });
    let signed = test
        .zuul
        .server
        .url("/artifacts/nothing?X-Signature=geheim");
    test.zuul
        .publish("gone", |build| build["artifacts"][1]["url"] = signed.into());
    test.zuul.publish("private", |build| {
        build["artifacts"][1]["url"] = "http://127.0.0.1:1/metadata".into();
    });
    test.zuul.publish("no-address", |build| {
        build["artifacts"][1]["url"] = "file:///etc/passwd".into();
    });
    test.zuul.publish("no-disk", |build| {
        let url = build["artifacts"][1]["url"].as_str().unwrap().to_owned();
        build["artifacts"][1]["url"] = url.replace("no-disk", "backed").into();
        build["artifacts"][1]["metadata"]["sha256"] = sha256(&backed()).into();
    });
    test.zuul.change(|said| {
        said.files
            .insert("/artifacts/backed.qcow2.zst".to_owned(), pack(&backed()));
    });
    test.zuul
        .publish("nothing", |build| build["artifacts"] = json!([]));
    test.zuul.publish("other-branch", |build| {
        build["ref"]["branch"] = "dev".into();
    });
    test.zuul
        .publish("not-final", |build| build["final"] = false.into());
    let (worker, steward) = (test.worker().await, test.steward().await);
    let records = Records::of(&test.store).await;
    eventually("the good one is imported", || ready(&records, "good")).await;
    records.settled(1, &test.clouds).await;
    assert_eq!(test.zuul.asked_for("/artifacts/nothing"), 1);
    let why = test.why(&records).await;
    for (build, reason) in [
        ("wrong-digest", "promised"),
        ("no-digest", "no digest was promised"),
        ("gone", "status 404"),
        ("private", "not a public address"),
        ("no-disk", "based on another file"),
        ("nothing", "no artifact for qcow2"),
    ] {
        let line = why
            .lines()
            .find(|line| line.contains(&format!("Zuul's {build} ")));
        assert!(
            line.is_some_and(|line| line.contains(reason)),
            "{build}: {why}"
        );
    }
    assert!(
        !why.contains("other-branch") && !why.contains("not-final"),
        "{why}"
    );
    assert!(!why.contains("geheim"), "{why}");
    steward.stop().await;
    worker.stop().await;
}

/// A disk that wants a file of this host for its base.
fn backed() -> Vec<u8> {
    let mut disk = disk("");
    disk[15] = 104;
    disk[19] = 11;
    disk[104..115].copy_from_slice(b"/etc/shadow");
    disk
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zuul_that_does_not_answer_is_explained_and_asked_again() {
    let page =
        Reply::new(200, "<html>Welcome</html>").with("Content-Type", "text/html; charset=utf-8");
    let huge = Reply {
        status: 200,
        headers: vec![("Content-Type".into(), "application/json".into())],
        body: Body::Endless(b"[[[[[[[[[[".repeat(1000)),
    };
    let silence = Reply {
        status: 200,
        headers: Vec::new(),
        body: Body::Silence,
    };
    for (instead, reason) in [
        (silence, "did not respond within"),
        (page, "text/html instead of JSON"),
        (Reply::new(200, "{\"builds\": 1}"), "unexpected JSON"),
        (huge, "exceeds"),
        (Reply::new(500, "oops"), "status 500"),
        (Reply::new(401, ""), "check `auth`"),
    ] {
        let test = ZuulTest::new(TENANT).await;
        test.zuul.publish("aaaa", |_| {});
        test.zuul.change(|said| said.instead = Some(instead));
        let (worker, steward) = (test.worker().await, test.steward().await);
        let records = Records::of(&test.store).await;
        eventually("the reason is told", || async {
            test.why(&records).await.contains(reason).then_some(())
        })
        .await;
        test.zuul.change(|said| said.instead = None);
        records.request().await;
        eventually("it is imported", || ready(&records, "aaaa")).await;
        steward.stop().await;
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_of_one_tenant_and_a_token_will_do() {
    let test =
        ZuulTest::new("    auth: {type: bearer, token-env: NODEYARD_TEST_ZUUL_TOKEN}\n").await;
    let file = test.host.0.path().join("token");
    std::fs::write(&file, "geheim\n").unwrap();
    let text = test.text.replace(
        "token-env: NODEYARD_TEST_ZUUL_TOKEN",
        &format!("token-file: {}", file.display()),
    );
    let test = ZuulTest { text, ..test };
    test.zuul.change(|said| {
        said.token = Some("geheim");
        said.white_label = true;
    });
    test.zuul.publish("aaaa", |_| {});
    let (worker, steward) = (test.worker().await, test.steward().await);
    let records = Records::of(&test.store).await;
    eventually("it is imported", || ready(&records, "aaaa")).await;
    records.settled(1, &test.clouds).await;
    // The artifact is at the same origin, and got the token too.
    let asked = test.zuul.server.asked();
    assert!(
        asked
            .iter()
            .all(|asked| asked.header("authorization") == Some("Bearer geheim"))
    );
    steward.stop().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stops_in_the_middle_goes_on_where_it_was() {
    let test =
        ZuulTest::new("    tenant: infra\n    download-rate: 40000\n    download-connections: 1\n")
            .await;
    let plain = test.zuul.publish("aaaa", |build| {
        let url = build["artifacts"][1]["url"].as_str().unwrap().to_owned();
        build["artifacts"][1]["url"] = url.replace(".zst", "").into();
    });
    test.zuul.change(|said| {
        said.files
            .insert("/artifacts/aaaa.qcow2".to_owned(), plain.clone());
    });
    let (worker, steward) = (test.worker().await, test.steward().await);
    let records = Records::of(&test.store).await;
    let part = test
        .host
        .0
        .path()
        .join("images/.zuul-downloads/ubuntu/aaaa.qcow2.part.json");
    eventually("something was made to last", || async {
        part.exists().then_some(())
    })
    .await;
    worker.stop().await;
    let before = test.zuul.server.asked().len();
    let worker = test.worker().await;
    eventually("it is imported", || ready(&records, "aaaa")).await;
    let asked = test.zuul.server.asked().split_off(before);
    let first = asked
        .iter()
        .filter_map(Asked::range)
        .map(|(first, _)| first)
        .min();
    assert!(first.is_some_and(|first| first > 0), "{first:?}");
    records.settled(1, &test.clouds).await;
    steward.stop().await;
    worker.stop().await;
}

/// A key, and the file that has its public part.
struct Signer(Ed25519KeyPair);

impl Signer {
    fn new(file: &std::path::Path) -> Self {
        let pair = Ed25519KeyPair::generate().unwrap();
        let head = [
            0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
        ];
        let der = [&head[..], pair.public_key().as_ref()].concat();
        let text = BASE64_STANDARD.encode(der);
        let pem = format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n");
        std::fs::write(file, pem).unwrap();
        Self(pair)
    }

    /// A signed statement about a file that this job has made on this branch.
    fn sign(&self, sha256: &str, branch: &str) -> Value {
        let kind = "application/vnd.in-toto+json";
        let statement = json!({
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": "disk", "digest": {"sha256": sha256}}],
            "predicate": {"project": "infra/images", "pipeline": "post", "job": "build-image", "branch": branch},
        })
        .to_string();
        let signed = format!(
            "DSSEv1 {} {kind} {} {statement}",
            kind.len(),
            statement.len()
        );
        json!({
            "payloadType": kind,
            "payload": BASE64_STANDARD.encode(&statement),
            "signatures": [{"sig": BASE64_STANDARD.encode(self.0.sign(signed.as_bytes()))}],
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_signed_for_this_job_is_admitted() {
    let test = ZuulTest::new("    tenant: infra\n    signature: {key-file: KEY}\n").await;
    let file = test.host.0.path().join("images.pub");
    let signer = Signer::new(&file);
    let foreign = Signer::new(&test.host.0.path().join("other.pub"));
    let text = test.text.replace("KEY", &file.display().to_string());
    let test = ZuulTest { text, ..test };
    let sign = |build: &mut Value, signer: &Signer, branch: &str| {
        let sha256 = build["artifacts"][1]["metadata"]["sha256"].clone();
        let signature = signer.sign(sha256.as_str().unwrap(), branch);
        build["artifacts"][1]["metadata"]["signature"] = signature;
    };
    test.zuul.publish("beside", |_| {});
    test.zuul.change(|said| {
        let sha256 = said.builds[0]["artifacts"][1]["metadata"]["sha256"].clone();
        let bundle = json!({"dsseEnvelope": signer.sign(sha256.as_str().unwrap(), "main")});
        let path = "/artifacts/beside.qcow2.zst.sigstore.json".to_owned();
        said.files.insert(path, bundle.to_string().into_bytes());
    });
    test.zuul.publish("unsigned", |_| {});
    test.zuul
        .publish("foreign", |build| sign(build, &foreign, "main"));
    test.zuul
        .publish("branch", |build| sign(build, &signer, "evil"));
    let (worker, steward) = (test.worker().await, test.steward().await);
    let records = Records::of(&test.store).await;
    eventually("the one that is signed is imported", || {
        ready(&records, "beside")
    })
    .await;
    let why = test.why(&records).await;
    for (build, reason) in [
        ("unsigned", "is not signed"),
        ("foreign", "not made with the configured key"),
        ("branch", "has branch \"evil\""),
    ] {
        let line = why
            .lines()
            .find(|line| line.contains(&format!("Zuul's {build} ")));
        assert!(
            line.is_some_and(|line| line.contains(reason)),
            "{build}: {why}"
        );
    }
    test.zuul
        .publish("inside", |build| sign(build, &signer, "main"));
    records.request().await;
    let (id, _) = eventually("the next one is imported", || ready(&records, "inside")).await;
    let notes = ImageNotes::read(&**records.0.tree(), &image())
        .await
        .unwrap();
    let provenance = notes.builds[&id].provenance.as_ref().unwrap();
    assert!(provenance.artifacts["qcow2"].signed_by.is_some());
    steward.stop().await;
    worker.stop().await;
}
