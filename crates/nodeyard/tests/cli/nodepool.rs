//! The commands of `nodepool`, beside those of the real one on the same ZooKeeper.

use std::path::PathBuf;
use std::process::Command;

use nodeyard_testbeds::{ZooKeeperServer, checkout};
use serde_json::json;

use crate::bed::{Bed, Ran};

const BUILD: &str = "0a5c8c1e6e2f4d0f9c3b7a8d5e1f2a3b";

/// A bed whose configuration names a ZooKeeper with something in it.
struct Fleet {
    bed: Bed,
    _server: ZooKeeperServer,
}

impl Fleet {
    fn new() -> Self {
        let bed = Bed::new();
        let server = ZooKeeperServer::start().unwrap();
        let certificates = server.certificates();
        bed.write(
            "nodepool.yaml",
            json!({
                "zookeeper-servers": [{"host": "127.0.0.1", "port": server.tls_port()}],
                "zookeeper-tls": {
                    "ca": certificates.ca, "cert": certificates.client.cert, "key": certificates.client.key,
                },
                "labels": [{"name": "small"}],
                "diskimages": [{"name": "debian"}, {"name": "quiet", "pause": true}],
                "providers": [],
            })
            .to_string(),
        );
        let node = |changes: serde_json::Value| {
            let mut node = json!({
                "state": "ready", "state_time": 1.5, "type": ["small"], "provider": "cloud", "pool": "main",
                "connection_type": "ssh", "connection_port": 22, "username": "zuul", "host_keys": [],
            });
            node.as_object_mut()
                .unwrap()
                .extend(changes.as_object().unwrap().clone());
            node.to_string()
        };
        let ready = json!({"state": "ready", "state_time": 1.5});
        let lines = [
            ("/nodepool", String::new()),
            ("/nodepool/nodes", String::new()),
            ("/nodepool/nodes/0000000000", node(json!({"external_id": "server-1", "public_ipv4": "192.0.2.1"}))),
            (
                "/nodepool/nodes/0000000001",
                node(json!({"type": ["small", "large"], "state": "hold", "external_id": "pod-1", "hold_job": "acme job", "comment": "broken",
                    "public_ipv6": "2001:db8::1", "az": "nova", "launcher": "np01", "allocated_to": "200-0000000003",
                    "connection_port": {"token": "hush"}, "connection_type": "kubectl"})),
            ),
            ("/nodepool/nodes/0000000001/lock", String::new()),
            ("/nodepool/requests", String::new()),
            (
                "/nodepool/requests/200-0000000003",
                json!({"state": "pending", "state_time": 2.5, "node_types": ["small", "large"], "nodes": [],
                    "declined_by": ["a", "b"], "requestor": "zuul", "requestor_data": null, "provider": null,
                    "relative_priority": 3, "event_id": "e1", "created_time": 2.5, "tenant_name": null})
                .to_string(),
            ),
            ("/nodepool/images", String::new()),
            ("/nodepool/images/debian", String::new()),
            ("/nodepool/images/debian/builds", String::new()),
            (
                "/nodepool/images/debian/builds/BUILD",
                json!({"state": "ready", "state_time": 3.5, "builder": "nb01", "formats": "qcow2,raw"}).to_string(),
            ),
            ("/nodepool/images/debian/builds/BUILD/providers", String::new()),
            ("/nodepool/images/debian/builds/BUILD/providers/cloud", String::new()),
            ("/nodepool/images/debian/builds/BUILD/providers/cloud/images", String::new()),
            ("/nodepool/images/debian/builds/BUILD/providers/cloud/images/0000000004", ready.to_string()),
        ];
        let lines = lines.map(|(path, data)| {
            format!(
                "{}\n",
                json!({"path": path.replace("BUILD", BUILD), "data": data})
            )
        });
        bed.write(
            "state.jsonl",
            format!("{{\"nodeyard-export\":1}}\n{}", lines.concat()),
        );
        bed.run(["-c", "nodepool.yaml", "store", "import", "state.jsonl"])
            .succeeded();
        Self {
            bed,
            _server: server,
        }
    }

    fn ours(&self, args: &[&str]) -> Ran {
        let mut command = self.bed.called("nodepool");
        Ran::from(
            command
                .args(["-c", "nodepool.yaml"])
                .args(args)
                .output()
                .unwrap(),
        )
    }

    fn python(&self, args: &[&str]) -> Ran {
        let mut command = Command::new(python_environment().join("bin/nodepool"));
        let config = self.bed.path("nodepool.yaml");
        Ran::from(command.arg("-c").arg(config).args(args).output().unwrap())
    }

    fn same(&self, args: &[&str]) {
        assert_eq!(
            comparable(&self.ours(args).succeeded().out),
            comparable(&self.python(args).succeeded().out)
        );
    }
}

fn python_environment() -> PathBuf {
    let script = checkout().join("testbeds/python/install.sh");
    let ran = Ran::from(
        Command::new(script)
            .args(["--find", "nodepool"])
            .output()
            .unwrap(),
    );
    assert_eq!(ran.code, 0, "{}", ran.err);
    PathBuf::from(ran.out.trim())
}

/// The lines in order, since Python's have none, without the ages: they differ by the time it takes to
/// start Python.
fn comparable(text: &str) -> Vec<String> {
    let is_age = |word: &&str| {
        let parts: Vec<&str> = word.split(':').collect();
        parts.len() == 4
            && parts
                .iter()
                .all(|part| part.bytes().all(|b| b.is_ascii_digit()))
    };
    let words = |line: &str| {
        line.split_whitespace()
            .filter(|word| !is_age(word))
            .collect::<Vec<_>>()
            .join(" ")
    };
    let mut lines: Vec<String> = text.lines().map(words).collect();
    lines.sort();
    lines
}

#[test]
fn lists_are_those_of_nodepool() {
    let fleet = Fleet::new();
    for args in [
        &["list"][..],
        &["list", "--detail"],
        &["request-list"],
        &["image-list"],
        &["dib-image-list"],
        &["image-status"],
        &["info", "cloud"],
        &["info", "elsewhere"],
    ] {
        fleet.same(args);
    }
    let shown = fleet.ours(&["--format", "json", "list"]).succeeded();
    assert_eq!(shown.json()[1]["connection_port"], "redacted");
    assert!(!shown.out.contains("hush"));
}

#[test]
fn changes_of_one_program_are_seen_by_the_other() {
    let fleet = Fleet::new();
    assert!(
        fleet
            .ours(&["hold", "0000000000"])
            .succeeded()
            .out
            .contains("| hold ")
    );
    fleet.same(&["list"]);
    fleet.ours(&["image-pause", "debian"]).succeeded();
    fleet.ours(&["image-build", "debian"]).succeeded();
    fleet.same(&["image-status"]);
    fleet.same(&["dib-image-list"]);
    fleet.ours(&["image-unpause", "debian"]).succeeded();
    let upload = [
        "--provider",
        "cloud",
        "--image",
        "debian",
        "--upload-id",
        "0000000004",
        "--build-id",
        BUILD,
    ];
    fleet
        .ours(&[&["image-delete"], &upload[..]].concat())
        .succeeded();
    fleet
        .ours(&["dib-image-delete", &format!("debian-{BUILD}")])
        .succeeded();
    fleet.same(&["image-list"]);
    fleet.same(&["dib-image-list"]);
    fleet.ours(&["delete", "0000000001"]).succeeded();
    fleet.same(&["list"]);
    fleet.ours(&["erase", "--force", "cloud"]).succeeded();
    fleet.same(&["list"]);
    fleet.same(&["image-list"]);
}

#[test]
fn image_data_moves_between_both_programs() {
    let (from, to) = (Fleet::new(), Fleet::new());
    to.ours(&["erase", "--force", "cloud"]).succeeded();
    let (ours, theirs) = (from.bed.path("ours.json"), from.bed.path("theirs.json"));
    from.ours(&["export-image-data", ours.to_str().unwrap()])
        .succeeded();
    from.python(&["export-image-data", theirs.to_str().unwrap()])
        .succeeded();
    let read =
        |path| serde_json::from_slice::<serde_json::Value>(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(read(&ours), read(&theirs));
    to.ours(&["import-image-data", theirs.to_str().unwrap()])
        .succeeded();
    assert_eq!(
        comparable(&to.ours(&["image-list"]).out),
        comparable(&from.ours(&["image-list"]).out)
    );
    to.bed.write("foreign.json", "{\"/etc/passwd\": \"\"}");
    to.ours(&["import-image-data", "foreign.json"])
        .failed("/etc/passwd is not image data");
}

#[test]
fn malformed_ids_are_not_found() {
    let fleet = Fleet::new();
    let upload = |provider: &'static str, upload: &'static str, build: &'static str| {
        let known = ["image-delete", "--image", "debian", "--provider"];
        let ids = [provider, "--upload-id", upload, "--build-id", build];
        [&known[..], &ids].concat()
    };
    for args in [
        vec!["delete", "seven"],
        vec!["hold", "seven"],
        vec!["dib-image-delete", "debian-seven"],
        upload("cloud", "seven", BUILD),
        upload("cloud", "0000000004", "seven"),
        upload("elsewhere", "0000000004", BUILD),
    ] {
        let told = fleet.ours(&args).succeeded();
        assert!(told.out.contains("not found"), "{args:?}: {told:#?}");
        assert_eq!(told.out, fleet.python(&args).succeeded().out, "{args:?}");
    }
    // These make Nodepool fail with a traceback.
    for args in [
        vec!["delete", "--now", "seven"],
        vec!["dib-image-delete", "seven"],
        upload("no/provider", "0000000004", BUILD),
    ] {
        let told = fleet.ours(&args).succeeded();
        assert!(told.out.contains("not found"), "{args:?}: {told:#?}");
    }
    assert!(fleet.ours(&["list"]).out.contains("server-1"));
    fleet.same(&["image-list"]);
}

#[test]
fn impossible_operations_are_refused_with_a_reason() {
    let fleet = Fleet::new();
    // To Nodepool these are remarks and no failures.
    let remarked = fleet.ours(&["delete", "0000000099"]).succeeded();
    assert_eq!(remarked.out, "Node id 0000000099 not found\n");
    fleet
        .ours(&["image-build", "unknown"])
        .failed("no image unknown");
    fleet.ours(&["image-build", "quiet"]).failed("paused");
    fleet.ours(&["image-pause", "unknown"]).failed("unknown");
    let build = format!("debian-{}", "0".repeat(32));
    let remarked = fleet.ours(&["dib-image-delete", &build]).succeeded();
    assert!(remarked.out.contains("not found"), "{remarked:#?}");
    let asked = fleet.ours(&["erase", "cloud"]).succeeded();
    assert!(asked.out.contains("No data erased"), "{}", asked.out);
    assert!(fleet.ours(&["list"]).out.contains("server-1"));
}
