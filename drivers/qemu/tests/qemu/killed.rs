//! `kill -9` of the process that runs the driver, in the middle of things.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use nodeyard_driver::{ErrorClass, Machines};

use crate::common::{PATIENCE, Yard, launch, launch_again, order, remove};

const DIRECTORY: &str = "NODEYARD_TEST_DIRECTORY";

/// How far a launch is when its process dies.
#[derive(Debug, Clone, Copy)]
enum Moment {
    Described,
    WithDisk,
    Started,
    WrittenDown,
}

impl Moment {
    fn has_come(self, yard: &Yard) -> bool {
        let machines = yard.options.directory.join("machines");
        let names = yard.names("machines");
        let Some(id) = names.iter().find_map(|name| name.strip_suffix(".json")) else {
            return false;
        };
        match self {
            Self::Described => true,
            Self::WithDisk => machines.join(id).join("disk.qcow2").exists(),
            Self::Started => !yard.processes().is_empty(),
            Self::WrittenDown => fs::read_to_string(machines.join(format!("{id}.json")))
                .is_ok_and(|text| text.contains("\"pid\"")),
        }
    }
}

/// Another process that launches a machine in the same directory.
fn victim(yard: &Yard) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "killed::launch_and_stay",
            "--nocapture",
        ])
        .env(DIRECTORY, &yard.options.directory)
        // It cannot clean up after itself.
        .env("TMPDIR", yard.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test]
#[ignore = "runs in a process that the tests below kill"]
async fn launch_and_stay() {
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    let yard = Yard::with(|options| options.directory = directory);
    launch(&yard.driver(), &order(1)).await.unwrap();
    std::future::pending::<()>().await;
}

async fn killed_at(moment: Moment) -> Yard {
    let yard = Yard::new();
    let mut victim = victim(&yard);
    let deadline = Instant::now() + PATIENCE;
    while !moment.has_come(&yard) {
        assert!(Instant::now() < deadline, "{moment:?} never comes");
        tokio::task::yield_now().await;
    }
    victim.kill().unwrap();
    victim.wait().unwrap();
    yard
}

const MOMENTS: [Moment; 4] = [
    Moment::Described,
    Moment::WithDisk,
    Moment::Started,
    Moment::WrittenDown,
];

#[tokio::test]
async fn whatever_a_killed_process_has_begun_can_be_deleted() {
    for moment in MOMENTS {
        let yard = killed_at(moment).await;
        remove(&yard.driver(), 1).await.unwrap();
        let mut left = yard.names("machines");
        // A record that was being written; garbage collection removes it in time.
        left.retain(|name| !name.starts_with(".part-"));
        assert!(left.is_empty(), "{moment:?}: {left:?}");
        // What was about to start finds nothing to start from.
        let deadline = Instant::now() + PATIENCE;
        while !yard.processes().is_empty() {
            assert!(Instant::now() < deadline, "a process stays: {moment:?}");
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn whatever_a_killed_process_has_begun_is_finished_by_the_next() {
    for moment in MOMENTS {
        let yard = killed_at(moment).await;
        let driver = yard.driver();
        while let Err(error) = launch_again(&driver, 1).await {
            assert_eq!(error.class(), ErrorClass::Retry, "{error}");
        }
        assert_eq!(yard.processes().len(), 1, "{moment:?}");
        assert_eq!(driver.list().await.unwrap().len(), 1, "{moment:?}");
    }
}
