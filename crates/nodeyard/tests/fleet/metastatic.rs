//! Slots that Python Nodepool and we give out in turn: each starts on the records that the other has left.

use nodeyard_testbeds::{Launcher, LauncherOptions, ZooKeeperServer, ZuulClient};
use serde_json::Value;

use crate::bed::{LONG_SESSION, client, nodeyard, take, wait_for_idle, wait_until};

const MACHINES: &str = "\
labels: [{name: machine}]
providers:
  - name: ground
    driver: static
    pools:
      - name: main
        node-attributes: {floor: ground}
        nodes:
          - {name: 127.0.0.2, labels: [machine], username: root, host-key-checking: false, host-key: ssh-rsa KEY}
          - {name: 127.0.0.3, labels: [machine], username: root, host-key-checking: false, host-key: ssh-rsa KEY}
";

const SLOTS: &str = "\
labels: [{name: machine}, {name: slot}]
providers:
  - name: meta
    driver: metastatic
    pools:
      - name: main
        node-attributes: {slots: true}
        labels: [{name: slot, backing-label: machine, max-parallel-jobs: 2, grace-time: 1}]
";

/// Where a slot is: its machine, and which part of it.
fn place(node: &Value) -> (String, i64) {
    let data = &node["driver_data"];
    assert_eq!(data["slot"], node["slot"], "{node}");
    assert_eq!(data["node"], node["id"], "{node}");
    let machine = data["backing_node"].as_str().unwrap().to_owned();
    (machine, node["slot"].as_i64().unwrap())
}

struct Job {
    request: String,
    node: Value,
}

impl Job {
    fn start(zuul: &ZuulClient) -> Self {
        let mut request = zuul.submit(&["slot"]).unwrap();
        // As long as nobody offers slots.
        while zuul.wait(&request).unwrap() == "failed" {
            zuul.cancel(&request).unwrap();
            request = zuul.submit(&["slot"]).unwrap();
        }
        let node = take(zuul, &request).remove(0);
        Self { request, node }
    }

    /// Gives its slot back, and sees it go.
    fn end(self, zuul: &ZuulClient) {
        zuul.give_back(&self.request).unwrap();
        wait_until("the slot is gone", || {
            let nodes = zuul.nodes().unwrap();
            nodes.iter().all(|node| node["id"] != self.node["id"])
        });
    }
}

fn python(zookeeper: &ZooKeeperServer) -> Launcher {
    let options = LauncherOptions::python(SLOTS).session(LONG_SESSION);
    Launcher::start(zookeeper, &options).unwrap()
}

#[test]
fn python_and_we_share_out_the_same_machines() {
    let zookeeper = ZooKeeperServer::start().unwrap();
    let _ground = nodeyard(&zookeeper, MACHINES);
    let zuul = client(&zookeeper);
    wait_for_idle(&zuul, 2);

    let theirs = python(&zookeeper);
    let first = Job::start(&zuul);
    let (machine, slot) = place(&first.node);
    assert_eq!(slot, 0);
    theirs.kill();

    // What Python has taken is ours, and its slot stays taken.
    let ours = nodeyard(&zookeeper, SLOTS);
    let second = Job::start(&zuul);
    assert_eq!(place(&second.node), (machine.clone(), 1));
    let third = Job::start(&zuul);
    let (other_machine, slot) = place(&third.node);
    assert_ne!(other_machine, machine);
    assert_eq!(slot, 0);
    // Zuul sees the same of a slot, whoever has made it.
    for key in [
        "interface_ip",
        "username",
        "connection_type",
        "connection_port",
        "host_keys",
        "python_path",
        "shell_type",
        "cloud",
        "region",
        "az",
        "host_id",
        "attributes",
        "resources",
        "node_properties",
        "pool",
        "provider",
        "type",
    ] {
        assert_eq!(first.node[key], second.node[key], "{key}");
    }
    ours.kill();

    // The other way round.
    let theirs = python(&zookeeper);
    first.end(&zuul);
    let fourth = Job::start(&zuul);
    let free = [(machine, 0), (other_machine, 1)];
    assert!(free.contains(&place(&fourth.node)), "{:?}", fourth.node);
    theirs.kill();

    let _ours = nodeyard(&zookeeper, SLOTS);
    for job in [second, third, fourth] {
        job.end(&zuul);
    }
    wait_for_idle(&zuul, 2);
    zuul.close().unwrap();
}
