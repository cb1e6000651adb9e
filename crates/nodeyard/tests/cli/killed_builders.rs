//! A builder that is killed in the middle of a build and in the middle of an upload, with ZooKeeper behind it and a job
//! server of somebody else between it and whoever looks after the images.

use std::collections::BTreeSet;
use std::fs;

use nodeyard_testbeds::gearman::{ExternalJobServer, Kind};
use nodeyard_testbeds::{ZooKeeperServer, executable};
use serde_json::{Value, json};

use crate::bed::{Bed, Daemon, Ran, cloud_call, wait_until};

const IMAGE: &str = "apple";

/// Notes which image it makes, and goes no further than half of it while there is a file `hold-build`.
const PROGRAM: &str = r#"#!/bin/sh
echo half > "$NODEYARD_OUTPUT.qcow2"
echo "$NODEYARD_IMAGE_ID" >> "$HOME/begun"
while [ -e "$HOME/hold-build" ]; do sleep 0.05; done
echo whole > "$NODEYARD_OUTPUT.qcow2"
"#;

/// Notes which image in the cloud it is asked about, and does not answer while there is a file `hold-upload`.
const HOOK: &str = r#"#!/bin/sh
echo "$2" >> "$HOME/asked"
while [ -e "$HOME/hold-upload" ]; do sleep 0.05; done
"#;

struct Yard {
    bed: Bed,
    cloud: String,
    /// Where records can be asked for.
    steward: &'static str,
    /// Images that were in the cloud before.
    foreign: BTreeSet<String>,
    _jobs: ExternalJobServer,
    _cloud: Daemon,
    _zookeeper: ZooKeeperServer,
}

impl Yard {
    /// Of the hosts `keeper` and `worker` only the second makes images, and only `steward` knows of ZooKeeper.
    fn new(kind: Kind, steward: &'static str) -> Self {
        let mut bed = Bed::new();
        bed.set("PATH", "/usr/bin:/bin");
        // Shortens what is only waited for when something went wrong.
        bed.set("NODEPOOL_TEST_BUILD_INTERVAL", "0.2");
        bed.set("NODEPOOL_TEST_BUILDER_CLEANUP_INTERVAL", "0.2");
        let (program, hook) = (bed.path("make-image"), bed.path("hook"));
        executable(&program, PROGRAM).unwrap();
        executable(&hook, HOOK).unwrap();
        for hold in ["hold-build", "hold-upload"] {
            bed.write(hold, "");
        }
        let (cloud, address) = bed.simulate();
        let zookeeper = ZooKeeperServer::start().unwrap();
        let jobs = ExternalJobServer::start(kind, None).unwrap();
        let certificates = zookeeper.certificates();
        for host in ["keeper", "worker"] {
            let mut config = json!({
                "gearman-servers": [{"host": "127.0.0.1", "port": jobs.port()}],
                "builder-images": if host == "worker" { IMAGE } else { "nothing" },
                "builder-webapp": {"port": bed.free_port()},
                "images-dir": format!("{host}-images"), "build-log-dir": format!("{host}-logs"),
                "images-dir-reserve": 0, "image-size-estimate": "1M",
                "diskimages": [{"name": IMAGE, "builder": "command", "command": program}],
                "providers": [{
                    "name": "cloud", "driver": "fake", "post-upload-hook": hook,
                    "diskimages": [{"name": IMAGE}], "pools": [],
                }],
            });
            if host == steward {
                config["zookeeper-servers"] =
                    json!([{"host": "127.0.0.1", "port": zookeeper.tls_port()}]);
                config["zookeeper-timeout"] = json!(10);
                config["zookeeper-tls"] = json!({
                    "ca": certificates.ca, "cert": certificates.client.cert, "key": certificates.client.key,
                });
            }
            bed.write(host, config.to_string());
        }
        let foreign = images_of(&address);
        Self {
            bed,
            cloud: address,
            steward,
            foreign,
            _jobs: jobs,
            _cloud: cloud,
            _zookeeper: zookeeper,
        }
    }

    /// The lines that a program has noted.
    fn noted(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.bed.path(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Kills the worker when a program has begun, and lets go of what it waits for when it has begun again.
    fn kill_during(&self, worker: &mut Daemon, noted: &str, hold: &str) {
        wait_until("it has begun", || self.noted(noted).len() == 1);
        worker.kill();
        *worker = self.bed.builder("worker");
        wait_until("it has begun again", || self.noted(noted).len() == 2);
        fs::remove_file(self.bed.path(hold)).unwrap();
    }

    fn list(&self, list: &str) -> Vec<Value> {
        let mut command = self.bed.called("nodepool");
        command.args(["-c", self.steward, "--format", "json", list]);
        let ran = Ran::from(command.output().unwrap()).succeeded();
        serde_json::from_str(&ran.out).unwrap()
    }

    /// What is in the cloud by now.
    fn uploaded(&self) -> BTreeSet<String> {
        &images_of(&self.cloud) - &self.foreign
    }
}

fn images_of(cloud: &str) -> BTreeSet<String> {
    let images = cloud_call(cloud, "list_images", &json!({}));
    let images = images.as_array().unwrap().iter();
    images
        .map(|image| image["id"].as_str().unwrap().to_owned())
        .collect()
}

fn one_image_and_one_upload(kind: Kind, steward: &'static str) {
    let is_requeueing = kind == Kind::RequeueingGearmand;
    let yard = Yard::new(kind, steward);
    let _keeper = (steward == "keeper").then(|| yard.bed.builder("keeper"));
    let mut worker = yard.bed.builder("worker");
    yard.kill_during(&mut worker, "begun", "hold-build");
    yard.kill_during(&mut worker, "asked", "hold-upload");
    wait_until("there is one build, and one upload of it", || {
        let rows = ["dib-image-list", "image-list"].map(|list| yard.list(list));
        rows.iter()
            .all(|rows| rows.len() == 1 && rows[0]["state"] == "ready")
    });
    let upload = yard.list("image-list").remove(0);
    let recorded = upload["external_id"].as_str().unwrap().to_owned();
    wait_until("nothing else is in the cloud", || {
        yard.uploaded() == BTreeSet::from([recorded.clone()])
    });

    let (begun, asked) = (yard.noted("begun"), yard.noted("asked"));
    assert_eq!((begun.len(), asked.len()), (2, 2));
    assert_eq!(upload["id"], begun[1]);
    assert_eq!(recorded, asked[1]);
    // Handed out again, it is the same work; otherwise it begins anew.
    assert_eq!(begun[0] == begun[1], is_requeueing);
    assert_eq!(asked[0] == asked[1], is_requeueing);

    let name = |id: &str| format!("{IMAGE}-{id}.qcow2");
    let kept = yard.bed.path("worker-images").join(name(&begun[1]));
    assert_eq!(fs::read_to_string(kept).unwrap(), "whole\n");
    wait_until("no other file is on the disk", || {
        let files = fs::read_dir(yard.bed.path("worker-images")).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let images: Vec<String> = names.filter(|name| name.ends_with(".qcow2")).collect();
        images == [name(&begun[1])]
    });
}

#[test]
fn with_gearmand_that_forgets_its_jobs() {
    one_image_and_one_upload(Kind::Gearmand, "keeper");
}

#[test]
fn with_gearmand_that_hands_its_jobs_out_again() {
    one_image_and_one_upload(Kind::RequeueingGearmand, "keeper");
}

#[test]
fn with_geard_and_the_steward_in_the_same_process() {
    one_image_and_one_upload(Kind::Geard, "worker");
}
