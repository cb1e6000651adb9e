//! Crashes of the driver and of machines, and machines that fail to start.

use std::fs;

use nodeyard_driver::{
    Clock, ErrorClass, ExternalId, Machines, Progress, ProgressState, ResourceKind, Target,
};
use nodeyard_driver_qemu::{LocalHost, QemuHost};
use nodeyard_model::{ConnectionPort, Timestamp};
use serde_json::Value;

use crate::common::{PATIENCE, Yard, kill, launch, launch_again, node, order, remove};

#[tokio::test]
async fn a_machine_outlives_us_and_is_found_again() {
    let yard = Yard::new();
    let first = launch(&yard.driver(), &order(1)).await.unwrap();
    let [pid] = yard.processes()[..] else {
        panic!("one machine, one process");
    };
    let session = rustix::process::getsid(rustix::process::Pid::from_raw(pid)).unwrap();
    assert_eq!(
        session.as_raw_pid(),
        pid,
        "it does not end with our terminal"
    );

    // A new process knows only the record that was stored before anything was made.
    let again = yard.driver();
    let found = launch_again(&again, 1).await.unwrap();
    assert_eq!(found.connection_port, first.connection_port);
    assert_eq!(yard.processes(), [pid]);
    remove(&again, 1).await.unwrap();
    assert!(yard.processes().is_empty() && yard.names("machines").is_empty());
}

#[tokio::test]
async fn a_process_that_was_never_written_down_is_found_by_its_command_line() {
    let yard = Yard::new();
    let instance = launch(&yard.driver(), &order(1)).await.unwrap();
    // As if the driver had been killed between the start and the write of the record.
    let file = yard.machine_directory(&instance).with_extension("json");
    let mut description: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    description["process"] = Value::Null;
    fs::write(&file, description.to_string()).unwrap();

    let driver = yard.driver();
    let found = launch_again(&driver, 1).await.unwrap();
    assert_eq!(found, instance);
    assert_eq!(yard.processes().len(), 1);
    fs::write(&file, description.to_string()).unwrap();
    remove(&driver, 1).await.unwrap();
    assert!(yard.processes().is_empty());
}

#[tokio::test]
async fn a_reused_number_is_not_mistaken_for_the_machine() {
    let yard = Yard::new();
    let driver = yard.driver();
    let instance = launch(&driver, &order(1)).await.unwrap();
    let file = yard.machine_directory(&instance).with_extension("json");
    let mut description: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    for pid in yard.processes() {
        kill(pid);
    }
    // The number is now that of this very test.
    description["process"]["pid"] = std::process::id().into();
    fs::write(&file, description.to_string()).unwrap();
    remove(&driver, 1).await.unwrap();
    assert!(yard.names("machines").is_empty());
}

#[tokio::test]
async fn what_a_killed_machine_leaves_is_deleted() {
    let yard = Yard::new();
    let driver = yard.driver();
    launch(&driver, &order(1)).await.unwrap();
    for pid in yard.processes() {
        kill(pid);
    }
    let listed = driver.list().await.unwrap();
    assert!(
        listed
            .iter()
            .any(|resource| resource.tags.node == Some(node(1)))
    );
    let id = listed[0].id.clone();
    let target = Target::Resource {
        kind: ResourceKind::INSTANCES,
        id,
    };
    driver.delete(&target).await.unwrap();
    assert!(yard.names("machines").is_empty());
    // What does not exist is deleted.
    driver.delete(&target).await.unwrap();
}

#[tokio::test]
async fn machines_have_ports_of_their_own() {
    let yard = Yard::new();
    let driver = yard.driver();
    let mut ports = Vec::new();
    for number in 1..4 {
        let instance = launch(&driver, &order(number)).await.unwrap();
        let Some(ConnectionPort::Number(port)) = instance.connection_port else {
            panic!("{instance:?}");
        };
        std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        ports.push(port);
    }
    ports.dedup();
    assert_eq!(ports.len(), 3);
}

#[tokio::test]
async fn a_machine_that_qemu_refuses_fails_at_once_with_its_words() {
    let yard = Yard::with(|options| options.machine = Some("abacus".into()));
    let error = launch(&yard.driver(), &order(1)).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Permanent);
    assert!(
        error.to_string().contains("unsupported machine type"),
        "{error}"
    );
    remove(&yard.driver(), 1).await.unwrap();
    assert!(yard.names("machines").is_empty());

    let yard = Yard::with_label(|label| label.memory = 1 << 40);
    let error = launch(&yard.driver(), &order(1)).await.unwrap_err();
    assert!(error.to_string().contains("QEMU exited"), "{error}");
}

#[tokio::test]
async fn a_machine_that_stops_while_it_boots_is_noticed_at_once() {
    // Its guest never answers, and no poll after the first one would come within the test.
    let mut yard = Yard::with_label(|label| label.host_key_checking = true);
    yard.options.poll.least = PATIENCE;
    let driver = yard.driver();
    let progress = Progress::default();
    let (order, mut reported) = (order(1), progress.subscribe());
    let kill_when_booting = async {
        let booting = |state: &ProgressState| state.stage.is_some();
        reported.wait_for(booting).await.unwrap();
        for pid in yard.processes() {
            kill(pid);
        }
    };
    let (created, ()) = tokio::join!(driver.create(&order, &progress), kill_when_booting);
    let error = created.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Permanent);
    assert!(
        error.to_string().contains("stopped while it booted"),
        "{error}"
    );
}

#[tokio::test]
async fn what_is_missing_is_named_with_its_remedy() {
    let yard = Yard::with(|options| options.binary = "qemu-system-nothing".into());
    let error = launch(&yard.driver(), &order(1)).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Permanent);
    assert!(
        error
            .to_string()
            .contains("on Debian it is in qemu-system-x86"),
        "{error}"
    );

    let yard = Yard::with_label(|label| label.kernel = Some("/nonexistent/vmlinuz".into()));
    let error = launch(&yard.driver(), &order(1)).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("failed to read kernel /nonexistent/vmlinuz"),
        "{error}"
    );
    // Nothing was begun.
    assert!(yard.names("machines").is_empty());
}

#[tokio::test]
async fn ids_that_lead_elsewhere_are_refused() {
    let yard = Yard::new();
    for id in ["../../etc", "a/b", "", ".hidden"] {
        let target = Target::Resource {
            kind: ResourceKind::INSTANCES,
            id: ExternalId::from(id),
        };
        let error = yard.driver().delete(&target).await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Permanent, "{id}");
    }
}

#[tokio::test]
async fn old_files_without_a_record_are_removed_and_young_ones_stay() {
    let yard = Yard::new();
    let machines = yard.options.directory.join("machines");
    fs::create_dir_all(machines.join("np1-orphan")).unwrap();
    fs::write(machines.join(".part-abc"), "half").unwrap();
    // Its text was lost when the host went down.
    fs::write(machines.join("np2-empty.json"), "").unwrap();
    let driver = yard.driver();
    launch(&driver, &order(3)).await.unwrap();
    assert!(driver.list().await.unwrap().len() == 1);
    assert!(driver.collect_garbage().await.unwrap().is_empty());
    let now = Clock::system().now();
    let later = Timestamp::from_secs(now.as_secs() + 7200.0).unwrap();
    let host = LocalHost::new(yard.shared_options());
    assert_eq!(host.collect_garbage(later).await.unwrap(), 3);
    let left = yard.names("machines").len();
    assert_eq!(left, 3, "record, lock and directory of the machine");
    assert_eq!(yard.processes().len(), 1);
}
