//! Python Nodepool on the same ZooKeeper: its commands read our records, and its builder works beside our steward.

use std::path::{Path, PathBuf};
use std::process::Command;

use nodeyard_model::{BuildState, UploadState};
use nodeyard_testbeds::gearman::Peer;
use nodeyard_testbeds::store::shared_zookeeper;
use nodeyard_testbeds::{checkout, executable};

use crate::steward::fixtures::{
    Records, RunningSteward, Store, TWO_PROVIDERS, TestJobServer, eventually, image, logs,
};
use crate::steward::worker::{ScriptedCloud, ScriptedWorker};

/// Does as much as Nodepool expects of diskimage-builder.
const BUILD: &str = r#"#!/bin/sh
while [ "$1" != -o ]; do shift; done
echo image > "$2.qcow2"
"#;

fn clouds() -> PathBuf {
    checkout().join("testbeds/python/roomy_cloud/clouds.yaml")
}

/// A directory with Python's configuration for a store.
struct Python {
    directory: tempfile::TempDir,
    programs: PathBuf,
}

impl Python {
    fn new(store: &Store) -> Self {
        let Store::ZooKeeper { chroot } = store else {
            panic!("Python knows only ZooKeeper");
        };
        let found = Command::new(checkout().join("testbeds/python/install.sh"))
            .args(["--find", "nodepool"])
            .output()
            .unwrap();
        assert!(found.status.success());
        let found = String::from_utf8(found.stdout).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("build");
        executable(&program, BUILD).unwrap();
        let server = shared_zookeeper();
        let certificates = server.certificates();
        let dir = directory.path().display();
        let images = TWO_PROVIDERS
            .replace(
                "elements: [vm]",
                &format!("elements: [vm], dib-cmd: {dir}/build"),
            )
            .replace("driver: fake", "driver: fake, cloud: fake");
        let text = format!(
            "zookeeper-servers: [{{host: 127.0.0.1, port: {port}, chroot: {chroot}}}]\n\
             zookeeper-tls: {{ca: {ca}, cert: {cert}, key: {key}}}\n\
             images-dir: {dir}/images\nbuild-log-dir: {dir}/logs\nlabels: []\n{images}",
            port = server.tls_port(),
            ca = certificates.ca.display(),
            cert = certificates.client.cert.display(),
            key = certificates.client.key.display(),
        );
        std::fs::create_dir(directory.path().join("images")).unwrap();
        std::fs::write(directory.path().join("nodepool.yaml"), text).unwrap();
        Self {
            directory,
            programs: Path::new(found.trim()).join("bin"),
        }
    }

    fn config(&self) -> String {
        let path = self.directory.path().join("nodepool.yaml");
        path.display().to_string()
    }

    async fn nodepool(&self, command: &str) -> String {
        let mut nodepool = Command::new(self.programs.join("nodepool"));
        nodepool
            .args(["-c", &self.config(), command])
            .env("OS_CLIENT_CONFIG_FILE", clouds());
        let ran = tokio::task::spawn_blocking(move || nodepool.output());
        let ran = ran.await.unwrap().unwrap();
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{errors}");
        String::from_utf8(ran.stdout).unwrap()
    }

    fn builder(&self) -> Peer {
        let clouds = format!("OS_CLIENT_CONFIG_FILE={}", clouds().display());
        let builder = self.programs.join("nodepool-builder").display().to_string();
        Peer::start("env", &[&clouds, &builder, "-f", "-c", &self.config()]).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn its_commands_show_our_builds_and_uploads() {
    logs();
    let store = Store::zookeeper().await;
    let python = Python::new(&store);
    let server = TestJobServer::start().await;
    let cloud = ScriptedCloud::default();
    let worker = ScriptedWorker::start(&server, &cloud, &["ubuntu"]).await;
    let steward = RunningSteward::start(&store, &server, TWO_PROVIDERS).await;
    let records = Records::of(&store).await;
    let [build] = records.settled(1, &cloud).await[..] else {
        panic!("one build");
    };
    let builds = python.nodepool("dib-image-list").await;
    let row = builds
        .lines()
        .find(|line| line.contains(&build.to_string()));
    let row = row.unwrap_or_else(|| panic!("{builds}"));
    for word in ["ubuntu", "worker.example.com", "qcow2", "ready"] {
        assert!(row.contains(word), "{word}: {row}");
    }
    let uploads = python.nodepool("image-list").await;
    for id in cloud.ids() {
        let row = uploads.lines().find(|line| line.contains(&id));
        let row = row.unwrap_or_else(|| panic!("{id}: {uploads}"));
        assert!(row.contains("ubuntu-1") && row.contains("ready"), "{row}");
    }
    steward.stop().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn its_builder_works_beside_our_steward() {
    logs();
    let store = Store::zookeeper().await;
    let python = Python::new(&store);
    let server = TestJobServer::start().await;
    let cloud = ScriptedCloud::default();
    let steward = RunningSteward::start(&store, &server, TWO_PROVIDERS).await;
    let records = Records::of(&store).await;
    let _builder = python.builder();
    eventually(
        "Python builds and uploads without being disturbed",
        || async {
            let builds = records.builds().await;
            let uploads = records.uploads().await;
            let ready = builds.len() == 1
                && builds[0].1.state == BuildState::Ready
                && uploads.len() == 2
                && uploads.iter().all(|(.., u)| u.state == UploadState::Ready);
            ready.then_some(())
        },
    )
    .await;
    // Our builders are faster now, and the builds of Python are deleted when they are old.
    let worker = ScriptedWorker::start(&server, &cloud, &["ubuntu"]).await;
    for count in [1, 2] {
        records.request().await;
        eventually("another build is ours", || async {
            let request = records.0.images().build_request(&image()).await.unwrap();
            (request.is_none() && worker.calls("image-build:") == count).then_some(())
        })
        .await;
    }
    records.settled(2, &cloud).await;
    steward.stop().await;
    worker.stop().await;
}
