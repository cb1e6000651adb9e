//! Deaths of either side, and what other processes do in the meantime.

use std::fs;

use nodeyard_driver::{Driver, ErrorClass, ExternalId, ResourceKind, State, Step, Target, Wait};
use nodeyard_model::ConnectionPort;
use serde_json::Value;

use crate::common::{Yard, kill, launch, node, now, order, remove};

/// Takes one step with a state that the caller has stored.
async fn step(driver: &dyn Driver, state: &mut State) -> Step<nodeyard_driver::Instance> {
    driver.create(&order(1), state, now()).await.unwrap()
}

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

    // A new process goes on from a state that was stored before anything was made.
    let again = yard.driver();
    let mut state = State::default();
    let found = loop {
        if let Step::Done(instance) = step(&again, &mut state).await {
            break instance;
        }
    };
    assert_eq!(found.connection_port, first.connection_port);
    assert_eq!(yard.processes(), [pid]);
    remove(&again, 1).await.unwrap();
    assert!(yard.processes().is_empty() && yard.names("machines").is_empty());
}

#[tokio::test]
async fn a_process_that_was_never_written_down_is_found_by_its_command_line() {
    let yard = Yard::new();
    let instance = launch(&yard.driver(), &order(1)).await.unwrap();
    // As if we had been killed between the start and the note of it.
    let file = yard.machine_directory(&instance).with_extension("json");
    let mut description: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    description["process"] = Value::Null;
    fs::write(&file, description.to_string()).unwrap();

    let driver = yard.driver();
    let mut state = State::default();
    let found = loop {
        if let Step::Done(instance) = step(&driver, &mut state).await {
            break instance;
        }
    };
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
    let mut state = State::default();
    while driver.delete(&target, &mut state, now()).await.unwrap() != Step::Done(()) {}
    assert!(yard.names("machines").is_empty());
    // There is nothing to do a second time.
    assert_eq!(
        driver.delete(&target, &mut state, now()).await.unwrap(),
        Step::Done(())
    );
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
    assert!(error.to_string().contains("QEMU ended"), "{error}");
}

#[tokio::test]
async fn a_machine_that_stops_while_it_boots_is_noticed_at_once() {
    // It is waited for, but nobody in it will ever answer.
    let yard = Yard::with_label(|label| label.host_key_checking = true);
    let driver = yard.driver();
    let mut state = State::fresh();
    let event = loop {
        match step(&driver, &mut state).await {
            Step::Wait(Wait {
                event: Some(event), ..
            }) => break event,
            Step::Wait(_) => {}
            Step::Done(instance) => panic!("{instance:?}"),
        }
    };
    for pid in yard.processes() {
        kill(pid);
    }
    driver.event(&event).await;
    let error = driver.create(&order(1), &mut state, now()).await;
    let error = error.unwrap_err();
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
            .contains("kernel /nonexistent/vmlinuz cannot be read"),
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
        let error = yard
            .driver()
            .delete(&target, &mut State::default(), now())
            .await
            .unwrap_err();
        assert_eq!(error.class(), ErrorClass::Permanent, "{id}");
    }
}

#[tokio::test]
async fn old_files_without_a_description_go_and_young_ones_stay() {
    let yard = Yard::new();
    let machines = yard.options.directory.join("machines");
    fs::create_dir_all(machines.join("np1-orphan")).unwrap();
    fs::write(machines.join(".part-abc"), "half").unwrap();
    // Its text was lost when the host went down.
    fs::write(machines.join("np2-empty.json"), "").unwrap();
    let driver = yard.driver();
    launch(&driver, &order(3)).await.unwrap();
    assert!(driver.list().await.unwrap().len() == 1);
    assert!(driver.tidy(now()).await.unwrap().is_empty());
    let later = nodeyard_model::Timestamp::from_secs(now().as_secs() + 7200.0).unwrap();
    let tidied = driver.tidy(later).await.unwrap();
    assert_eq!(tidied[0].count, 3);
    let left = yard.names("machines").len();
    assert_eq!(left, 3, "description, lock and directory of the machine");
    assert_eq!(yard.processes().len(), 1);
}
