//! The kit on the fake driver; and the kit itself, on drivers that are wrong on purpose.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_driver::kit::{Bed, Failure, Faults, Report, Setup, Suite, explore};
use nodeyard_driver::{
    Capabilities, CreateOrder, Driver, Error, ImageTarget, Instance, Readiness, Resource, State,
    Step, Target, UploadOrder, UploadedImage,
};
use nodeyard_driver_fake::{FailureRates, Options, Simulate};
use nodeyard_model::{Label, Limits, PoolName, Resources, Timestamp};

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
    explore(suite, || async {
        SimulatedBed::new(simulate.clone(), options.clone())
    })
    .await
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
        // Whoever waits gives up before the driver does: its time is that of a busy machine.
        step_limit: Duration::from_millis(100),
        ..Suite::default()
    };
    let bed = || SimulatedBed::new(simulate(), options(|_| {})).served();
    assert!(report("over http", explore(suite, bed).await).runs > 200);
}

/// What is wrong with a driver.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Flaw {
    /// Never looks whether an earlier run made something.
    CreatesTwice,
    /// Needs the answer of create to delete.
    NeedsTheId,
    /// Is content when the cloud was told, without looking.
    ForgetsToWait,
    /// Tells the caller to try again, whatever happened.
    HidesTheClass,
    /// Deletes whatever has the right name.
    TakesOthers,
    UploadsTwice,
}

#[derive(Debug)]
struct FlawedDriver {
    driver: Box<dyn Driver>,
    flaw: Flaw,
}

#[async_trait]
impl Driver for FlawedDriver {
    fn capabilities(&self) -> Capabilities {
        self.driver.capabilities()
    }

    async fn list(&self) -> Result<Vec<Resource>, Error> {
        self.driver.list().await
    }

    async fn create(
        &self,
        order: &CreateOrder,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<Instance>, Error> {
        if self.flaw == Flaw::CreatesTwice && state.external_id.is_none() {
            *state = State::fresh();
        }
        let step = self.driver.create(order, state, now).await;
        match step {
            Err(error) if self.flaw == Flaw::HidesTheClass => Err(Error::retry(error.to_string())),
            step => step,
        }
    }

    async fn delete(
        &self,
        target: &Target,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<()>, Error> {
        if let Target::Node { node, external_id } = target {
            if self.flaw == Flaw::NeedsTheId && external_id.is_none() {
                return Ok(Step::Done(()));
            }
            if self.flaw == Flaw::TakesOthers {
                let name = format!("np{node}");
                for resource in self.driver.list().await? {
                    if resource.name.as_deref() == Some(&name) {
                        let target = Target::Resource {
                            kind: resource.kind,
                            id: resource.id,
                        };
                        self.driver
                            .delete(&target, &mut State::default(), now)
                            .await?;
                    }
                }
            }
        }
        let step = self.driver.delete(target, state, now).await?;
        Ok(match step {
            Step::Wait(_) if self.flaw == Flaw::ForgetsToWait => Step::Done(()),
            step => step,
        })
    }

    async fn limits(&self) -> Result<Limits, Error> {
        self.driver.limits().await
    }

    async fn cost(&self, pool: &PoolName, label: &Label) -> Result<Resources, Error> {
        self.driver.cost(pool, label).await
    }

    async fn zones(&self, pool: &PoolName) -> Result<Vec<Box<str>>, Error> {
        self.driver.zones(pool).await
    }

    async fn readiness(
        &self,
        pool: &PoolName,
        label: &Label,
        now: Timestamp,
    ) -> Result<Readiness, Error> {
        self.driver.readiness(pool, label, now).await
    }

    async fn upload(
        &self,
        order: &UploadOrder,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<UploadedImage>, Error> {
        if self.flaw == Flaw::UploadsTwice && state.external_id.is_none() {
            *state = State::fresh();
        }
        self.driver.upload(order, state, now).await
    }

    async fn list_images(&self) -> Result<Vec<nodeyard_driver::CloudImage>, Error> {
        self.driver.list_images().await
    }

    async fn delete_image(
        &self,
        target: &ImageTarget,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<()>, Error> {
        self.driver.delete_image(target, state, now).await
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

    fn now(&self) -> Timestamp {
        self.bed.now()
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
        (Flaw::TakesOthers, "of others, lost: [\"list"),
        (Flaw::UploadsTwice, "has 2 images"),
    ] {
        let suite = Suite {
            nodes: 1,
            uploads: 1,
            ..Suite::default()
        };
        let bed = || async {
            FlawedBed {
                bed: SimulatedBed::new(simulate(), options(|_| {})),
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
