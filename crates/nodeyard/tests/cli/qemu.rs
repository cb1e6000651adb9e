//! One process, one machine, no cloud: a request is served by a virtual machine, and a person logs in to it.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use nodeyard_testbeds::qemu_guest;
use serde_json::Value;

use crate::bed::Bed;

/// A guest whose processor is emulated takes its time.
const PATIENCE: Duration = Duration::from_secs(300);

fn configuration(bed: &Bed) -> String {
    let key = fs::read_to_string(bed.path("key.pub")).unwrap();
    let guest = qemu_guest().unwrap();
    let port = bed.free_port();
    format!(
        "
state-dir: {state}
webapp: {{port: {port}, listen_address: 127.0.0.1}}
labels: [{{name: vm, min-ready: 1}}]
providers:
  - name: here
    driver: qemu
    cloud-images: [{{name: tiny, path: {guest}/root.ext4, username: root}}]
    pools:
      - name: main
        max-servers: 1
        labels:
          - name: vm
            cloud-image: tiny
            memory: 256
            kernel: {guest}/vmlinuz
            initrd: {guest}/initrd
            kernel-args: console=ttyS0 quiet
            authorized-keys: {key}
",
        state = bed.path("state").display(),
        guest = guest.display(),
        key = key.trim(),
    )
}

/// The first node of which this is true, as soon as there is one.
fn wait_for_node(bed: &Bed, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
    let started = Instant::now();
    loop {
        let listed = bed.rows(&["list", "--detail"]);
        if let Some(node) = listed.iter().find(|node| condition(node)) {
            return node.clone();
        }
        assert!(started.elapsed() < PATIENCE, "no node {what}: {listed:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Machines outlive everybody; those of a test that has failed must not.
struct EndMachines<'a>(&'a Bed);

impl Drop for EndMachines<'_> {
    fn drop(&mut self) {
        let Ok(machines) = fs::read_dir(self.0.path("state/qemu/here/machines")) else {
            return;
        };
        for path in machines.flatten().map(|entry| entry.path()) {
            let description = fs::read(path).unwrap_or_default();
            let description: Value = serde_json::from_slice(&description).unwrap_or_default();
            if let Some(pid) = description["process"]["pid"].as_i64() {
                let _ended = Command::new("kill")
                    .args(["-KILL", &pid.to_string()])
                    .status();
            }
        }
    }
}

#[test]
fn a_machine_is_booted_logged_in_to_kept_over_a_kill_and_replaced() {
    let bed = Bed::new();
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "test", "-f"])
        .arg(bed.path("key"))
        .status();
    assert!(made.unwrap().success());
    bed.write("nodepool.yaml", configuration(&bed));
    let _end_machines = EndMachines(&bed);
    let mut daemon = bed.up(&["-c", "nodepool.yaml"]);
    let node = wait_for_node(&bed, "is ready", |node| node["state"] == "ready");
    let id = node["id"].as_str().unwrap();
    let login = || {
        let output = Command::new("ssh")
            .args([
                "-F",
                "none",
                "-o",
                "BatchMode=yes",
                "-o",
                "StrictHostKeyChecking=no",
            ])
            .args(["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"])
            .args(["-p", &node["connection_port"].to_string(), "-i"])
            .arg(bed.path("key"))
            .args(["root@127.0.0.1", "hostname"])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(login(), format!("np{id}"));
    let record = bed.store(&["get", &format!("/nodepool/nodes/{id}")]);
    let record = record.succeeded().json();
    assert!(
        !record["host_keys"].as_array().unwrap().is_empty(),
        "{record}"
    );

    // The machine does not mind, and a successor knows it.
    daemon.kill();
    let mut successor = bed.up(&["-c", "nodepool.yaml"]);
    assert_eq!(login(), format!("np{id}"));
    bed.nodepool(&["delete", id]).succeeded();
    let next = wait_for_node(&bed, "takes its place", |node| {
        node["id"] != id && node["state"] == "ready"
    });
    let machines = fs::read_dir(bed.path("state/qemu/here/machines")).unwrap();
    let count = machines.count();
    assert_eq!(count, 3, "description, lock and directory of one machine");

    // Nothing is to outlive the test.
    let text = fs::read_to_string(bed.path("nodepool.yaml")).unwrap();
    bed.write(
        "nodepool.yaml",
        text.replace("min-ready: 1", "min-ready: 0"),
    );
    successor.wait_for_log("configuration reloaded");
    bed.nodepool(&["delete", next["id"].as_str().unwrap()])
        .succeeded();
    let machines = bed.path("state/qemu/here/machines");
    let gone = || fs::read_dir(&machines).unwrap().next().is_none();
    let started = Instant::now();
    while !gone() {
        assert!(started.elapsed() < PATIENCE, "the machine stays");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(successor.terminate(), 0);
}
