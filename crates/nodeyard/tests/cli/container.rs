//! One process, one machine, no cloud: a request is served by a container, and a person logs in to it.

use std::fs;
use std::process::Command;

use nodeyard_testbeds::ContainerRuntime;
use nodeyard_testbeds::containers::Kind;
use serde_json::Value;

use crate::bed::{Bed, wait_until};

const IMAGE: &str = "localhost/base";

fn configuration(podman: &ContainerRuntime, bed: &Bed) -> String {
    let key = fs::read_to_string(bed.path("key.pub")).unwrap();
    let (socket, key) = (podman.socket(), key.trim());
    let socket = socket.display();
    let state = bed.path("state");
    let state = state.display();
    let port = bed.free_port();
    format!(
        "
state-dir: {state}
webapp: {{port: {port}, listen_address: 127.0.0.1}}
labels: [{{name: box}}]
providers:
  - name: here
    driver: container
    socket: {socket}
    pools:
      - name: main
        max-servers: 2
        labels:
          - name: box
            image: {IMAGE}
            memory: 128
            cpus: 0.5
            processes: 200
            authorized-keys: {key}
"
    )
}

fn nodes(bed: &Bed) -> Vec<Value> {
    bed.rows(&["list", "--detail"])
}

#[test]
fn a_request_becomes_a_container_that_is_logged_in_to() {
    let Some(podman) = ContainerRuntime::start_if_possible(Kind::Podman).unwrap() else {
        return;
    };
    podman.import(IMAGE).unwrap();
    let bed = Bed::new();
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "test", "-f"])
        .arg(bed.path("key"))
        .status();
    assert!(made.unwrap().success());
    bed.write("nodepool.yaml", configuration(&podman, &bed));
    let mut daemon = bed.up(&["-c", "nodepool.yaml"]);
    bed.submit(0, "box");
    let ready = || {
        nodes(&bed)
            .into_iter()
            .find(|node| node["state"] == "ready")
    };
    wait_until("a node is ready", || ready().is_some());
    let shown = ready().unwrap();

    // The record has all that a client needs, the host keys included.
    let id = shown["id"].as_str().unwrap();
    let record = bed.store(&["get", &format!("/nodepool/nodes/{id}")]);
    let record = record.succeeded().json();
    let known: String = record["host_keys"]
        .as_array()
        .unwrap()
        .iter()
        .map(|key| {
            format!(
                "[127.0.0.1]:{} {}\n",
                record["connection_port"],
                key.as_str().unwrap()
            )
        })
        .collect();
    bed.write("known_hosts", known);
    let login = |command: &str| {
        let output = Command::new("ssh")
            .args([
                "-F",
                "none",
                "-o",
                "BatchMode=yes",
                "-o",
                "StrictHostKeyChecking=yes",
            ])
            .arg("-o")
            .arg(format!(
                "UserKnownHostsFile={}",
                bed.path("known_hosts").display()
            ))
            .args(["-p", &record["connection_port"].to_string(), "-i"])
            .arg(bed.path("key"))
            .arg(format!(
                "{}@127.0.0.1",
                record["username"].as_str().unwrap()
            ))
            .arg(command)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(login("id -un; hostname"), format!("zuul\nnp{id}"));

    // A killed process is succeeded by one that knows the machine.
    daemon.kill();
    let _successor = bed.up(&["-c", "nodepool.yaml"]);
    assert_eq!(login("hostname"), format!("np{id}"));
    bed.nodepool(&["delete", id]).succeeded();
    wait_until("the container is gone", || {
        podman.run(&["ps", "--all", "--quiet"]).unwrap().is_empty()
    });
    wait_until("its record is gone", || nodes(&bed).is_empty());
}
