//! Drivers, orders, and a caller that repeats operations.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use nodeyard_driver::{
    CreateOrder, Error, ErrorClass, Instance, Machines, Owner, Poll, Progress, SystemId, Target,
};
use nodeyard_driver_openstack::{
    CloudImageOptions, CloudOptions, ImageChoice, LabelImage, LabelOptions, OpenStackDriver,
    Options, PoolOptions, TidyOptions,
};
use nodeyard_fetch::Backoff;
use nodeyard_model::{NodeId, ProviderName};
use nodeyard_openstack::{CloudSettings, Clouds, Http, ProcessEnvironment, Session, Transport};
use nodeyard_testbeds::OpenStack;
use nodeyard_testbeds::openstack::Project;
use serde_json::json;
use tokio::time::timeout;

pub(crate) use nodeyard_driver::kit::order;

/// The machine may have a lot to do at the same time.
const PATIENCE: Duration = Duration::from_secs(300);

/// None where there can be none, which is said.
pub(crate) fn cloud() -> Option<&'static OpenStack> {
    static CLOUD: LazyLock<Option<OpenStack>> =
        LazyLock::new(|| OpenStack::start_if_possible().unwrap());
    CLOUD.as_ref()
}

/// One with an image `disk`.
pub(crate) fn project(purpose: &str) -> Option<Project> {
    let project = cloud()?.project(purpose).unwrap();
    project.create_image("disk", json!({})).unwrap();
    Some(project)
}

/// Like [`project`], with a way to the outside.
pub(crate) fn connected_project(purpose: &str) -> Option<Project> {
    let project = project(purpose)?;
    project.connect_outside().unwrap();
    Some(project)
}

/// Waits for a condition, not for a time.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !condition().await {
        assert!(begun.elapsed() < PATIENCE, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

pub(crate) fn owner(system: &str) -> Owner {
    Owner {
        system: SystemId::new(system),
        provider: ProviderName::new("cloud").unwrap(),
    }
}

/// A pool `main` with a label `small` that boots the image `disk`.
pub(crate) fn options(owner: Owner) -> Options {
    Options {
        owner,
        cloud: CloudOptions {
            name: "nodepool".into(),
            region: None,
            pools: vec![PoolOptions {
                name: "main".into(),
                availability_zones: Vec::new(),
                security_groups: Vec::new(),
                auto_floating_ip: false,
                labels: vec![label()],
            }],
            cloud_images: vec![CloudImageOptions {
                name: "disk".into(),
                choice: ImageChoice::Name("disk".into()),
                config_drive: None,
            }],
            disk_images: Vec::new(),
        },
        tidy: TidyOptions {
            floating_ips: false,
            port_interval: Duration::ZERO,
        },
        image_import: false,
        rate: Duration::ZERO,
        list_age: Duration::from_millis(250),
        catalog_age: Duration::from_secs(300),
        image_age: Duration::from_secs(300),
        poll: Poll {
            // Each look costs the real services more than it costs us.
            least: Duration::from_millis(250),
            most: Duration::from_secs(1),
        },
    }
}

/// Like [`options`], and every server gets a floating IP.
pub(crate) fn options_with_floating_ips(owner: Owner) -> Options {
    let mut options = options(owner);
    change(&mut options, |pool| pool.auto_floating_ip = true);
    options
}

fn label() -> LabelOptions {
    LabelOptions {
        name: "small".into(),
        image: LabelImage::Cloud("disk".into()),
        min_ram: None,
        flavor_name: Some("small".into()),
        key_name: None,
        console_log: true,
        boot_volume: None,
        instance_properties: BTreeMap::from([("purpose".to_owned(), "test".to_owned())]),
        dynamic_instance_properties: BTreeMap::new(),
        userdata: Some("#cloud-config".into()),
        networks: vec!["net".into()],
    }
}

/// The pool and the label of [`options`].
pub(crate) fn change(options: &mut Options, with: impl FnOnce(&mut PoolOptions)) {
    with(options.cloud.pools.first_mut().unwrap());
}

pub(crate) fn settings(clouds_yaml: &Path) -> CloudSettings {
    let named = clouds_yaml.to_str().unwrap().to_owned();
    let around = ProcessEnvironment {
        variables: BTreeMap::from([("OS_CLIENT_CONFIG_FILE".to_owned(), named)]),
        directory: "/".into(),
    };
    Clouds::find(&around)
        .unwrap()
        .cloud(Some("nodepool"), None)
        .unwrap()
}

pub(crate) fn session(settings: CloudSettings, transport: Arc<dyn Transport>) -> Session {
    let options = nodeyard_openstack::Options {
        backoff: Backoff {
            initial_delay: Duration::from_millis(20),
            max_delay: Duration::from_secs(5),
        },
        limit: Duration::from_secs(120),
        ..nodeyard_openstack::Options::default()
    };
    Session::new(settings, transport, options)
}

pub(crate) fn driver(options: Options, clouds_yaml: &Path) -> OpenStackDriver {
    let settings = settings(clouds_yaml);
    let http = Http::new(&settings.tls).unwrap();
    OpenStackDriver::new(options, session(settings, Arc::new(http)))
}

pub(crate) fn node(number: u32) -> NodeId {
    format!("{number:010}").parse().unwrap()
}

/// Creates a machine as the launcher does: an error of class `Retry` repeats the operation a few times.
pub(crate) async fn create(
    driver: &OpenStackDriver,
    order: &CreateOrder,
) -> Result<Instance, Error> {
    create_reporting(driver, order, &Progress::default()).await
}

pub(crate) async fn create_reporting(
    driver: &OpenStackDriver,
    order: &CreateOrder,
    progress: &Progress,
) -> Result<Instance, Error> {
    let mut order = order.clone();
    let mut failures = 0;
    loop {
        let created = timeout(PATIENCE, driver.create(&order, progress)).await;
        match created.expect("a machine in time") {
            Err(error) if error.class() == ErrorClass::Retry && failures < 5 => failures += 1,
            result => return result,
        }
        order.first_attempt = false;
    }
}

pub(crate) async fn delete(driver: &OpenStackDriver, target: &Target) -> Result<(), Error> {
    let mut failures = 0;
    loop {
        let deleted = timeout(PATIENCE, driver.delete(target)).await;
        match deleted.expect("a deletion in time") {
            Err(error) if error.class() == ErrorClass::Retry && failures < 5 => failures += 1,
            result => return result,
        }
    }
}

pub(crate) async fn delete_node(driver: &OpenStackDriver, node: NodeId) {
    let target = Target::Node {
        node,
        external_id: None,
    };
    delete(driver, &target).await.unwrap();
}
