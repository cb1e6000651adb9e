//! Finding the configuration, and looking at what there is: `status`, `ls`, `show`, `explain`.

use std::process::Stdio;

use crate::bed::{Bed, QUICK_CLOUD, read_until, wait_until};

#[test]
fn the_configuration_is_searched_and_named() {
    let mut bed = Bed::new();
    let ran = bed.run(["image", "why"]);
    let ran = ran.failed("");
    let missing = bed.run(["config", "check"]).failed("./nodepool.yaml");
    assert!(missing.err.contains("$NODEYARD_CONFIG"), "{missing:?}");
    assert!(ran.err.contains("/etc/nodepool/nodepool.yaml"), "{ran:?}");

    bed.write("nodepool.yaml", "labels: []\n");
    let found = bed.run(["-v", "config", "check"]).succeeded();
    assert!(
        found.out.contains("./nodepool.yaml: no errors"),
        "{found:?}"
    );
    assert!(found.err.contains("the working directory"), "{found:?}");

    bed.write("other.yaml", "labels: 3\n");
    bed.set("NODEYARD_CONFIG", "other.yaml");
    bed.run(["config", "check"]).failed("other.yaml:1:9");
    bed.run(["-c", "nodepool.yaml", "config", "check"])
        .succeeded();
}

#[test]
fn existing_objects_are_listed_shown_and_explained() {
    let bed = Bed::new();
    let config = QUICK_CLOUD.replace("PORT", &bed.free_port().to_string());
    let api = bed.free_port();
    bed.write("nodepool.yaml", format!("{config}\napi: {{port: {api}}}\n"));
    let daemon = bed.up(&[]);
    daemon.wait_for_log("started provider");
    bed.submit(0, "small");
    wait_until("the request has its node", || {
        bed.run(["request", "ls"]).out.contains("fulfilled")
    });

    let table = bed.run(["status"]).succeeded().out;
    assert!(table.starts_with("LABEL  READY  BUILDING"), "{table}");
    assert!(table.contains("\nPROVIDER  DRIVER  QUOTA"), "{table}");
    assert!(table.contains("\ncloud     fake    1 server "), "{table}");
    assert!(table.ends_with("\nno images\n"), "{table}");
    let status = bed.run(["status", "--format", "json"]).succeeded().json();
    assert_eq!(status["labels"][0]["name"], "small", "{status}");
    assert_eq!(status["labels"][0]["in_use"], 1, "{status}");
    assert_eq!(status["providers"][0]["driver"], "fake", "{status}");
    assert_eq!(status["providers"][0]["trouble"], serde_json::json!([]));

    for kind in ["node", "request", "label", "pool", "provider", "worker"] {
        let rows = bed.run([kind, "ls", "--format", "json"]).succeeded().json();
        let row = &rows[0];
        let id = row["id"].as_str().or(row["name"].as_str()).unwrap();
        let shown = bed.run([kind, "show", id, "--format", "json"]);
        assert_eq!(shown.succeeded().json()["state"], row["state"]);
        let yaml = bed.run([kind, "show", id, "--format", "yaml"]).succeeded();
        assert!(yaml.out.contains(": "), "{yaml:?}");
    }
    for kind in ["build", "upload", "image"] {
        let none = bed.run([kind, "ls", "--format", "json"]).succeeded();
        assert_eq!(none.json(), serde_json::json!([]));
        bed.run([kind, "show", "nothing"])
            .failed(&format!("no {kind} nothing"));
    }

    let node = bed.run(["node", "ls", "--format", "json"]).json()[0]["id"].clone();
    let explained = bed.run(["explain", node.as_str().unwrap()]).succeeded();
    assert!(
        explained.out.contains("fulfilled by cloud/main"),
        "{explained:?}"
    );
    bed.run(["explain", "nothing"])
        .failed("no request, lease, node or image nothing");

    let lease = bed.run(["request", "small", "--no-wait"]).succeeded().out;
    let lease = lease.trim();
    let explained = bed.run(["explain", lease, "--format", "json"]).succeeded();
    assert_eq!(explained.json()["lease"], lease);
    let short = bed.run(["explain", &lease[..8]]).succeeded();
    assert!(short.out.contains(lease), "{short:?}");
    let waited = bed.run(["lease", "wait", &lease[..8]]).succeeded();
    assert!(waited.out.contains("active"), "{waited:?}");
    bed.run(["lease", "rm", lease]).succeeded();

    let node = node.as_str().unwrap();
    let waited = bed.run(["node", "wait", node]).succeeded();
    assert_eq!(waited.err, format!("node {node} is ready\n"));
    bed.run(["request", "rm", "200-0000000000"]).succeeded();
    bed.run(["request", "rm", "200-0000000000"])
        .failed("no request");
    bed.run(["node", "rm", node]).succeeded();
    wait_until("the node is gone", || {
        bed.run(["node", "show", node]).err.contains("no node")
    });
    bed.run(["node", "rm", node]).failed("no node");
    bed.run(["node", "wait", node]).failed("no node");
}

#[test]
fn an_empty_store_has_a_status() {
    let bed = Bed::new();
    let _daemon = bed.up(&[]);
    let target = ["--state-dir", "state"];
    let status = bed.run(["status"].iter().chain(&target)).succeeded();
    assert_eq!(status.out, "no labels\n\nno providers\n\nno images\n");
    let status = ["status", "--format", "json"];
    let status = bed.run(status.iter().chain(&target)).succeeded().json();
    assert_eq!(status["images"], serde_json::json!([]), "{status}");
    let list = bed.run(["node", "ls"].iter().chain(&target)).succeeded();
    assert_eq!(list.out, "no nodes\n");
}

#[test]
fn a_list_is_watched_until_the_reader_closes_it() {
    let bed = Bed::new();
    let _daemon = bed.up(&[]);
    let mut command = bed.command();
    command.args(["node", "ls", "--watch", "--format", "json"]);
    let command = command.args(["--state-dir", "state"]);
    let mut watching = command.stdout(Stdio::piped()).spawn().unwrap();
    for _ in 0..2 {
        assert_eq!(read_until(&mut watching, "]"), "[]\n");
    }
    watching.kill().unwrap();
    watching.wait().unwrap();
}

#[test]
fn options_without_effect_are_refused() {
    let bed = Bed::new();
    let ran = bed.run(["init", "yard", "--format", "json"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.err.contains("--format"), "{ran:?}");
    assert!(!bed.path("yard").exists());
    let ran = bed.run(["-c", "nodepool.yaml", "completions", "bash"]);
    assert_eq!(ran.code, 2, "{ran:?}");
}
