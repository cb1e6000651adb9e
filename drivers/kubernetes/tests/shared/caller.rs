//! Providers, orders for them, and a caller in small: for the tests on the real cluster and on the one in memory.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_config::{Driver as Section, Environment, Mode, load_bytes};
use nodeyard_driver::{
    BootImage, CreateOrder, Error, ErrorClass, ExternalId, Instance, Machines, Owner, Progress,
    RequestAttributes, SystemId, Target,
};
use nodeyard_driver_kubernetes::{Connect, KubernetesDriver, Options};
use nodeyard_model::{ConnectionPort, NodeId, Opaque, ProviderName};
use nodeyard_nodescan::NetworkScanner;
use serde_json::Value;
use tokio::time::timeout;

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
        first_attempt: true,
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

/// Creates a node as a launcher does. Returns the id of a node that failed, too.
pub(crate) async fn create(
    driver: &dyn Machines,
    order: &CreateOrder,
) -> Result<Instance, (Error, Option<ExternalId>)> {
    create_reporting(driver, order, &Progress::default()).await
}

pub(crate) async fn create_reporting(
    driver: &dyn Machines,
    order: &CreateOrder,
    progress: &Progress,
) -> Result<Instance, (Error, Option<ExternalId>)> {
    let mut order = order.clone();
    let mut tries = 0;
    loop {
        let created = timeout(PATIENCE, driver.create(&order, progress)).await;
        let created = created.unwrap_or_else(|_| panic!("no end: {:?}", progress.stage()));
        match created {
            Ok(instance) => return Ok(instance),
            Err(error) if error.class() == ErrorClass::Retry && tries < 3 => {
                tries += 1;
                order.first_attempt = false;
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Err(error) => return Err((error, progress.external_id())),
        }
    }
}

pub(crate) async fn delete(driver: &dyn Machines, target: &Target) -> Result<(), Error> {
    let deleted = timeout(PATIENCE, driver.delete(target)).await;
    deleted.expect("a deletion in time")
}

/// By nothing but its id.
pub(crate) async fn delete_node(driver: &dyn Machines, order: &CreateOrder) {
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
