//! Providers, orders for them, and a caller in small: for the tests on the real cluster and on the one in memory.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nodeyard_config::{Driver as Section, Environment, Mode, load_bytes};
use nodeyard_driver::{
    BootImage, CreateOrder, Driver, Error, ExternalId, Instance, Owner, RequestAttributes, State,
    Step, SystemId, Target,
};
use nodeyard_driver_kubernetes::{Connect, KubernetesDriver, Options};
pub(crate) use nodeyard_model::now;
use nodeyard_model::{ConnectionPort, NodeId, Opaque, ProviderName};
use nodeyard_nodescan::NetworkScanner;
use serde_json::Value;

pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// Whose nodes a test makes: each test has a system of its own.
pub(crate) fn owner(system: &str) -> Owner {
    Owner {
        system: SystemId::new(system),
        provider: ProviderName::new("cluster").unwrap(),
    }
}

/// A provider with the pool `main` and the label `small`; `label` is the inside of its YAML mapping.
pub(crate) fn options(system: &str, driver: &str, label: &str) -> Options {
    options_named(system, driver, "main", "small", label)
}

pub(crate) fn options_named(
    system: &str,
    driver: &str,
    pool: &str,
    name: &str,
    label: &str,
) -> Options {
    let file = format!(
        "labels: [{{name: {name}}}]\nproviders: [{{name: cluster, driver: {driver}, context: test, pools: [{{name: \
         {pool}, labels: [{{name: {name}, {label}}}]}}]}}]\n"
    );
    let main = (Path::new("nodepool.yaml"), file.as_bytes());
    let (config, problems) = load_bytes(main, None, &Environment::new(), Mode::Daemon);
    let config = config.unwrap_or_else(|| panic!("{file}: {problems:?}"));
    let owner = owner(system);
    match &config.providers[0].driver {
        Section::Kubernetes(section) => Options::kubernetes(section, owner),
        Section::OpenShift(section) => Options::openshift(section, owner),
        Section::OpenShiftPods(section) => Options::openshiftpods(section, owner),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn driver_through(
    options: Options,
    connect: impl Connect + 'static,
) -> KubernetesDriver {
    KubernetesDriver::new(
        options,
        Arc::new(connect),
        Arc::new(NetworkScanner::default()),
    )
}

pub(crate) fn node(number: u32) -> NodeId {
    format!("{number:010}").parse().unwrap()
}

pub(crate) fn order(system: &str, number: u32) -> CreateOrder {
    order_named(system, number, "main", "small")
}

pub(crate) fn order_named(system: &str, number: u32, pool: &str, label: &str) -> CreateOrder {
    CreateOrder {
        node: node(number),
        pool: pool.into(),
        label: label.into(),
        image: BootImage::Cloud,
        tags: owner(system).node_tags(node(number), pool.into()),
        az: None,
        request: RequestAttributes::default(),
    }
}

/// What Zuul says of a request for a job of a buildset.
pub(crate) fn of_buildset(uuid: &str, tenant: Option<&str>) -> RequestAttributes {
    let data = serde_json::json!({"build_set_uuid": uuid, "job_name": "job"});
    RequestAttributes {
        requestor_data: Opaque::encode(&data).unwrap(),
        tenant_name: tenant.map(Into::into),
        ..RequestAttributes::default()
    }
}

/// Takes the steps of a creation to their end, as a launcher does.
pub(crate) async fn create(
    driver: &dyn Driver,
    order: &CreateOrder,
) -> Result<Instance, (Error, Option<ExternalId>)> {
    let mut state = State::fresh();
    let deadline = Instant::now() + PATIENCE;
    let mut tries = 0;
    loop {
        assert!(
            Instant::now() < deadline,
            "no end: {:?}",
            driver.progress(order.node)
        );
        match driver.create(order, &mut state, now()).await {
            Ok(Step::Done(instance)) => return Ok(instance),
            Ok(Step::Wait(wait)) => pause(driver, &wait).await,
            Err(error) if error.class() == nodeyard_driver::ErrorClass::Retry && tries < 3 => {
                tries += 1;
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Err(error) => return Err((error, state.external_id)),
        }
    }
}

pub(crate) async fn pause(driver: &dyn Driver, wait: &nodeyard_driver::Wait) {
    match &wait.event {
        Some(event) => {
            tokio::select! {
                () = driver.event(event) => {}
                () = tokio::time::sleep(wait.at_most) => {}
            }
        }
        None => tokio::time::sleep(wait.at_most).await,
    }
}

pub(crate) async fn delete(driver: &dyn Driver, target: &Target) -> Result<(), Error> {
    let mut state = State::default();
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "no end");
        match driver.delete(target, &mut state, now()).await? {
            Step::Done(()) => return Ok(()),
            Step::Wait(wait) => pause(driver, &wait).await,
        }
    }
}

/// By nothing but its id.
pub(crate) async fn delete_node(driver: &dyn Driver, order: &CreateOrder) {
    let target = Target::Node {
        node: order.node,
        external_id: None,
    };
    delete(driver, &target).await.unwrap();
}

/// What Zuul reads.
pub(crate) fn credentials(instance: &Instance) -> Value {
    match &instance.connection_port {
        Some(ConnectionPort::Cluster(credentials)) => credentials.decode().unwrap(),
        other => panic!("{other:?}"),
    }
}
