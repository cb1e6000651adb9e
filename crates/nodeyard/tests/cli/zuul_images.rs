//! Images that jobs of Zuul make, as a person meets them. The Zuul here says what a test wants.

use std::sync::{Arc, Mutex};

use nodeyard_testbeds::WebServer;
use nodeyard_testbeds::web_server::Reply;
use serde_json::{Value, json};

use crate::bed::{Bed, Daemon, Ran};

/// What Zuul says of builds.
#[derive(Clone, Default)]
struct Says(Arc<Mutex<Option<Reply>>>);

impl Says {
    fn nothing_good(&self, status: u16) {
        *self.0.lock().unwrap() = Some(Reply::new(status, ""));
    }

    fn builds(&self, builds: &Value) {
        let reply = Reply::new(200, builds.to_string()).with("Content-Type", "application/json");
        *self.0.lock().unwrap() = Some(reply);
    }
}

/// A Zuul, and a disk beside its API.
fn zuul(says: &Says) -> WebServer {
    let says = says.clone();
    WebServer::start(move |asked| match asked.target.split('?').next() {
        Some("/disk.qcow2") => Reply::file(asked, &disk(), "\"1\""),
        Some("/api/tenant/infra/builds") => {
            let says = says.0.lock().unwrap().clone();
            says.unwrap_or_else(|| Reply::new(500, ""))
        }
        _ => Reply::new(404, ""),
    })
    .unwrap()
}

fn disk() -> Vec<u8> {
    let mut disk = vec![0; 70_000];
    disk[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    disk[31] = 1;
    disk
}

fn build(uuid: &str, url: &str) -> Value {
    json!({
        "uuid": uuid, "job_name": "make", "project": "images", "result": "SUCCESS",
        "end_time": "2026-11-15T10:00:00",
        "artifacts": [{"name": "disk", "url": url,
                       "metadata": {"type": "disk", "sha256": "0".repeat(64)}}],
    })
}

fn bed(zuul: &WebServer) -> Bed {
    let bed = Bed::new();
    bed.write(
        "nodepool.yaml",
        format!(
            "state-dir: state\n\
             images-dir: images\n\
             build-log-dir: logs\n\
             images-dir-reserve: 0\n\
             image-size-estimate: 1M\n\
             webapp: {{port: {}, listen_address: 127.0.0.1}}\n\
             zuul-images:\n  - {{name: tiny, api-url: \"{}\", tenant: infra, project: images, job: make, \
             poll-interval: 5, allow-insecure: true, checksum: off, \
             artifacts: [{{format: qcow2, type: disk}}]}}\n\
             labels: []\n\
             providers: [{{name: somewhere, driver: fake, diskimages: [{{name: tiny}}], pools: []}}]\n",
            bed.free_port(),
            zuul.url("/")
        ),
    );
    bed
}

fn up(bed: &Bed) -> Daemon {
    let daemon = bed.start("log", ["-c", "nodepool.yaml", "up"]);
    daemon.wait_for_log("store ready");
    daemon
}

fn image(bed: &Bed, args: &[&str]) -> Ran {
    let start = ["-c", "nodepool.yaml", "image"];
    bed.run(start.iter().chain(args))
}

const WAIT: [&str; 6] = ["-c", "nodepool.yaml", "image", "build", "tiny", "--wait"];

#[test]
fn waiting_prints_zuuls_response_until_the_image_is_ready() {
    let says = Says::default();
    let server = zuul(&says);
    let bed = bed(&server);
    let _daemon = up(&bed);
    says.nothing_good(503);
    let waiting = bed.start("waiting", WAIT);
    waiting.wait_for_log("because polling failed");
    waiting.wait_for_log("status 503");
    says.builds(&json!([]));
    waiting.wait_for_log("no usable build");
    says.builds(&json!([build("aaaa", &server.url("/disk.qcow2"))]));
    waiting.wait_for_log("is ready");
    // Nobody has looked at its digest, which is wrong.
    let told = image(&bed, &["provenance", "tiny"]).succeeded().out;
    assert!(told.contains("digest not checked"), "{told}");
    assert!(!told.contains("published"), "{told}");
}

#[test]
fn waiting_for_an_unavailable_image_prints_the_reason() {
    let says = Says::default();
    let server = zuul(&says);
    says.builds(&json!([build("aaaa", &server.url("/nothing.qcow2"))]));
    let bed = bed(&server);
    let _daemon = up(&bed);
    image(&bed, &WAIT[3..]).failed("status 404");
    // The reason of this try, not of another one.
    says.builds(&json!([build("bbbb", "file:///etc/passwd")]));
    let ran = image(&bed, &WAIT[3..]);
    assert!(!ran.err.contains("status 404"), "{}", ran.err);
    ran.failed("the build of tiny failed: ");
}
