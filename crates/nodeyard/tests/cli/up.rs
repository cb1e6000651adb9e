//! The process that runs everything.

use std::fs;

use crate::bed::{Bed, wait_until};

#[test]
fn it_shuts_down_and_restarts() {
    let bed = Bed::new();
    let mut daemon = bed.up(&[]);
    assert_eq!(daemon.terminate(), 0);
    assert!(!bed.path("state/store.sock").exists());
    assert!(daemon.log().contains("stopped"));
    bed.up(&[]);
}

#[test]
fn a_second_owner_is_refused() {
    let bed = Bed::new();
    let daemon = bed.up(&[]);
    let refused = bed.run(["up", "--state-dir", "state"]);
    let owner = format!("process {} (", daemon.id());
    let refused = refused.failed(&owner).failed("up --state-dir state)");
    assert!(refused.err.contains("stop it first"), "{}", refused.err);
}

#[test]
fn a_store_that_commands_could_not_reach_is_refused_at_once() {
    let bed = Bed::new();
    fs::create_dir(bed.path("state")).unwrap();
    bed.write("state/store.sock", "not a socket");
    let refused = bed.run(["up", "--state-dir", "state"]);
    let refused = refused.failed("a file that is not a socket has this name");
    assert!(!refused.err.contains("store ready"), "{}", refused.err);
    // A socket's path may have 107 bytes, and the draft of this one has more.
    let long = "x".repeat(100);
    let refused = bed.run(["up", "--state-dir", &long]);
    refused.failed("choose a directory with a shorter path");
}

#[test]
fn acknowledged_writes_survive_a_kill() {
    let bed = Bed::new();
    let lines = (0..200).map(|n| format!("{{\"path\":\"/r{n}\",\"data\":\"{n}\"}}\n"));
    bed.write(
        "in.jsonl",
        format!("{{\"nodeyard-export\":1}}\n{}", lines.collect::<String>()),
    );
    let mut daemon = bed.up(&[]);
    bed.store(&["import", "in.jsonl"]).succeeded();
    let before = bed.store(&["ls"]).succeeded().out;
    daemon.kill();
    let _daemon = bed.up(&[]);
    assert_eq!(before, bed.store(&["ls"]).succeeded().out);
    assert_eq!(before.lines().count(), 201);
}

#[test]
fn a_changed_configuration_is_loaded_and_an_invalid_one_is_not() {
    let bed = Bed::new();
    let file = bed.write("nodepool.yaml", "labels: [{name: a}]\n");
    let daemon = bed.up(&["-c", "nodepool.yaml"]);
    fs::write(&file, "labels: [{name: [}]\n").unwrap();
    daemon.wait_for_log("configuration rejected");
    // As editors do it: a new file takes the name of the old one.
    bed.write("next", "labels: [{name: a}, {name: b}]\n");
    fs::rename(bed.path("next"), &file).unwrap();
    daemon.wait_for_log("configuration reloaded");
}

#[test]
fn an_invalid_configuration_is_refused_at_startup() {
    let bed = Bed::new();
    bed.write("nodepool.yaml", "labels: 3\n");
    let ran = bed.run(["-c", "nodepool.yaml", "up", "--state-dir", "state"]);
    ran.failed("nodepool.yaml:1:9");
    assert!(!bed.path("state").exists());
}

#[test]
fn a_request_that_waits_is_explained() {
    let bed = Bed::new();
    let port = bed.free_port();
    bed.write(
        "nodepool.yaml",
        format!(
            "
webapp: {{port: {port}, listen_address: 127.0.0.1}}
labels: [{{name: small}}]
providers:
  - name: cloud
    driver: fake
    cloud: fake
    cloud-images: [{{name: image, image-name: Fake Precise}}]
    pools:
      - name: main
        max-servers: 0
        labels: [{{name: small, cloud-image: image, min-ram: 1}}]
  - name: slow
    driver: fake
    cloud: fake
    simulate: {{boot-time: 3600}}
    cloud-images: [{{name: image, image-name: Fake Precise}}]
    pools:
      - name: main
        labels: [{{name: small, cloud-image: image, min-ram: 1}}]
"
        ),
    );
    let daemon = bed.up(&["-c", "nodepool.yaml"]);
    daemon.wait_for_log("web pages");
    bed.submit(0, "small");
    wait_until("the request is launched", || {
        bed.run(["-c", "nodepool.yaml", "explain", "200-0000000000"])
            .out
            .contains("slow")
    });
    let json = bed.run([
        "-c",
        "nodepool.yaml",
        "--format",
        "json",
        "explain",
        "200-0000000000",
    ]);
    assert_eq!(json.succeeded().json()["request"], "200-0000000000");
    bed.run(["-c", "nodepool.yaml", "explain", "200-0000000001"])
        .failed("no outcome of it");
}
