//! The driver kit on the real services: a share of the faults, for each run takes the cloud some seconds.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_driver::kit::{Bed, Faults, Setup, Suite, explore};
use nodeyard_driver::{BootImage, Driver};
use nodeyard_driver_openstack::{OpenStackDriver, Options};
use nodeyard_model::Resources;
use nodeyard_openstack::Http;
use nodeyard_testbeds::openstack::{Project, Service};
use serde_json::{Value, json};

use crate::machines::common::{cloud, options_with_floating_ips, owner, session, settings};
use crate::machines::faults::Faulty;

static BEDS: AtomicUsize = AtomicUsize::new(0);

/// The project of all runs, each with an installation of its own.
struct ProjectBed {
    project: Arc<Project>,
    options: Options,
}

impl ProjectBed {
    fn new(project: &Arc<Project>) -> Self {
        let number = BEDS.fetch_add(1, Ordering::SeqCst);
        Self {
            project: Arc::clone(project),
            options: options_with_floating_ips(owner(&format!("kit{number}"))),
        }
    }
}

fn lines(kind: &str, things: &[Value]) -> Vec<String> {
    things
        .iter()
        .map(|thing| format!("{kind} {}", thing["id"]))
        .collect()
}

#[async_trait]
impl Bed for ProjectBed {
    async fn driver(&self, faults: &Faults) -> Box<dyn Driver> {
        let settings = settings(&self.project.clouds_yaml());
        let http = Http::new(&settings.tls).unwrap();
        let faulty = Faulty {
            faults: faults.clone(),
            cloud: Arc::new(http),
        };
        let session = session(settings, Arc::new(faulty));
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
        let project = &self.project;
        let servers = lines("server", &project.servers().unwrap());
        let ports = lines("port", &project.ports().unwrap());
        let ips = lines("ip", &project.floating_ips().unwrap());
        servers.into_iter().chain(ports).chain(ips).collect()
    }

    async fn used(&self) -> Resources {
        let limits = self
            .project
            .member()
            .get(Service::Compute, "/limits")
            .unwrap();
        let used = |key: &str| limits["limits"]["absolute"][key].as_i64().unwrap();
        Resources::new(
            used("totalCoresUsed"),
            used("totalInstancesUsed"),
            used("totalRAMUsed"),
        )
    }

    async fn wait(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// A server of somebody else, with the very name that our first node will have.
fn add_stranger(project: &Project, image: &str) {
    let flavors = project
        .member()
        .list(Service::Compute, "/flavors", "flavors")
        .unwrap();
    let flavor = flavors
        .iter()
        .find(|flavor| flavor["name"] == "tiny")
        .unwrap();
    let server = json!({"server": {
        "name": "np0000000001", "imageRef": image, "flavorRef": flavor["id"],
        "networks": [{"uuid": project.network()}],
        "metadata": {"nodepool_provider_name": "cloud", "nodepool_node_id": "0000000001"},
    }});
    project
        .member()
        .post(Service::Compute, "/servers", &server)
        .unwrap();
    let is_up = || {
        project
            .servers()
            .unwrap()
            .iter()
            .all(|server| server["status"] == "ACTIVE")
    };
    while !is_up() {
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_survive_faults_of_every_kind() {
    let Some(cloud) = cloud() else { return };
    let project = Arc::new(cloud.project("kit").unwrap());
    project.connect_outside().unwrap();
    let image = project.create_image("disk", json!({})).unwrap();
    add_stranger(&project, &image);
    let suite = Suite {
        nodes: 1,
        singles: 47,
        ..Suite::default()
    };
    match explore(suite, || async { ProjectBed::new(&project) }).await {
        Ok(report) => {
            eprintln!("{} runs, {} points", report.runs, report.points);
            assert!(report.runs > 5);
        }
        Err(failure) => panic!("{failure}: {}", failure.violation),
    }
}
