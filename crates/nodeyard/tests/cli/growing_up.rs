//! From one machine with nothing else to ZooKeeper and gearmand, as docs/growing-up.md says: the same file with three
//! more keys, and everything that was there is there.

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;

use nodeyard_testbeds::gearman::{ExternalJobServer, Kind, tool};
use nodeyard_testbeds::{ZooKeeperServer, executable};
use serde_json::{Value, json};

use crate::bed::{Bed, Daemon, Ran, wait_until};

const CONFIGURATION: &str = "
state-dir: state
images-dir: images
build-log-dir: logs
images-dir-reserve: 0
image-size-estimate: 1M
webapp: {port: PORT, listen_address: 127.0.0.1}
labels: [{name: box}]
diskimages: [{name: tiny, builder: command, command: PROGRAM, formats: [qcow2]}]
providers:
  - name: somewhere
    driver: fake
    diskimages: [{name: tiny}]
    pools: [{name: main, max-servers: 5, labels: [{name: box, diskimage: tiny, min-ram: 1}]}]
";

/// Counts how often it is run.
const PROGRAM: &str = "#!/bin/sh
echo run >> \"$HOME/builds\"
for format in $(echo \"$NODEYARD_FORMATS\" | tr , ' '); do echo x > \"$NODEYARD_OUTPUT.$format\"; done
";

/// All of this state, in no order.
fn nodes(bed: &Bed, state: &str) -> Vec<Value> {
    let mut all = bed.rows(&["list", "--detail"]);
    all.retain(|node| node["state"] == state);
    all
}

fn ids(list: &Value, key: &str) -> BTreeSet<String> {
    let id = |item: &Value| item[key].as_str().unwrap().to_owned();
    list.as_array().unwrap().iter().map(id).collect()
}

fn images(bed: &Bed, args: &[&str]) -> Ran {
    let start = ["-c", "nodepool.yaml", "-v", "image"];
    bed.run(start.iter().chain(args)).succeeded()
}

fn list(bed: &Bed, kind: &str) -> Value {
    let list = ["-c", "nodepool.yaml", "--format=json", kind, "ls"];
    bed.run(list).succeeded().json()
}

fn daemon(bed: &Bed, name: &str) -> Daemon {
    let mut command = bed.called(name);
    command
        .args(["-c", "nodepool.yaml", "-f"])
        .stdout(Stdio::null());
    bed.spawn(name.strip_prefix("nodepool-").unwrap(), command)
}

#[test]
fn images_and_held_nodes_move_along() {
    let mut bed = Bed::new();
    bed.set("PATH", "/usr/bin:/bin");
    let program = bed.path("make-image");
    executable(&program, PROGRAM).unwrap();
    let text = CONFIGURATION
        .replace("PORT", &bed.free_port().to_string())
        .replace("PROGRAM", &program.display().to_string());
    bed.write("nodepool.yaml", &text);
    let (_simulation, _) = bed.simulate();

    // One machine: an image, a node that somebody keeps, another that nobody has taken yet.
    let mut everything = bed.start("log", ["-c", "nodepool.yaml", "up"]);
    everything.wait_for_log("store ready");
    images(&bed, &["wait", "tiny"]);
    let store = ["-c", "nodepool.yaml", "store"];
    bed.submit_to(&store, 0, "box");
    wait_until("a node is ready", || nodes(&bed, "ready").len() == 1);
    let held = nodes(&bed, "ready")[0].clone();
    bed.nodepool(&["hold", held["id"].as_str().unwrap()])
        .succeeded();
    let builds = list(&bed, "build");
    let uploads = list(&bed, "upload");
    assert_eq!(everything.terminate(), 0);
    bed.run([&store[..], &["export", "state.jsonl"]].concat())
        .succeeded();

    // Many: the same file, and three keys more.
    let zookeeper = ZooKeeperServer::start().unwrap();
    let certificates = zookeeper.certificates();
    let gearmand = ExternalJobServer::start(Kind::Gearmand, None).unwrap();
    let keys = json!({
        "zookeeper-servers": [{"host": "127.0.0.1", "port": zookeeper.tls_port()}],
        "zookeeper-tls": {
            "ca": certificates.ca, "cert": certificates.client.cert, "key": certificates.client.key,
        },
        "gearman-servers": [{"host": "127.0.0.1", "port": gearmand.port()}],
    });
    let keys = keys.as_object().unwrap();
    let keys: String = keys
        .iter()
        .map(|(key, value)| format!("{key}: {value}\n"))
        .collect();
    bed.write("nodepool.yaml", format!("{text}{keys}"));
    bed.run([&store[..], &["import", "state.jsonl"]].concat())
        .succeeded();
    let _launcher = daemon(&bed, "nodepool-launcher");
    let _builder = daemon(&bed, "nodepool-builder");

    // What was there is there.
    let still = nodes(&bed, "hold");
    assert_eq!(still.len(), 1, "{still:?}");
    for key in [
        "id",
        "server_id",
        "external_id",
        "public_ipv4",
        "comment",
        "hold_job",
    ] {
        assert_eq!(still[0].get(key), held.get(key), "{key}");
    }
    let functions = || {
        let port = gearmand.port().to_string();
        let shown = tool("gearadmin", &["--port", &port, "--status"]).unwrap();
        assert!(shown.status.success(), "{shown:?}");
        String::from_utf8(shown.stdout).unwrap()
    };
    let build = ids(&builds, "id");
    assert_eq!(build.len(), 1, "{builds}");
    let build = build.first().unwrap().strip_prefix("tiny-").unwrap();
    for function in [
        "image-build:tiny",
        &format!("image-upload:{build}"),
        &format!("image-delete:{build}"),
    ] {
        wait_until(&format!("the builder answers {function}"), || {
            functions().lines().any(|line| {
                let fields: Vec<&str> = line.split('\t').collect();
                fields.first() == Some(&function) && fields.last() != Some(&"0")
            })
        });
    }

    // And it goes on: a request is served from the image that was brought along.
    bed.submit_to(&store, 1, "box");
    wait_until("a node is ready", || nodes(&bed, "ready").len() == 1);
    let next = &nodes(&bed, "ready")[0];
    assert_ne!(next["id"], held["id"]);
    assert_eq!(ids(&list(&bed, "build"), "id"), ids(&builds, "id"));
    assert_eq!(
        ids(&list(&bed, "upload"), "external_id"),
        ids(&uploads, "external_id")
    );
    assert_eq!(fs::read_to_string(bed.path("builds")).unwrap(), "run\n");

    // The next one is made and uploaded through gearmand.
    images(&bed, &["build", "tiny", "--wait"]);
    assert_eq!(
        fs::read_to_string(bed.path("builds")).unwrap(),
        "run\nrun\n"
    );
    assert_eq!(ids(&list(&bed, "build"), "id").len(), 2);
    assert_eq!(nodes(&bed, "hold").len(), 1);
}
