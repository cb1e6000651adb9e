//! The kit: all of it on an emulated runtime in simulated time; crashes at every call on real runtimes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_driver::kit::{Bed, Faults, Injected, Setup, Suite, explore};
use nodeyard_driver::{BootImage, Driver, ErrorClass, Machines, Progress};
use nodeyard_driver_container::{
    ContainerAccess, Options, RuntimeCall, RuntimeCallError, RuntimeResponse, RuntimeTransport,
    Socket,
};
use nodeyard_model::{ImageName, Resources};
use nodeyard_testbeds::ContainerRuntime;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::Notify;

use crate::common::{
    IMAGE, count, delete, driver, driver_through, on_both_runtimes, options, order, owner,
};
use crate::emulated::EmulatedRuntime;

on_both_runtimes!(nothing_is_left_of_a_process_that_died_at_any_call,);

const SYSTEM: &str = "ours";

struct EmulatedBed {
    runtime: Arc<EmulatedRuntime>,
    files: TempDir,
}

impl EmulatedBed {
    /// With containers of another installation that have the names and ids of ours.
    fn new() -> Self {
        let runtime = EmulatedRuntime::with_image(IMAGE);
        for number in 1..4 {
            let mut tags = order(SYSTEM, number).tags;
            tags.system = None;
            let body = json!({"Labels": tags.to_metadata(), "Image": "sha256:theirs"});
            runtime.create(&format!("np{number:010}-{SYSTEM}"), &body);
        }
        let files = tempfile::tempdir().unwrap();
        std::fs::write(files.path().join("tiny.tar"), [0; 1024]).unwrap();
        Self {
            runtime: Arc::new(runtime),
            files,
        }
    }

    fn options() -> Options {
        options(SYSTEM, |label| {
            label.authorized_keys = vec!["ssh-ed25519 AAAA".into()];
            label.host_key_checking = false;
            label.cpus = Some(0.25);
            label.memory = Some(32);
        })
    }
}

#[async_trait]
impl Bed for EmulatedBed {
    async fn driver(&self, faults: &Faults) -> Box<dyn Driver> {
        let transport = FaultyTransport {
            runtime: Arc::clone(&self.runtime),
            faults: faults.clone(),
        };
        Box::new(driver_through(Self::options(), Arc::new(transport)))
    }

    fn setup(&self) -> Setup {
        Setup {
            owner: owner(SYSTEM),
            pool: "main".into(),
            label: "small".into(),
            image: BootImage::Cloud,
            upload: Some((
                ImageName::new("tiny").unwrap(),
                self.files.path().join("tiny.tar"),
                "tar".into(),
            )),
        }
    }

    async fn exists(&self) -> BTreeSet<String> {
        self.runtime.exists().into_iter().collect()
    }

    /// Runtimes do not keep sums.
    async fn used(&self) -> Resources {
        Resources::default()
    }

    async fn wait(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// Lets the kit strike at each call.
#[derive(Debug)]
struct FaultyTransport {
    runtime: Arc<EmulatedRuntime>,
    faults: Faults,
}

#[async_trait]
impl RuntimeTransport for FaultyTransport {
    async fn call(&self, call: RuntimeCall) -> Result<RuntimeResponse, RuntimeCallError> {
        let name = call.name;
        match self.faults.call(name, self.runtime.call(call)).await {
            Ok(response) => response,
            Err(Injected::Lost) => Err(RuntimeCallError::Disconnected(None)),
            Err(Injected::Refused(class)) => Ok(refusal(class)),
        }
    }
}

/// Returns a refusal of the given class, as runtimes respond.
fn refusal(class: ErrorClass) -> RuntimeResponse {
    let (status, message) = match class {
        ErrorClass::Retry => (503, "try again"),
        ErrorClass::Failed => (500, "database is locked"),
        ErrorClass::Quota => (
            500,
            "no available IPv4 addresses on this network's address pools",
        ),
        ErrorClass::Capacity => (500, "write /var/tmp/x: no space left on device"),
        ErrorClass::Permanent => (400, "invalid parameter"),
        ErrorClass::Credentials => (403, "not allowed by policy"),
    };
    RuntimeResponse {
        status,
        body: format!(r#"{{"message": "{message}"}}"#).into(),
    }
}

async fn kit(name: &str, suite: Suite) -> usize {
    match explore(suite, || async { EmulatedBed::new() }).await {
        Ok(report) => {
            eprintln!("{name}: {} runs, {} points", report.runs, report.points);
            report.runs
        }
        Err(failure) => panic!("{failure}: {}", failure.violation),
    }
}

const SUITE: Suite = Suite {
    nodes: 2,
    uploads: 0,
    singles: 1,
    pairs: None,
};

#[tokio::test(start_paused = true)]
async fn emulated_nodes_survive_every_fault() {
    assert!(kit("two nodes", SUITE).await > 300);
}

#[tokio::test(start_paused = true)]
async fn emulated_uploads_survive_every_fault() {
    let suite = Suite {
        nodes: 0,
        uploads: 2,
        ..SUITE
    };
    assert!(kit("two uploads", suite).await > 100);
}

#[tokio::test(start_paused = true)]
async fn an_emulated_node_and_upload_survive_two_faults_in_a_row() {
    let suite = Suite {
        nodes: 1,
        uploads: 1,
        pairs: Some(11),
        ..SUITE
    };
    assert!(kit("pairs", suite).await > 1000);
}

/// Dies at one of the calls: just before it, or just after.
#[derive(Debug)]
struct Mortal {
    socket: Socket,
    calls: AtomicUsize,
    death: usize,
    after: bool,
    died: Notify,
}

#[async_trait]
impl RuntimeTransport for Mortal {
    async fn call(&self, call: RuntimeCall) -> Result<RuntimeResponse, RuntimeCallError> {
        let number = self.calls.fetch_add(1, Ordering::SeqCst);
        if number == self.death {
            if self.after {
                let _unheard = self.socket.call(call).await;
            }
            self.died.notify_one();
            return std::future::pending().await;
        }
        self.socket.call(call).await
    }
}

/// The successor of a killed process knows only the id of the node, and deletes everything.
async fn nothing_is_left_of_a_process_that_died_at_any_call(runtime: &ContainerRuntime) {
    let system = "mortal";
    let make = || options(system, |label| label.access = ContainerAccess::Exec);
    let order = order(system, 1);
    for death in 0.. {
        let mut reached = false;
        for after in [false, true] {
            let mortal = Arc::new(Mortal {
                socket: Socket::new(runtime.socket()),
                calls: AtomicUsize::new(0),
                death,
                after,
                died: Notify::new(),
            });
            let doomed = driver_through(make(), Arc::clone(&mortal) as Arc<dyn RuntimeTransport>);
            let progress = Progress::default();
            reached |= tokio::select! {
                created = doomed.create(&order, &progress) => created.map(|_| false).unwrap(),
                () = mortal.died.notified() => true,
            };
            let successor = driver(runtime, make());
            delete(&successor, &order).await;
            assert_eq!(
                count(&successor, system).await,
                0,
                "death at {death}, after: {after}"
            );
        }
        if !reached {
            assert!(death > 4);
            return;
        }
    }
}
