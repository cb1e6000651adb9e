//! The kit, with real machines and files, and with things of others among them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_driver::kit::{Bed, Failure, Faults, Injected, Report, Setup, Suite, explore};
use nodeyard_driver::{BootImage, Driver, Error, SystemId};
use nodeyard_driver_qemu::{
    Answering, DiskFormat, Endpoint, Host, LocalHost, LocalId, Machine, QemuDriver, Recipe, Stop,
    Upload, UploadStatus, Vitals,
};
use nodeyard_model::{ImageName, Resources, Timestamp};

use crate::common::{Yard, now, order, owner};

/// A host whose calls meet faults.
#[derive(Debug)]
struct FaultyHost {
    host: LocalHost,
    faults: Faults,
}

impl FaultyHost {
    async fn pass<T>(
        &self,
        name: &str,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        match self.faults.call(name, call).await {
            Ok(answer) => answer,
            Err(Injected::Lost) => Err(Error::retry("the answer is lost")),
            Err(Injected::Refused(class)) => Err(Error::new(class, "refused")),
        }
    }
}

#[async_trait]
impl Host for FaultyHost {
    async fn machines(&self) -> Result<Vec<Machine>, Error> {
        self.pass("machines", self.host.machines()).await
    }

    async fn record(&self, machine: &Machine) -> Result<(), Error> {
        self.pass("record", self.host.record(machine)).await
    }

    async fn start(&self, machine: &Machine, recipe: &Recipe) -> Result<(), Error> {
        self.pass("start", self.host.start(machine, recipe)).await
    }

    async fn look(&self, machine: &Machine, guest_port: u16) -> Result<Vitals, Error> {
        self.pass("look", self.host.look(machine, guest_port)).await
    }

    async fn is_up(&self, machine: &Machine) -> Result<bool, Error> {
        self.pass("is_up", self.host.is_up(machine)).await
    }

    async fn reject_kvm(&self, machine: &Machine, reason: &str) -> Result<bool, Error> {
        self.pass("reject_kvm", self.host.reject_kvm(machine, reason))
            .await
    }

    async fn stop(&self, machine: &Machine, how: Stop) -> Result<(), Error> {
        self.pass("stop", self.host.stop(machine, how)).await
    }

    async fn discard(&self, machine: &Machine) -> Result<(), Error> {
        self.pass("discard", self.host.discard(machine)).await
    }

    async fn uploads(&self) -> Result<Vec<Upload>, Error> {
        self.pass("uploads", self.host.uploads()).await
    }

    async fn record_upload(&self, upload: &Upload) -> Result<(), Error> {
        self.pass("record_upload", self.host.record_upload(upload))
            .await
    }

    async fn place(&self, upload: &Upload, source: &Path) -> Result<(), Error> {
        self.pass("place", self.host.place(upload, source)).await
    }

    async fn discard_upload(&self, upload: &Upload) -> Result<(), Error> {
        self.pass("discard_upload", self.host.discard_upload(upload))
            .await
    }

    fn upload_path(&self, upload: &Upload) -> PathBuf {
        self.host.upload_path(upload)
    }

    async fn files(&self) -> Result<Vec<PathBuf>, Error> {
        self.host.files().await
    }

    async fn hear(&self, endpoint: Endpoint) -> Answering {
        self.host.hear(endpoint).await
    }

    async fn evidence(&self, machine: &LocalId) -> Result<String, Error> {
        self.host.evidence(machine).await
    }

    async fn log(&self, machine: &LocalId) -> String {
        self.host.log(machine).await
    }

    async fn halted(&self, machine: &LocalId) {
        self.host.halted(machine).await;
    }

    async fn stopped(&self, machine: &LocalId) {
        self.host.stopped(machine).await;
    }

    async fn tidy(&self, now: Timestamp) -> Result<usize, Error> {
        self.host.tidy(now).await
    }
}

struct LocalBed {
    yard: Yard,
    /// A process of another installation, with the command line that ours have.
    other: Child,
}

impl LocalBed {
    async fn new() -> Self {
        let yard = Yard::new();
        let host = LocalHost::new(yard.shared_options());
        let mut last = None;
        for number in 1..4 {
            let mut tags = order(number).tags;
            tags.system = Some(SystemId::new("theirs"));
            let id = LocalId::new(&order(number).hostname());
            let machine = Machine {
                id: id.clone(),
                name: order(number).hostname().into(),
                tags,
                upload: None,
                cpus: 1,
                memory: 32,
                mac: "52:54:00:00:00:01".into(),
                created: now(),
                going: false,
                process: None,
            };
            host.record(&machine).await.unwrap();
            last = Some(id);
            let mut tags = owner().upload_tags(
                nodeyard_model::BuildId::from_u128(0x11d),
                format!("{number:010}").parse().unwrap(),
            );
            tags.system = Some(SystemId::new("theirs"));
            let upload = Upload {
                id: LocalId::new("image"),
                name: "image".into(),
                format: DiskFormat::Raw,
                tags,
                metadata: Default::default(),
                created: now(),
                status: UploadStatus::Active,
            };
            host.record_upload(&upload).await.unwrap();
        }
        let other = Command::new("sh")
            .args(["-c", "read x", "-name", last.unwrap().as_str()])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        Self { yard, other }
    }
}

impl Drop for LocalBed {
    fn drop(&mut self) {
        let _ended = self.other.kill();
        let _reaped = self.other.wait();
    }
}

#[async_trait]
impl Bed for LocalBed {
    async fn driver(&self, faults: &Faults) -> Box<dyn Driver> {
        let options = self.yard.shared_options();
        let host = FaultyHost {
            host: LocalHost::new(Arc::clone(&options)),
            faults: faults.clone(),
        };
        Box::new(QemuDriver::on(options, Arc::new(host)))
    }

    fn setup(&self) -> Setup {
        let image = self.yard.path().join("empty.raw");
        Setup {
            owner: owner(),
            pool: "main".into(),
            label: "small".into(),
            image: BootImage::Cloud,
            upload: Some((ImageName::new("image").unwrap(), image, "raw".into())),
        }
    }

    async fn exists(&self) -> BTreeSet<String> {
        let machines = self
            .yard
            .names("machines")
            .into_iter()
            .map(|name| format!("machine {name}"));
        let uploads = self
            .yard
            .names("uploads")
            .into_iter()
            .map(|name| format!("upload {name}"));
        let processes = self
            .yard
            .processes()
            .into_iter()
            .map(|pid| format!("process {pid}"));
        let alive = std::fs::read_to_string(format!("/proc/{}/stat", self.other.id()))
            .is_ok_and(|stat| !stat.contains(") Z "));
        let other = alive.then(|| "the process of another".to_owned());
        machines
            .chain(uploads)
            .chain(processes)
            .chain(other)
            .collect()
    }

    async fn used(&self) -> Resources {
        let count = i64::try_from(self.yard.processes().len()).unwrap();
        Resources::new(count, count, count * 32)
    }

    fn now(&self) -> Timestamp {
        now()
    }

    /// Nothing here takes longer because it is looked at more often.
    async fn wait(&self, time: Duration) {
        tokio::time::sleep(time.min(Duration::from_millis(50))).await;
    }
}

fn report(name: &str, result: Result<Report, Failure>) -> Report {
    match result {
        Ok(report) => {
            eprintln!("{name}: {} runs, {} points", report.runs, report.points);
            report
        }
        Err(failure) => panic!("{failure}: {}", failure.violation),
    }
}

#[tokio::test]
async fn machines_survive_every_fault() {
    let suite = Suite {
        nodes: 1,
        step_limit: Duration::from_millis(100),
        // All combinations would be nine thousand runs.
        pairs: Some(149),
        ..Suite::default()
    };
    assert!(report("one machine", explore(suite, LocalBed::new).await).runs > 100);
}

#[tokio::test]
async fn uploads_survive_every_fault() {
    let suite = Suite {
        nodes: 0,
        uploads: 2,
        step_limit: Duration::from_millis(100),
        singles: 1,
        pairs: Some(97),
    };
    assert!(report("two uploads", explore(suite, LocalBed::new).await).runs > 100);
}
