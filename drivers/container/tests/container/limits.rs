//! What a label says a container is, and what it then is.

use std::collections::BTreeMap;
use std::time::Duration;

use nodeyard_driver::{Machines, Readiness};
use nodeyard_driver_container::ContainerAccess;
use nodeyard_model::{Quantity, ResourceName};
use nodeyard_testbeds::ContainerRuntime;
use nodeyard_testbeds::containers::Kind;

use crate::common::{PATIENCE, create, delete, driver, on_both_runtimes, options, order, owner};

on_both_runtimes!(
    everything_a_label_says_reaches_the_container,
    too_many_processes_are_refused_by_the_kernel,
    a_label_without_its_image_is_not_ready,
);

async fn everything_a_label_says_reaches_the_container(runtime: &ContainerRuntime) {
    let shared = tempfile::tempdir().unwrap();
    std::fs::write(shared.path().join("note"), "from the host").unwrap();
    // Docker asks for every capability that the kernel has; where root lacks one, that is refused.
    let privileged = runtime.kind() == Kind::Podman;
    let options = options("limits", |label| {
        label.access = ContainerAccess::Exec;
        label.cpus = Some(0.5);
        label.memory = Some(64);
        label.processes = Some(40);
        label.ulimits = BTreeMap::from([("nofile".to_owned(), 777)]);
        label.env = BTreeMap::from([("GREETING".to_owned(), "hello = world".to_owned())]);
        label.volumes = vec![format!("{}:/shared:ro", shared.path().display())];
        label.privileged = privileged;
        label.command = Some(
            ["/bin/sh", "-c", "echo \"I say $GREETING\"; exec sleep 3600"]
                .map(ToOwned::to_owned)
                .into(),
        );
    });
    let driver = driver(runtime, options);
    let order = order("limits", 1);
    let instance = create(&driver, &order).await.unwrap();
    let id = instance.external_id.as_text().unwrap();

    let format = "{{.HostConfig.NanoCpus}} {{.HostConfig.Memory}} {{.HostConfig.MemorySwap}} \
                  {{.HostConfig.PidsLimit}} {{.HostConfig.Privileged}}";
    let told = runtime.run(&["inspect", "--format", format, &id]).unwrap();
    assert_eq!(told, format!("500000000 67108864 67108864 40 {privileged}"));
    let inside = |script: &str| runtime.exec(&id, &["sh", "-c", script]);
    assert_eq!(inside("ulimit -n").unwrap(), "777");
    assert_eq!(inside("cat /shared/note").unwrap(), "from the host");
    let forbidden = ["exec", &id, "touch", "/shared/other"];
    runtime.run(&forbidden).unwrap_err();
    // What is printed is kept a moment later.
    let said = async {
        loop {
            let evidence = driver.evidence(&order.pool, &order.label, &instance.external_id);
            let evidence = evidence.await.unwrap().unwrap();
            if evidence.contains("I say hello = world") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, said)
        .await
        .expect("the console says it");

    // The sums by which launches are held back.
    let cost = driver.cost(&order.pool, &order.label).await.unwrap();
    assert_eq!(
        cost.get(&ResourceName::CORES),
        Quantity::from_f64(0.5).unwrap()
    );
    assert_eq!(cost.get(&ResourceName::RAM), 64.into());
    assert_eq!(instance.resources, cost);
    let listed = driver.list().await.unwrap();
    let ours = |tags| owner("limits").owns_node(tags, order.node);
    let resource = listed.iter().find(|resource| ours(&resource.tags)).unwrap();
    assert_eq!(resource.takes, cost);
    let limits = driver.limits().await.unwrap();
    assert!(limits.get(&ResourceName::CORES).unwrap() >= 1.into());
    assert!(limits.get(&ResourceName::RAM).unwrap() >= 64.into());
    delete(&driver, &order).await;
}

async fn too_many_processes_are_refused_by_the_kernel(runtime: &ContainerRuntime) {
    let options = options("forks", |label| {
        label.access = ContainerAccess::Exec;
        label.processes = Some(10);
    });
    let driver = driver(runtime, options);
    let order = order("forks", 1);
    let instance = create(&driver, &order).await.unwrap();
    let id = instance.external_id.as_text().unwrap();
    let many = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 60 & done; echo all";
    let said = runtime.run(&["exec", &id, "sh", "-c", many]);
    assert!(said.as_ref().map_or(true, |text| text != "all"), "{said:?}");
    delete(&driver, &order).await;
}

async fn a_label_without_its_image_is_not_ready(runtime: &ContainerRuntime) {
    let ready = driver(runtime, options("ready", |_| {}));
    let order = order("ready", 1);
    let readiness = ready.readiness(&order.pool, &order.label).await;
    assert_eq!(readiness.unwrap(), Readiness::Ready);
    let missing = options("ready", |label| {
        label.image = nodeyard_driver_container::ContainerImage::Reference("localhost/none".into());
    });
    let missing = driver(runtime, missing);
    let readiness = missing.readiness(&order.pool, &order.label).await;
    let Readiness::NotReady(why) = readiness.unwrap() else {
        panic!("there is no such image");
    };
    assert!(why.contains("localhost/none"), "{why}");
}
