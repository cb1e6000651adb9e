//! The cluster as a bed for the driver kit: every call to it may crash, get lost or be refused.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use http::Request;
use kube::client::Body;
use kube::{Client, Config};
use nodeyard_driver::kit::{Bed, Faults, Injected, Report, Setup, Suite, explore};
use nodeyard_driver::{BootImage, Driver, ErrorClass};
use nodeyard_model::Resources;
use nodeyard_testbeds::Cluster;
use serde_json::{Value, json};

use crate::caller::{PATIENCE, driver_through, options_named, owner};
use crate::service::{Answer, Between, Through, pass, refusal};

static BEDS: AtomicUsize = AtomicUsize::new(0);

/// A pool of its own for each run, in the cluster of all.
pub(crate) struct ClusterBed {
    config: Config,
    client: Client,
    system: String,
    pool: String,
    driver: &'static str,
    label: String,
}

impl ClusterBed {
    /// The driver calls the cluster with `config`; whoever looks at it from outside sees everything.
    pub(crate) async fn new(
        cluster: &'static Cluster,
        config: Config,
        driver: &'static str,
        label: String,
    ) -> Self {
        let number = BEDS.fetch_add(1, Ordering::SeqCst);
        let bed = Self {
            client: Client::try_from(crate::service::config(cluster).await).unwrap(),
            config,
            system: format!("kit{number}"),
            pool: format!("kit{number}"),
            driver,
            label,
        };
        let body = json!({"metadata": {"name": bed.strangers()}}).to_string();
        let request =
            Request::post("/api/v1/namespaces").header("content-type", "application/json");
        let made = bed
            .client
            .request::<Value>(request.body(body.into_bytes()).unwrap());
        made.await.unwrap();
        bed
    }

    /// The very name that our first node will have.
    fn strangers(&self) -> String {
        format!("{}-0000000001", self.pool)
    }

    /// What is in a list and belongs to this run.
    async fn pools_own(&self, client: &Client, path: &str) -> Vec<Value> {
        let request = Request::get(path).body(Vec::new()).unwrap();
        let mut list: Value = client.request(request).await.unwrap();
        let Value::Array(mut items) = list["items"].take() else {
            panic!("{list}");
        };
        let beginning = format!("{}-", self.pool);
        items.retain(|item| name(item).starts_with(&beginning));
        items
    }
}

fn name(item: &Value) -> String {
    item["metadata"]["name"].as_str().unwrap().to_owned()
}

#[async_trait]
impl Bed for ClusterBed {
    async fn driver(&self, faults: &Faults) -> Box<dyn Driver> {
        let connect = Through {
            config: self.config.clone(),
            between: Arc::new(FaultsBetween(faults.clone())),
        };
        let options = options_named(&self.system, self.driver, &self.pool, "small", &self.label);
        Box::new(driver_through(options, connect))
    }

    fn setup(&self) -> Setup {
        Setup {
            owner: owner(&self.system),
            pool: self.pool.as_str().into(),
            label: "small".into(),
            image: BootImage::Cloud,
            upload: None,
        }
    }

    async fn exists(&self) -> BTreeSet<String> {
        // Whoever requests projects cannot see them on their way out.
        let leaving = |item: &Value| !item["metadata"]["deletionTimestamp"].is_null();
        let mut items = self.pools_own(&self.client, "/api/v1/namespaces").await;
        items.retain(|item| self.driver != "openshift" || !leaving(item));
        items.iter().map(name).collect()
    }

    /// Clusters do not keep sums.
    async fn used(&self) -> Resources {
        Resources::default()
    }

    /// A list of projects shows what was so a moment ago.
    async fn lists_catch_up(&self) {
        if self.driver != "openshift" {
            return;
        }
        let provider = Client::try_from(self.config.clone()).unwrap();
        let path = "/apis/project.openshift.io/v1/projects";
        let deadline = Instant::now() + PATIENCE;
        loop {
            let listed = self.pools_own(&provider, path).await;
            let listed: BTreeSet<String> = listed.iter().map(name).collect();
            let mut there = self.exists().await;
            there.remove(&self.strangers());
            if listed == there {
                return;
            }
            assert!(Instant::now() < deadline, "{listed:?}, not {there:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn wait(&self, time: Duration) {
        tokio::time::sleep(time.min(Duration::from_millis(20))).await;
    }
}

/// Lets the kit strike at each call.
struct FaultsBetween(Faults);

#[async_trait]
impl Between for FaultsBetween {
    async fn call(&self, request: Request<Body>, cluster: &Client) -> Answer {
        let name = format!("{} {}", request.method(), request.uri().path());
        match self.0.call(&name, pass(request, cluster)).await {
            Ok(answer) => answer,
            Err(Injected::Lost) => Err("the connection broke".into()),
            Err(Injected::Refused(class)) => say(class),
        }
    }
}

/// How clusters tell an error of a class.
fn say(class: ErrorClass) -> Answer {
    match class {
        ErrorClass::Retry => refusal(429, "TooManyRequests", "try again"),
        ErrorClass::Failed => refusal(500, "InternalError", "Internal error occurred"),
        ErrorClass::Quota => refusal(403, "Forbidden", "exceeded quota: q"),
        ErrorClass::Capacity => refusal(
            500,
            "InternalError",
            "etcdserver: mvcc: database space exceeded",
        ),
        ErrorClass::Permanent => refusal(422, "Invalid", "it is invalid"),
        ErrorClass::Credentials => refusal(403, "Forbidden", "you may not"),
    }
}

/// Strikes at every n-th point of the life of one node.
pub(crate) async fn survive(
    cluster: &'static Cluster,
    config: Config,
    every: usize,
    driver: &'static str,
    label: &str,
) -> Report {
    let suite = Suite {
        nodes: 1,
        singles: every,
        ..Suite::default()
    };
    let bed = || ClusterBed::new(cluster, config.clone(), driver, label.to_owned());
    match explore(suite, bed).await {
        Ok(report) => {
            eprintln!("{label}: {} runs, {} points", report.runs, report.points);
            report
        }
        Err(failure) => panic!("{failure}: {}", failure.violation),
    }
}
