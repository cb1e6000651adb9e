//! The driver kit: every call crashes, gets lost or is refused in its turn.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use nodeyard_driver::kit::{Bed, Faults, Setup, Suite, explore};
use nodeyard_driver::{
    BootImage, CreateOrder, Driver, Error, Instance, Machines, Progress, Resource, Target,
};
use nodeyard_driver_kubernetes::KubernetesDriver;
use nodeyard_model::{Label, Limits, PoolName, Resources};
use serde_json::{Value, json};

use crate::cluster::{ConnectEmulated, EmulatedCluster};
use crate::common::{driver_through, of_buildset, options_named, owner};

/// A cluster of its own for each run.
struct EmulatedBed {
    cluster: Arc<EmulatedCluster>,
    driver: &'static str,
    label: String,
}

/// All nodes are of one buildset.
#[derive(Debug)]
struct OfBuildset(KubernetesDriver);

impl Driver for OfBuildset {
    fn machines(&self) -> Option<&dyn Machines> {
        Some(self)
    }
}

#[async_trait]
impl Machines for OfBuildset {
    async fn create(&self, order: &CreateOrder, progress: &Progress) -> Result<Instance, Error> {
        let mut order = order.clone();
        order.request = of_buildset("b1", None);
        self.0.create(&order, progress).await
    }

    async fn delete(&self, target: &Target) -> Result<(), Error> {
        self.0.delete(target).await
    }

    async fn list(&self) -> Result<Vec<Resource>, Error> {
        self.0.list().await
    }

    async fn limits(&self) -> Result<Limits, Error> {
        self.0.limits().await
    }

    async fn cost(&self, pool: &PoolName, label: &Label) -> Result<Resources, Error> {
        self.0.cost(pool, label).await
    }
}

impl EmulatedBed {
    fn new(driver: &'static str, label: &str) -> Self {
        let cluster = Arc::new(EmulatedCluster::default());
        // For one driver the project of its pool, for the other a stranger with the name of our first node.
        cluster.add_namespace("main", &Value::Null);
        cluster.add_namespace("main-0000000001", &Value::Null);
        cluster.add_namespace("edge", &Value::Null);
        cluster.add(
            "/apis/gateway.networking.k8s.io/v1/namespaces/edge/gateways",
            json!({"metadata": {"name": "tcp"}, "status": {"addresses": [{"value": "gateway.example"}]}}),
        );
        Self {
            cluster,
            driver,
            label: label.to_owned(),
        }
    }
}

#[async_trait]
impl Bed for EmulatedBed {
    async fn driver(&self, faults: &Faults) -> Box<dyn Driver> {
        let connect = ConnectEmulated {
            cluster: Arc::clone(&self.cluster),
            faults: faults.clone(),
        };
        let options = options_named("emulated", self.driver, "main", "small", &self.label);
        Box::new(OfBuildset(driver_through(options, connect)))
    }

    fn setup(&self) -> Setup {
        Setup {
            owner: owner("emulated"),
            pool: "main".into(),
            label: "small".into(),
            image: BootImage::Cloud,
            upload: None,
        }
    }

    async fn exists(&self) -> BTreeSet<String> {
        if !self.label.contains("expose: forward") {
            return self.cluster.exists();
        }
        let mut tunnels = listeners(TUNNELS);
        let deadline = Instant::now() + PATIENCE;
        // A port is free a moment after its tunnel has been closed.
        while !tunnels.is_empty() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(1)).await;
            tunnels = listeners(TUNNELS);
        }
        let mut all = self.cluster.exists();
        all.extend(tunnels);
        all
    }

    async fn used(&self) -> Resources {
        Resources::default()
    }

    async fn wait(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// An address of this machine that nothing but the tunnels of these tests listens at.
const TUNNELS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 77);
const PATIENCE: Duration = Duration::from_secs(5);

/// The ports of an address that somebody listens at.
fn listeners(address: Ipv4Addr) -> BTreeSet<String> {
    const LISTENS: &str = "0A";
    let host = format!("{:08X}", u32::from_le_bytes(address.octets()));
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let sockets = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    sockets
        .filter(|fields| fields[3] == LISTENS && fields[1].starts_with(&host))
        .map(|fields| format!("tunnel at {}", fields[1]))
        .collect()
}

const EMULATED: Suite = Suite {
    nodes: 2,
    uploads: 0,
    singles: 1,
    pairs: None,
};

async fn survive(suite: Suite, driver: &'static str, label: &str) {
    match explore(suite, || async { EmulatedBed::new(driver, label) }).await {
        Ok(report) => {
            eprintln!("{driver}: {} runs, {} points", report.runs, report.points);
            assert!(report.runs > 300);
        }
        Err(failure) => panic!("{failure}: {}", failure.violation),
    }
}

#[tokio::test(start_paused = true)]
async fn emulated_pods_survive_every_fault() {
    survive(
        EMULATED,
        "kubernetes",
        "type: pod, image: i, cpu: 2, memory: 512",
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn emulated_namespaces_with_everything_survive_every_fault() {
    let label =
        "type: namespace, token-ttl: 3600, deny-network: true, namespace-quota: {pods: '1'}";
    survive(EMULATED, "kubernetes", label).await;
}

#[tokio::test(start_paused = true)]
async fn emulated_projects_survive_every_fault() {
    survive(
        EMULATED,
        "openshift",
        "type: project, registry-access: none",
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn emulated_shared_pods_survive_every_fault() {
    survive(EMULATED, "openshiftpods", "image: i, cpu: 1").await;
}

/// No other test has tunnels at this address.
#[tokio::test(start_paused = true)]
async fn emulated_pods_behind_tunnels_survive_every_fault() {
    let label = format!(
        "type: pod, image: i, ssh: {{expose: forward, external-address: {TUNNELS}, host-key-checking: false}}"
    );
    survive(EMULATED, "kubernetes", &label).await;
}

#[tokio::test(start_paused = true)]
async fn emulated_pods_behind_a_gateway_survive_every_fault() {
    let label = "type: pod, image: i, ssh: {expose: gateway, gateway: {name: tcp, namespace: edge}, \
                 port-range: [2200, 2209], host-key-checking: false}";
    survive(EMULATED, "kubernetes", label).await;
}

#[tokio::test(start_paused = true)]
async fn emulated_shared_pods_behind_a_gateway_survive_every_fault() {
    let label = "image: i, ssh: {expose: gateway, gateway: {name: tcp, namespace: edge}, \
                 port-range: [2200, 2209], host-key-checking: false}";
    survive(EMULATED, "openshiftpods", label).await;
}

#[tokio::test(start_paused = true)]
async fn emulated_pods_of_a_buildset_survive_every_fault() {
    let label = "type: pod, image: i, cpu: 1, share: buildset";
    survive(EMULATED, "kubernetes", label).await;
}

#[tokio::test(start_paused = true)]
async fn emulated_peers_survive_every_fault() {
    let label = "type: namespace, buildset-peer-access: services";
    survive(EMULATED, "kubernetes", label).await;
}

#[tokio::test(start_paused = true)]
async fn an_emulated_pod_survives_two_faults_in_a_row() {
    let suite = Suite {
        nodes: 1,
        pairs: Some(7),
        ..EMULATED
    };
    survive(suite, "kubernetes", "type: pod, image: i").await;
}
