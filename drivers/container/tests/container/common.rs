//! Runtimes for all tests, and helpers that call the driver.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use nodeyard_driver::{
    CreateOrder, Error, ExternalId, Instance, Machines, Owner, Progress, SystemId, Target, kit,
};
use nodeyard_driver_container::{
    ContainerDriver, ContainerImage, ContainerLabelOptions, ContainerPoolOptions, Options,
    RuntimeTransport, Socket,
};
use nodeyard_model::{NodeId, ProviderName};
use nodeyard_nodescan::NetworkScanner;
use nodeyard_testbeds::ContainerRuntime;
use nodeyard_testbeds::containers::Kind;
use tokio::time::timeout;

/// The name of an image with sshd in it, and without a command.
pub(crate) const IMAGE: &str = "localhost/base";
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// Returns a runtime that all tests share: each has a system id of its own. None, with a message, where it cannot run.
pub(crate) fn runtime(kind: Kind) -> Option<&'static ContainerRuntime> {
    static PODMAN: LazyLock<Option<ContainerRuntime>> = LazyLock::new(|| start(Kind::Podman));
    static DOCKER: LazyLock<Option<ContainerRuntime>> = LazyLock::new(|| start(Kind::Docker));
    match kind {
        Kind::Podman => PODMAN.as_ref(),
        Kind::Docker => DOCKER.as_ref(),
    }
}

fn start(kind: Kind) -> Option<ContainerRuntime> {
    let runtime = ContainerRuntime::start_if_possible(kind).unwrap()?;
    runtime.import(IMAGE).unwrap();
    Some(runtime)
}

/// Makes a test for each runtime of functions that take one.
macro_rules! on_both_runtimes {
    ($($name:ident),* $(,)?) => {
        crate::common::on_both_runtimes!(@ podman Podman $($name)*);
        crate::common::on_both_runtimes!(@ docker Docker $($name)*);
    };
    (@ $module:ident $kind:ident $($name:ident)*) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    let kind = nodeyard_testbeds::containers::Kind::$kind;
                    if let Some(runtime) = crate::common::runtime(kind) {
                        super::$name(runtime).await;
                    }
                }
            )*
        }
    };
}
pub(crate) use on_both_runtimes;

pub(crate) fn owner(system: &str) -> Owner {
    Owner {
        system: SystemId::new(system),
        provider: ProviderName::new("here").unwrap(),
    }
}

/// One pool with one label.
pub(crate) fn options(system: &str, label: impl FnOnce(&mut ContainerLabelOptions)) -> Options {
    let image = ContainerImage::Reference(IMAGE.into());
    let mut small = ContainerLabelOptions::new("small".into(), image);
    label(&mut small);
    Options {
        pools: vec![ContainerPoolOptions {
            name: "main".into(),
            labels: vec![small],
        }],
        ..Options::new(owner(system))
    }
}

pub(crate) fn driver(runtime: &ContainerRuntime, options: Options) -> ContainerDriver {
    driver_through(options, Arc::new(Socket::new(runtime.socket())))
}

pub(crate) fn driver_through(
    options: Options,
    transport: Arc<dyn RuntimeTransport>,
) -> ContainerDriver {
    ContainerDriver::new(options, transport, Arc::new(NetworkScanner::default()))
}

pub(crate) fn node(number: u32) -> NodeId {
    format!("{number:010}").parse().unwrap()
}

pub(crate) fn order(system: &str, number: u32) -> CreateOrder {
    kit::order(&owner(system), node(number))
}

/// Returns the machine, or the error and the id that was reported before it.
pub(crate) async fn create(
    driver: &ContainerDriver,
    order: &CreateOrder,
) -> Result<Instance, (Error, Option<ExternalId>)> {
    let progress = Progress::default();
    let created = timeout(PATIENCE, driver.create(order, &progress)).await;
    created
        .expect("the launch never ends")
        .map_err(|error| (error, progress.external_id()))
}

/// Creates a machine as a later attempt, for which an earlier one may have left something behind.
pub(crate) async fn create_again(driver: &ContainerDriver, order: &CreateOrder) -> Instance {
    let order = CreateOrder {
        first_attempt: false,
        ..order.clone()
    };
    create(driver, &order).await.unwrap()
}

pub(crate) async fn delete(driver: &ContainerDriver, order: &CreateOrder) {
    let target = Target::Node {
        node: order.node,
        external_id: None,
    };
    let deleted = timeout(PATIENCE, driver.delete(&target)).await;
    deleted.expect("the deletion never ends").unwrap();
}

/// Returns the number of containers with this system id.
pub(crate) async fn count(driver: &ContainerDriver, system: &str) -> usize {
    let listed = driver.list().await.unwrap();
    let owner = owner(system);
    listed
        .iter()
        .filter(|resource| owner.owns(&resource.tags) && resource.tags.node.is_some())
        .count()
}

/// The text of an error and all its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
