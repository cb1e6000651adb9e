//! Runtimes for all tests, orders for them, and a caller in small.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use nodeyard_driver::{
    CreateOrder, Driver, Error, ExternalId, Instance, Owner, State, Step, SystemId, Target, kit,
};
use nodeyard_driver_container::{
    ContainerDriver, LabelImage, LabelOptions, Options, PoolOptions, Socket, Transport,
};
pub(crate) use nodeyard_model::now;
use nodeyard_model::{NodeId, ProviderName};
use nodeyard_nodescan::NetworkScanner;
use nodeyard_testbeds::ContainerRuntime;
use nodeyard_testbeds::containers::Kind;

/// The name of an image with sshd in it, and without a command.
pub(crate) const IMAGE: &str = "localhost/base";
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// One of each kind for all tests: each has a system id of its own. None where it cannot run, which is said.
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
pub(crate) fn options(system: &str, label: impl FnOnce(&mut LabelOptions)) -> Options {
    let image = LabelImage::Reference(IMAGE.into());
    let mut small = LabelOptions::new("small".into(), image);
    label(&mut small);
    Options {
        pools: vec![PoolOptions {
            name: "main".into(),
            labels: vec![small],
        }],
        ..Options::new(owner(system))
    }
}

pub(crate) fn driver(runtime: &ContainerRuntime, options: Options) -> ContainerDriver {
    driver_through(options, Arc::new(Socket::new(runtime.socket())))
}

pub(crate) fn driver_through(options: Options, transport: Arc<dyn Transport>) -> ContainerDriver {
    ContainerDriver::new(options, transport, Arc::new(NetworkScanner::default()))
}

pub(crate) fn node(number: u32) -> NodeId {
    format!("{number:010}").parse().unwrap()
}

pub(crate) fn order(system: &str, number: u32) -> CreateOrder {
    kit::order(&owner(system), node(number))
}

/// Takes the steps of a creation to their end.
pub(crate) async fn create(
    driver: &dyn Driver,
    order: &CreateOrder,
) -> Result<Instance, (Error, Option<ExternalId>)> {
    let mut state = State::fresh();
    let deadline = Instant::now() + PATIENCE;
    loop {
        match driver.create(order, &mut state, now()).await {
            Ok(Step::Done(instance)) => return Ok(instance),
            Ok(Step::Wait(wait)) => {
                assert!(Instant::now() < deadline, "no end");
                tokio::time::sleep(wait.at_most).await;
            }
            Err(error) => return Err((error, state.external_id)),
        }
    }
}

pub(crate) async fn delete(driver: &dyn Driver, order: &CreateOrder) {
    let target = Target::Node {
        node: order.node,
        external_id: None,
    };
    let mut state = State::default();
    let deadline = Instant::now() + PATIENCE;
    while let Step::Wait(wait) = driver.delete(&target, &mut state, now()).await.unwrap() {
        assert!(Instant::now() < deadline, "no end");
        tokio::time::sleep(wait.at_most).await;
    }
}

/// How many containers with this system id there are.
pub(crate) async fn count(driver: &dyn Driver, system: &str) -> usize {
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
