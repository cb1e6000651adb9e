//! `nodeyard up` with an image, killed wherever it is in building, uploading, booting and retiring.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::bed::{Bed, cloud_call, wait_until};

/// Milliseconds between asking for a build and the end of the process: from before it begins until after its upload.
const LIVES: [u64; 9] = [0, 50, 150, 300, 500, 700, 900, 1200, 1600];

fn text(row: &Value, key: &str) -> String {
    row[key].as_str().unwrap_or_default().to_owned()
}

fn column(rows: &[Value], key: &str) -> BTreeSet<String> {
    rows.iter().map(|row| text(row, key)).collect()
}

#[test]
fn are_whole_and_none_is_left_over() {
    let mut bed = Bed::new();
    bed.set("NODEPOOL_TEST_BUILD_INTERVAL", "0.2");
    bed.set("NODEPOOL_TEST_BUILDER_CLEANUP_INTERVAL", "0.5");
    bed.set("NODEPOOL_TEST_CLEANUP_INTERVAL", "0.5");
    bed.set("PATH", "/usr/bin:/bin");
    let program = bed.write(
        "make-image",
        "#!/bin/sh\necho half > \"$NODEYARD_OUTPUT.qcow2\"\nsleep 0.3\necho whole > \"$NODEYARD_OUTPUT.qcow2\"\n",
    );
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let (_simulation, address) = bed.simulate();
    let config = json!({
        "state-dir": "state", "images-dir": "images", "build-log-dir": "logs",
        "images-dir-reserve": 0, "image-size-estimate": "1M",
        "webapp": {"port": bed.free_port(), "listen_address": "127.0.0.1"},
        "diskimages": [{"name": "tiny", "builder": "command", "command": program, "formats": ["qcow2"]}],
        "labels": [{"name": "small", "min-ready": 1}],
        "providers": [{
            "name": "cloud", "driver": "fake", "simulate": {"boot-time": 0.2, "upload-time": 0.3},
            "diskimages": [{"name": "tiny"}],
            "pools": [{
                "name": "main", "max-servers": 3,
                "labels": [{"name": "small", "diskimage": "tiny", "min-ram": 1}],
            }],
        }],
    });
    bed.write("nodepool.yaml", config.to_string());

    let foreign = column(&images_of(&address), "id");
    for life in LIVES {
        let mut daemon = bed.start("log", ["-c", "nodepool.yaml", "up"]);
        daemon.wait_for_log("store ready");
        wait_until("a build is asked for", || {
            bed.nodepool(&["image-build", "tiny"]).code == 0
        });
        thread::sleep(Duration::from_millis(life));
        daemon.kill();
    }
    let daemon = bed.start("log", ["-c", "nodepool.yaml", "up"]);
    daemon.wait_for_log("store ready");
    // However many were made before: two are kept of every image.
    for _ in 0..2 {
        bed.nodepool(&["image-build", "tiny", "--wait"]).succeeded();
    }
    wait_until("two builds are kept", || {
        let builds = bed.rows(&["dib-image-list"]);
        builds.len() == 2 && builds.iter().all(|build| build["state"] == "ready")
    });
    let builds = bed.rows(&["dib-image-list"]);
    let kept: BTreeSet<String> = builds.iter().map(|build| text(build, "id")).collect();
    wait_until(
        "each is in the cloud once, and nothing else of ours",
        || {
            let uploads = bed.rows(&["image-list"]);
            let ready = uploads.iter().all(|upload| upload["state"] == "ready");
            let recorded = column(&uploads, "external_id");
            let there: BTreeSet<String> = &column(&images_of(&address), "id") - &foreign;
            ready && uploads.len() == 2 && recorded == there
        },
    );
    wait_until("their files are on the disk, and no other", || {
        let files = fs::read_dir(bed.path("images")).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let images: BTreeSet<String> = names
            .filter_map(|name| Some(name.strip_suffix(".qcow2")?.to_owned()))
            .collect();
        images == kept
    });
    for name in &kept {
        let file = bed.path(&format!("images/{name}.qcow2"));
        assert_eq!(fs::read_to_string(file).unwrap(), "whole\n");
    }
    wait_until("one machine is ready, and there is no other", || {
        let nodes = bed.rows(&["list"]);
        let servers = cloud_call(&address, "list_servers", &json!({}));
        let servers = column(servers.as_array().unwrap(), "id");
        let ready = nodes.iter().all(|node| node["state"] == "ready");
        ready && nodes.len() == 1 && column(&nodes, "server_id") == servers
    });
}

fn images_of(address: &str) -> Vec<Value> {
    let images = cloud_call(address, "list_images", &json!({}));
    images.as_array().unwrap().clone()
}
