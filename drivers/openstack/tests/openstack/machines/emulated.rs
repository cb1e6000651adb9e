//! The driver kit with every fault, and volumes, on the emulated cloud.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_driver::kit::{Bed, Faults, Setup, Suite, explore};
use nodeyard_driver::{
    BootImage, Driver, ErrorClass, Machines as _, Progress, ResourceKind, Target,
};
use nodeyard_driver_openstack::{OpenStackDriver, Options, TidyOptions};
use nodeyard_model::{ResourceName, Resources};
use nodeyard_openstack::{CloudSettings, Transport};

use crate::machines::common::{
    change, create, create_reporting, delete, delete_node, node, options_with_floating_ips, order,
    owner, session, settings,
};
use crate::machines::emulation::{Emulation, PROJECT};
use crate::machines::faults::Faulty;

const CLOUDS: &str = "clouds:\n  nodepool: {auth: {auth_url: 'http://cloud/v3', username: u, password: p, project_id: p, user_domain_id: d}}\n";

fn emulated_settings() -> CloudSettings {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("clouds.yaml");
    std::fs::write(&file, CLOUDS).unwrap();
    settings(&file)
}

fn emulated(options: Options, cloud: &Arc<Emulation>) -> OpenStackDriver {
    let transport = Arc::clone(cloud) as Arc<dyn Transport>;
    OpenStackDriver::new(options, session(emulated_settings(), transport))
}

fn quick(from_volume: bool) -> Options {
    let mut options = options_with_floating_ips(owner("kit"));
    options.list_age = Duration::ZERO;
    options.poll.least = Duration::from_millis(20);
    change(&mut options, |pool| {
        for label in &mut pool.labels {
            label.boot_volume = from_volume.then_some(50);
        }
    });
    options
}

struct EmulatedBed {
    cloud: Arc<Emulation>,
    options: Options,
}

impl EmulatedBed {
    fn new(from_volume: bool) -> Self {
        let cloud = Arc::new(Emulation::default());
        cloud.add_stranger("np0000000001");
        cloud.add_floating_ip("somebody's own");
        Self {
            cloud,
            options: quick(from_volume),
        }
    }
}

#[async_trait]
impl Bed for EmulatedBed {
    async fn driver(&self, faults: &Faults) -> Box<dyn Driver> {
        let faulty = Faulty {
            faults: faults.clone(),
            cloud: Arc::clone(&self.cloud) as Arc<dyn Transport>,
        };
        let session = session(emulated_settings(), Arc::new(faulty));
        Box::new(OpenStackDriver::new(self.options.clone(), session))
    }

    fn setup(&self) -> Setup {
        Setup {
            owner: self.options.owner.clone(),
            pool: "main".into(),
            label: "small".into(),
            image: BootImage::Cloud,
            upload: None,
        }
    }

    async fn exists(&self) -> BTreeSet<String> {
        self.cloud.exists()
    }

    async fn used(&self) -> Resources {
        self.cloud.used()
    }

    async fn wait(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

async fn survives(suite: Suite, from_volume: bool) {
    match explore(suite, || async move { EmulatedBed::new(from_volume) }).await {
        Ok(report) => eprintln!("{} runs, {} points", report.runs, report.points),
        Err(failure) => panic!("{failure}: {}", failure.violation),
    }
}

#[tokio::test(start_paused = true)]
async fn emulated_servers_survive_faults_of_every_kind() {
    let suite = Suite {
        pairs: Some(397),
        ..Suite::default()
    };
    survives(suite, false).await;
}

#[tokio::test(start_paused = true)]
async fn emulated_servers_on_volumes_survive_faults_of_every_kind() {
    let suite = Suite {
        nodes: 1,
        ..Suite::default()
    };
    survives(suite, true).await;
}

#[tokio::test(start_paused = true)]
async fn emulated_volumes_are_counted_marked_and_removed() {
    let cloud = Arc::new(Emulation::default());
    let driver = emulated(quick(true), &cloud);
    let cost = driver.cost(&"main".into(), &"small".into()).await.unwrap();
    assert_eq!(cost.get(&"volume-gb".into()), 50.into());
    create(&driver, &order(&owner("kit"), node(1)))
        .await
        .unwrap();
    let listed = driver.list().await.unwrap();
    let volume = listed
        .iter()
        .find(|thing| thing.kind == ResourceKind::VOLUMES)
        .unwrap();
    assert!(owner("kit").owns_node(&volume.tags, node(1)));
    let server = listed
        .iter()
        .find(|thing| thing.kind == ResourceKind::INSTANCES)
        .unwrap();
    assert_eq!(server.takes, cost);

    // One that should have gone with its server is removed with the node.
    cloud.keep_volumes();
    delete_node(&driver, node(1)).await;
    assert!(cloud.volumes().is_empty());

    // Even if the server is gone.
    create(&driver, &order(&owner("kit"), node(3)))
        .await
        .unwrap();
    cloud.remove_servers();
    assert_eq!(cloud.volumes().len(), 1);
    delete_node(&driver, node(3)).await;
    assert!(cloud.volumes().is_empty());

    // One that a process did not live to delete is listed as a leak.
    create(&driver, &order(&owner("kit"), node(2)))
        .await
        .unwrap();
    let listed = driver.list().await.unwrap();
    let volume = listed
        .iter()
        .find(|thing| thing.kind == ResourceKind::VOLUMES)
        .unwrap();
    let target = Target::Resource {
        kind: volume.kind.clone(),
        id: volume.id.clone(),
    };
    delete(&driver, &target).await.unwrap();
    assert!(cloud.volumes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn emulated_floating_ip_of_a_node_is_used_again_by_it_alone() {
    let cloud = Arc::new(Emulation::default());
    let mark = |number| {
        let tags = owner("kit").node_tags(node(number), "main".into());
        serde_json::to_string(&tags.to_metadata()).unwrap()
    };
    cloud.add_floating_ip("somebody's own");
    cloud.add_floating_ip(&mark(1));
    cloud.add_floating_ip(&mark(7));
    let driver = emulated(quick(false), &cloud);
    let ips = |cloud: &Emulation| {
        cloud
            .exists()
            .iter()
            .filter(|line| line.starts_with("ip "))
            .count()
    };
    let first = create(&driver, &order(&owner("kit"), node(1)))
        .await
        .unwrap();
    assert_eq!(ips(&cloud), 3);
    assert_eq!(first.public_ipv4.as_deref(), Some("198.18.0.3"));
    assert_eq!(first.interface_ip, first.public_ipv4);
    let second = create(&driver, &order(&owner("kit"), node(2)))
        .await
        .unwrap();
    assert_eq!(ips(&cloud), 4);
    assert_ne!(first.public_ipv4, second.public_ipv4);
    delete_node(&driver, node(1)).await;
    delete_node(&driver, node(2)).await;
    let left = ["ip i-1", "ip i-3"].map(ToOwned::to_owned);
    assert_eq!(cloud.exists(), BTreeSet::from(left));
}

#[tokio::test(start_paused = true)]
async fn emulated_duplicate_that_appears_late_is_deleted() {
    let cloud = Arc::new(Emulation::default());
    let driver = emulated(quick(false), &cloud);
    let order = order(&owner("kit"), node(1));
    let progress = Progress::default();
    let mut reported = progress.subscribe();
    let duplicate = async {
        let state = reported.wait_for(|state| state.external_id.is_some()).await;
        let id = state.unwrap().external_id.clone();
        cloud.add_late(&order.tags.to_metadata());
        id
    };
    let creation = create_reporting(&driver, &order, &progress);
    let (instance, id) = tokio::join!(creation, duplicate);
    assert_eq!(Some(instance.unwrap().external_id), id);
    let listed = driver.list().await.unwrap();
    let count = |kind| listed.iter().filter(|thing| thing.kind == kind).count();
    assert_eq!(count(ResourceKind::INSTANCES), 1);
    assert_eq!(count(ResourceKind::FLOATING_IPS), 1);
}

#[tokio::test(start_paused = true)]
async fn emulated_networks_and_keys_that_are_missed_are_looked_for_again() {
    let cloud = Arc::new(Emulation::default());
    let mut options = quick(false);
    change(&mut options, |pool| {
        for label in &mut pool.labels {
            label.networks = vec!["later".into()];
            label.key_name = Some("late".into());
        }
    });
    let driver = emulated(options, &cloud);
    let ask = async || driver.cost(&"main".into(), &"small".into()).await;
    for _ in 0..20 {
        let error = ask().await.unwrap_err();
        assert!(error.to_string().contains("network \"later\""), "{error}");
    }
    // Those who miss the same share an answer.
    assert_eq!(cloud.asked("networks"), 1);
    cloud.add_network("later");
    tokio::time::sleep(Duration::from_secs(6)).await;
    let error = ask().await.unwrap_err();
    assert!(error.to_string().contains("key pair \"late\""), "{error}");
    cloud.add_key("late");
    tokio::time::sleep(Duration::from_secs(6)).await;
    ask().await.unwrap();
    // What is there is not looked for again.
    tokio::time::sleep(Duration::from_secs(6)).await;
    ask().await.unwrap();
    assert_eq!(
        (cloud.asked("networks"), cloud.asked("os-keypairs")),
        (2, 2)
    );
}

/// An administrator lists the ports and floating IPs of all projects.
#[tokio::test(start_paused = true)]
async fn emulated_ports_and_floating_ips_of_other_projects_are_not_deleted() {
    for has_project in [true, false] {
        let cloud = Arc::new(Emulation::default());
        if !has_project {
            cloud.log_in_without_project();
        }
        let interval = Duration::from_secs(600);
        let mut options = quick(false);
        options.tidy = TidyOptions {
            floating_ips: true,
            port_interval: interval,
        };
        let driver = emulated(options, &cloud);
        cloud.add_down_port("other");
        cloud.add_floating_ip_elsewhere();
        let others = cloud.exists();
        if has_project {
            cloud.add_down_port(PROJECT);
            cloud.add_floating_ip("");
        }
        driver.collect_garbage().await.unwrap();
        tokio::time::sleep(interval).await;
        driver.collect_garbage().await.unwrap();
        assert_eq!(cloud.exists(), others);
    }
}

#[tokio::test(start_paused = true)]
async fn emulated_broken_cinder_does_not_stop_the_provider() {
    for status in [403, 404, 503] {
        for from_volume in [false, true] {
            let cloud = Arc::new(Emulation::default());
            let driver = emulated(quick(from_volume), &cloud);
            let cores = ResourceName::CORES;
            let volumes: ResourceName = "volumes".into();
            if from_volume {
                let before = driver.limits().await.unwrap();
                assert_eq!(before.get(&volumes), Some(10.into()));
            }
            cloud.break_volume_service(status);
            let limits = driver.limits().await.unwrap();
            assert_eq!(limits.get(&cores), Some(20.into()), "{status}");
            // What was known remains known.
            assert_eq!(limits.get(&volumes).is_some(), from_volume, "{status}");
            let restarted = emulated(quick(from_volume), &cloud);
            assert_eq!(restarted.limits().await.unwrap().get(&volumes), None);
            if !from_volume {
                let order = order(&owner("kit"), node(1));
                create(&restarted, &order).await.unwrap();
                restarted.list().await.unwrap();
                delete_node(&restarted, node(1)).await;
            }
        }
    }
}

/// Nova removes a server whose compute host is gone at the second call.
#[tokio::test(start_paused = true)]
async fn emulated_server_that_is_stuck_in_deleting_is_deleted_again() {
    let cloud = Arc::new(Emulation::default());
    let driver = emulated(quick(false), &cloud);
    let order = order(&owner("kit"), node(1));
    create(&driver, &order).await.unwrap();
    cloud.lose_compute_host();
    let target = Target::Node {
        node: node(1),
        external_id: None,
    };
    let stuck = tokio::time::timeout(Duration::from_secs(600), driver.delete(&target));
    stuck.await.unwrap_err();
    delete(&driver, &target).await.unwrap();
    assert_eq!(cloud.exists(), BTreeSet::new());
}

#[tokio::test(start_paused = true)]
async fn emulated_launch_does_not_list_all_servers_with_each_step() {
    const OTHERS: usize = 1000;
    let cloud = Arc::new(Emulation::default());
    for number in 0..OTHERS {
        cloud.add_stranger(&format!("other-{number}"));
    }
    let mut options = quick(false);
    // Many polls before a server is active, or gone.
    options.poll.most = options.poll.least;
    let driver = emulated(options, &cloud);
    driver.list().await.unwrap();
    driver.list().await.unwrap();
    let before = cloud.listed_servers();
    for number in 1..=5 {
        create(&driver, &order(&owner("kit"), node(number)))
            .await
            .unwrap();
    }
    let listed = cloud.listed_servers() - before;
    assert!(listed < OTHERS, "{listed} servers in lists");
    for number in 1..=5 {
        delete_node(&driver, node(number)).await;
    }
    let count = driver.list().await.unwrap();
    let servers = count
        .iter()
        .filter(|thing| thing.kind == ResourceKind::INSTANCES);
    assert_eq!(servers.count(), OTHERS);
}

#[tokio::test(start_paused = true)]
async fn emulated_zone_that_is_not_available_counts_as_full_and_is_not_chosen_again() {
    for configured in [[].as_slice(), &["nova", "spare"]] {
        let cloud = Arc::new(Emulation::default());
        let mut options = quick(false);
        change(&mut options, |pool| {
            pool.availability_zones = configured.iter().map(|name| (*name).into()).collect();
        });
        let driver = emulated(options, &cloud);
        let zones = async || {
            let zones = driver.zones(&"main".into()).await.unwrap();
            zones.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(zones().await, ["nova", "spare"]);
        cloud.lose_zone("nova");
        let mut order = order(&owner("kit"), node(1));
        order.az = Some("nova".into());
        let error = driver.create(&order, &Progress::default()).await;
        assert_eq!(error.unwrap_err().class(), ErrorClass::Capacity);
        assert_eq!(zones().await, ["spare"]);
        order.az = Some("spare".into());
        create(&driver, &order).await.unwrap();
        // If none is available, the launch fails at those that are configured.
        cloud.lose_zone("spare");
        order = crate::machines::common::order(&owner("kit"), node(2));
        order.az = Some("spare".into());
        driver
            .create(&order, &Progress::default())
            .await
            .unwrap_err();
        assert_eq!(zones().await, configured);
    }
}
