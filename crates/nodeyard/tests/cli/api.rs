//! The HTTP API of a whole yard: its guide, its document under fire, and what a kill leaves.

use std::fs;
use std::process::{Command, Stdio};

use nodeyard_testbeds::checkout;
use serde_json::{Value, json};

use crate::bed::{Bed, Daemon, read_until, wait_until};

const TENANT: &str = "the-token-of-a-tenant";

struct Yard {
    bed: Bed,
    daemon: Daemon,
    url: String,
}

impl Yard {
    fn start() -> Self {
        let bed = Bed::new();
        let (port, webapp) = (bed.free_port(), bed.free_port());
        let state = bed.path("state");
        let text = format!(
            "
state-dir: {state}
webapp: {{port: {webapp}, listen_address: 127.0.0.1}}
api:
  port: {port}
  rate-limit: 0
  tokens: [{{name: acme, token: {TENANT}, right: request, tenant: acme}}]
labels: [{{name: small, min-ready: 1}}]
providers:
  - name: cloud
    driver: fake
    cloud: fake
    simulate: {{boot-time: 0}}
    cloud-images: [{{name: image, image-name: Fake Precise}}]
    pools:
      - name: main
        max-servers: 20
        labels: [{{name: small, cloud-image: image, min-ram: 1}}]
",
            state = state.display()
        );
        bed.write("nodepool.yaml", text);
        let daemon = up(&bed);
        Self {
            bed,
            daemon,
            url: format!("http://127.0.0.1:{port}"),
        }
    }

    fn token(&self) -> String {
        let token = fs::read_to_string(self.bed.path("state/api.token")).unwrap();
        token.trim().to_owned()
    }

    fn curl(&self, path: &str, more: &[&str]) -> Value {
        let output = Command::new("curl")
            .args([
                "-sS",
                "-H",
                &format!("authorization: Bearer {}", self.token()),
            ])
            .args(["-H", "content-type: application/json"])
            .args(more)
            .arg(format!("{}/api/v1{path}", self.url))
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }

    /// Sends so many examples to each operation of the document, with this token; all answers are as it says.
    fn under_fire(&self, token: &str, examples: u32) {
        let environment = nodeyard_testbeds::schemathesis().unwrap();
        let output = Command::new(environment.join("bin/schemathesis"))
            .args(["run", &format!("{}/api/v1/openapi.json", self.url)])
            .args(["--header", &format!("Authorization: Bearer {token}")])
            // A stream does not end by itself.
            .args(["--exclude-path", "/api/v1/events"])
            .args(["--checks", "all", "--max-examples", &examples.to_string()])
            // A lease that was ended is still shown, and so is what will be deleted.
            .args(["--exclude-checks", "use_after_free"])
            .args(["--seed", "4711", "--request-timeout", "90", "--no-color"])
            // That examples are slow to come is no fault of the server.
            .args(["--suppress-health-check", "too_slow"])
            .current_dir(self.bed.path(""))
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        // It is as well as before.
        assert_eq!(self.curl("/info", &[])["ready"], true);
        assert!(!self.daemon.log().contains("panicked"));
    }
}

fn up(bed: &Bed) -> Daemon {
    let daemon = bed.up(&["-c", "nodepool.yaml"]);
    daemon.wait_for_log("HTTP API");
    daemon.wait_for_log("started provider");
    daemon
}

/// The blocks of a page that are marked as shell.
fn examples(page: &str) -> String {
    let mut script = String::new();
    let mut inside = false;
    for line in page.lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            _ if inside => script.push_str(&format!("{line}\n")),
            _ => {}
        }
    }
    script
}

#[test]
fn the_examples_of_the_guide_run_as_they_stand() {
    let yard = Yard::start();
    let page = checkout().join("docs/api.md");
    let script = examples(&fs::read_to_string(page).unwrap());
    assert!(script.lines().count() > 15, "{script}");
    let script = yard
        .bed
        .write("guide.sh", format!("shopt -s expand_aliases\n{script}"));
    let output = Command::new("bash")
        .arg("-eux")
        .arg(script)
        .current_dir(yard.bed.path(""))
        .env("NODEYARD_API", &yard.url)
        .env("STATE_DIR", yard.bed.path("state"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(&output.stdout)
    );
}

#[test]
fn responses_conform_to_the_openapi_document() {
    let yard = Yard::start();
    yard.under_fire(&yard.token(), 15);
}

#[test]
fn responses_to_a_tenant_conform_and_leave_others_unchanged() {
    let yard = Yard::start();
    let lease = yard.curl("/requests", &["-d", r#"{"labels": ["small"]}"#]);
    let path = format!("/leases/{}?wait=60", lease["id"].as_str().unwrap());
    let before = yard.curl(&path, &[]);
    assert_eq!(before["phase"], "active", "{before}");
    yard.under_fire(TENANT, 5);
    let after = yard.curl(&path, &[]);
    assert_eq!(
        (&after["phase"], &after["expires"], &after["nodes"]),
        (&before["phase"], &before["expires"], &before["nodes"])
    );
}

#[test]
fn a_kill_loses_no_node() {
    let mut yard = Yard::start();
    let lease = yard.curl(
        "/requests",
        &["-d", r#"{"labels": ["small"], "duration": 3600}"#],
    );
    let path = format!("/leases/{}", lease["id"].as_str().unwrap());
    let before = yard.curl(&format!("{path}?wait=60"), &[]);
    assert_eq!(before["phase"], "active", "{before}");
    let waiting = yard.curl("/requests", &["-d", r#"{"labels": ["small", "small"]}"#]);
    let token = yard.token();
    yard.daemon.kill();
    yard.daemon = up(&yard.bed);
    assert_eq!(yard.token(), token);
    wait_until("the lease is known again", || {
        yard.curl(&path, &[])["id"] == before["id"]
    });
    let after = yard.curl(&path, &[]);
    assert_eq!(after["nodes"], before["nodes"]);
    assert_eq!(after["phase"], "active");
    let path = format!("/leases/{}?wait=60", waiting["id"].as_str().unwrap());
    assert_eq!(yard.curl(&path, &[])["phase"], "active");
    let node = after["nodes"][0]["id"].as_str().unwrap();
    wait_until("the node is still in use", || {
        yard.curl(&format!("/nodes/{node}"), &[])["state"] == json!("in-use")
    });
    // Who followed the events before is told to list again.
    let mut listener = Command::new("curl")
        .args(["-sN", "--max-time", "300", "-H", "last-event-id: 1-1"])
        .arg(format!("{}/api/v1/events", yard.url))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    read_until(&mut listener, "event: reset");
    listener.kill().unwrap();
    listener.wait().unwrap();
}
