//! The kit with the fake driver, and the kit itself with drivers that are wrong on purpose.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_driver::kit::{Bed, Failure, Faults, Report, Setup, Suite, explore};
use nodeyard_driver::{
    CloudImage, CreateOrder, Driver, Error, ImageTarget, Images, Instance, Machines, Poll,
    Progress, Resource, Target, UploadOrder, UploadedImage,
};
use nodeyard_driver_fake::{FailureRates, Options, Simulate, Span};
use nodeyard_model::{Label, Limits, PoolName, Resources};
use tokio::time::timeout;

use crate::common::{SimulatedBed, options, simulate};

fn report(name: &str, result: Result<Report, Failure>) -> Report {
    match result {
        Ok(report) => {
            eprintln!("{name}: {} runs, {} points", report.runs, report.points);
            report
        }
        Err(failure) => panic!("{failure}: {}", failure.violation),
    }
}

async fn kit(suite: Suite, simulate: &Simulate, options: &Options) -> Result<Report, Failure> {
    let bed = || SimulatedBed::new(simulate.clone(), options.clone());
    explore(suite, bed).await
}

#[tokio::test(start_paused = true)]
async fn nodes_survive_every_fault() {
    let result = kit(Suite::default(), &simulate(), &options(|_| {})).await;
    assert!(report("two nodes", result).runs > 200);
}

#[tokio::test(start_paused = true)]
async fn nodes_of_several_parts_survive_every_fault() {
    let options = options(|label| {
        label.boot_volume = Some(30);
        label.networks = vec!["fake-nat-network-name".into()];
    });
    let result = kit(Suite::default(), &simulate(), &options).await;
    assert!(report("server, volume, floating ip", result).runs > 300);
}

#[tokio::test(start_paused = true)]
async fn uploads_survive_every_fault() {
    let suite = Suite {
        nodes: 0,
        uploads: 2,
        ..Suite::default()
    };
    assert!(
        report(
            "two uploads",
            kit(suite, &simulate(), &options(|_| {})).await
        )
        .runs
            > 100
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_and_an_upload_survive_two_faults_in_a_row() {
    let suite = Suite {
        nodes: 1,
        uploads: 1,
        // All combinations would be fifty thousand runs.
        pairs: Some(29),
        ..Suite::default()
    };
    let options = options(|label| label.networks = vec!["fake-nat-network-name".into()]);
    assert!(report("pairs", kit(suite, &simulate(), &options).await).runs > 1000);
}

/// The cloud fails by chance, besides the faults of the kit.
#[tokio::test(start_paused = true)]
async fn nodes_survive_a_bad_cloud() {
    for seed in 0..4 {
        let mut simulate = simulate();
        simulate.seed = seed;
        let rates = |class: &str| FailureRates {
            error: 0.05,
            lost: 0.05,
            class: class.to_owned(),
            ..FailureRates::default()
        };
        let half_made = FailureRates {
            lost: 0.0,
            ..rates("OpenStackCloudCreateException")
        };
        simulate.failures = [
            ("create_server", half_made),
            ("boot", rates("NoValidHost")),
            ("get_server", rates("HttpException")),
            ("delete_server", rates("HttpException")),
        ]
        .map(|(call, rates)| (call.to_owned(), rates))
        .into();
        let suite = Suite {
            nodes: 1,
            ..Suite::default()
        };
        report("bad cloud", kit(suite, &simulate, &options(|_| {})).await);
    }
}

/// The cloud as a server of its own, as it is in crash tests of whole daemons.
#[tokio::test]
async fn nodes_survive_every_fault_over_http() {
    let suite = Suite {
        nodes: 1,
        ..Suite::default()
    };
    // Real time passes.
    let mut simulate = simulate();
    simulate.boot_time = Span::exactly(Duration::from_millis(3));
    simulate.delete_time = Span::exactly(Duration::from_millis(2));
    let mut options = options(|_| {});
    options.poll = Poll {
        least: Duration::from_millis(2),
        ..Poll::default()
    };
    let bed = || async {
        let bed = SimulatedBed::new(simulate.clone(), options.clone()).await;
        bed.served().await
    };
    assert!(report("over http", explore(suite, bed).await).runs > 200);
}

/// What is wrong with a driver.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Flaw {
    /// Never looks for what an earlier attempt created.
    CreatesTwice,
    /// Does not delete without the id.
    NeedsTheId,
    /// Returns before the machine is deleted.
    ForgetsToWait,
    /// Turns all errors into errors of class retry.
    HidesTheClass,
    /// Deletes machines of others that have the right name.
    DeletesByName,
    /// Believes that a cancelled creation is still under way.
    StaysBusy,
    UploadsTwice,
}

#[derive(Debug)]
struct FlawedDriver {
    driver: Box<dyn Driver>,
    flaw: Flaw,
    busy: AtomicBool,
}

impl Driver for FlawedDriver {
    fn machines(&self) -> Option<&dyn Machines> {
        Some(self)
    }

    fn images(&self) -> Option<&dyn Images> {
        Some(self)
    }
}

impl FlawedDriver {
    fn correct_machines(&self) -> &dyn Machines {
        self.driver.machines().unwrap()
    }

    fn correct_images(&self) -> &dyn Images {
        self.driver.images().unwrap()
    }
}

#[async_trait]
impl Machines for FlawedDriver {
    async fn create(&self, order: &CreateOrder, progress: &Progress) -> Result<Instance, Error> {
        let mut order = order.clone();
        order.first_attempt |= self.flaw == Flaw::CreatesTwice;
        if self.flaw == Flaw::StaysBusy && self.busy.swap(true, SeqCst) {
            pending::<()>().await;
        }
        let result = self.correct_machines().create(&order, progress).await;
        self.busy.store(false, SeqCst);
        match result {
            Err(error) if self.flaw == Flaw::HidesTheClass => Err(Error::retry(error.to_string())),
            result => result,
        }
    }

    async fn delete(&self, target: &Target) -> Result<(), Error> {
        if let Target::Node { node, external_id } = target {
            if self.flaw == Flaw::NeedsTheId && external_id.is_none() {
                return Ok(());
            }
            if self.flaw == Flaw::DeletesByName {
                let name = format!("np{node}");
                for resource in self.list().await? {
                    if resource.name.as_deref() == Some(&name) {
                        let target = Target::Resource {
                            kind: resource.kind,
                            id: resource.id,
                        };
                        self.correct_machines().delete(&target).await?;
                    }
                }
            }
        }
        let delete = self.correct_machines().delete(target);
        if self.flaw == Flaw::ForgetsToWait {
            let moment = Duration::from_millis(1);
            return timeout(moment, delete).await.unwrap_or(Ok(()));
        }
        delete.await
    }

    async fn list(&self) -> Result<Vec<Resource>, Error> {
        self.correct_machines().list().await
    }

    async fn limits(&self) -> Result<Limits, Error> {
        self.correct_machines().limits().await
    }

    async fn cost(&self, pool: &PoolName, label: &Label) -> Result<Resources, Error> {
        self.correct_machines().cost(pool, label).await
    }
}

#[async_trait]
impl Images for FlawedDriver {
    async fn upload(
        &self,
        order: &UploadOrder,
        progress: &Progress,
    ) -> Result<UploadedImage, Error> {
        let mut order = order.clone();
        order.first_attempt |= self.flaw == Flaw::UploadsTwice;
        self.correct_images().upload(&order, progress).await
    }

    async fn delete_image(&self, target: &ImageTarget) -> Result<(), Error> {
        self.correct_images().delete_image(target).await
    }

    async fn list_images(&self) -> Result<Vec<CloudImage>, Error> {
        self.correct_images().list_images().await
    }
}

struct FlawedBed {
    bed: SimulatedBed,
    flaw: Flaw,
}

#[async_trait]
impl Bed for FlawedBed {
    async fn driver(&self, faults: &Faults) -> Box<dyn Driver> {
        Box::new(FlawedDriver {
            driver: self.bed.driver(faults).await,
            flaw: self.flaw,
            busy: AtomicBool::new(false),
        })
    }

    fn setup(&self) -> Setup {
        self.bed.setup()
    }

    async fn exists(&self) -> BTreeSet<String> {
        self.bed.exists().await
    }

    async fn used(&self) -> Resources {
        self.bed.used().await
    }

    async fn wait(&self, time: Duration) {
        self.bed.wait(time).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_kit_catches_drivers_that_are_wrong() {
    for (flaw, expected) in [
        (Flaw::CreatesTwice, "has 2 instances"),
        (Flaw::NeedsTheId, "2 instances for 1 nodes"),
        (Flaw::ForgetsToWait, "left over"),
        (Flaw::HidesTheClass, "the driver said retry"),
        (Flaw::DeletesByName, "of others, lost: [\"list"),
        (Flaw::StaysBusy, "no end after 600s"),
        (Flaw::UploadsTwice, "has 2 images"),
    ] {
        let suite = Suite {
            nodes: 1,
            uploads: 1,
            ..Suite::default()
        };
        let bed = || async {
            FlawedBed {
                bed: SimulatedBed::new(simulate(), options(|_| {})).await,
                flaw,
            }
        };
        let failure = explore(suite, bed).await.expect_err("this driver is wrong");
        let violation = failure.violation.to_string();
        assert!(
            violation.contains(expected),
            "{flaw:?}: {failure}: {violation}"
        );
    }
}
