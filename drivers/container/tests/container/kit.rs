//! The kit, with every call going to a real Podman.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_driver::kit::{Bed, Faults, Injected, Setup, Suite, explore};
use nodeyard_driver::{BootImage, Driver, ErrorClass, ImageSource};
use nodeyard_driver_container::{Answer, Call, CallError, Reach, Socket, Transport};
use nodeyard_model::{ImageName, Resources, Timestamp};
use nodeyard_testbeds::Podman;

use crate::common::{IMAGE, driver_through, now, options, owner, start};

const SYSTEM: &str = "ours";

/// One Podman for all runs of a suite.
struct PodmanBed {
    podman: Arc<Podman>,
    /// What is uploaded: a small thing, for it is uploaded often.
    archive: std::path::PathBuf,
}

#[async_trait]
impl Bed for PodmanBed {
    async fn driver(&self, faults: &Faults) -> Box<dyn Driver> {
        let options = options(SYSTEM, |label| {
            label.reach = Reach::Exec;
            label.cpus = Some(0.25);
            label.memory = Some(32);
        });
        let transport = FaultyTransport {
            socket: Socket::new(self.podman.socket()),
            faults: faults.clone(),
        };
        Box::new(driver_through(options, Arc::new(transport)))
    }

    fn setup(&self) -> Setup {
        Setup {
            owner: owner(SYSTEM),
            pool: "main".into(),
            label: "small".into(),
            image: BootImage::Cloud,
            upload: Some((
                ImageName::new("tiny").unwrap(),
                ImageSource::File(self.archive.clone()),
                "tar".into(),
            )),
        }
    }

    async fn exists(&self) -> BTreeSet<String> {
        let lines = |arguments: &[&str]| -> Vec<String> {
            let text = self.podman.run(arguments).unwrap();
            text.lines().map(ToOwned::to_owned).collect()
        };
        let mut all = lines(&["ps", "--all", "--format", "container {{.ID}}"]);
        all.extend(lines(&[
            "images",
            "--all",
            "--format",
            "image {{.ID}} {{.Repository}}",
        ]));
        all.extend(lines(&["volume", "ls", "--format", "volume {{.Name}}"]));
        all.into_iter().collect()
    }

    /// Podman does not keep sums.
    async fn used(&self) -> Resources {
        Resources::default()
    }

    fn now(&self) -> Timestamp {
        now()
    }

    async fn wait(&self, time: Duration) {
        // Nothing here takes as long as a caller waits after an error.
        tokio::time::sleep(time.min(Duration::from_millis(50))).await;
    }
}

/// Lets the kit strike at each call.
#[derive(Debug)]
struct FaultyTransport {
    socket: Socket,
    faults: Faults,
}

#[async_trait]
impl Transport for FaultyTransport {
    async fn call(&self, call: Call) -> Result<Answer, CallError> {
        let name = call.name;
        match self.faults.call(name, self.socket.call(call)).await {
            Ok(answer) => answer,
            Err(Injected::Lost) => Err(CallError::NoAnswer(None)),
            Err(Injected::Refused(class)) => Ok(refusal(class)),
        }
    }
}

/// How runtimes tell an error of a class.
fn refusal(class: ErrorClass) -> Answer {
    let (status, message) = match class {
        ErrorClass::Retry => (500, "database is locked"),
        ErrorClass::Quota => (
            500,
            "no available IPv4 addresses on this network's address pools",
        ),
        ErrorClass::Capacity => (500, "write /var/tmp/x: no space left on device"),
        ErrorClass::Permanent => (400, "invalid parameter"),
        ErrorClass::Credentials => (403, "not allowed by policy"),
    };
    Answer {
        status,
        body: format!(r#"{{"message": "{message}"}}"#).into(),
    }
}

async fn run(name: &str, suite: Suite) -> Option<usize> {
    let podman = Arc::new(start()?);
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("tiny.tar");
    let mut builder = tar::Builder::new(std::fs::File::create(&archive).unwrap());
    builder.append_dir("empty", directory.path()).unwrap();
    builder.finish().unwrap();
    // Things of others, with the names that ours will have.
    for number in 1..4 {
        let name = format!("np{number:010}-{SYSTEM}");
        let id = format!("nodepool_node_id={number:010}");
        podman
            .run(&[
                "create",
                "--name",
                &name,
                "--label",
                &id,
                "--label",
                "nodepool_provider_name=here",
                IMAGE,
                "true",
            ])
            .unwrap();
    }
    let begun = std::time::Instant::now();
    let result = explore(suite, || async {
        PodmanBed {
            podman: Arc::clone(&podman),
            archive: archive.clone(),
        }
    })
    .await;
    match result {
        Ok(report) => {
            let (runs, points) = (report.runs, report.points);
            eprintln!(
                "{name}: {runs} runs, {points} points, {:?}",
                begun.elapsed()
            );
            Some(runs)
        }
        Err(failure) => panic!("{failure}: {}", failure.violation),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_survives_every_fault() {
    let suite = Suite {
        nodes: 1,
        step_limit: Duration::from_secs(5),
        ..Suite::default()
    };
    if let Some(runs) = run("a node", suite).await {
        assert!(runs > 100);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_survives_every_fault() {
    let suite = Suite {
        nodes: 0,
        uploads: 1,
        step_limit: Duration::from_secs(5),
        ..Suite::default()
    };
    if let Some(runs) = run("an upload", suite).await {
        assert!(runs > 50);
    }
}
