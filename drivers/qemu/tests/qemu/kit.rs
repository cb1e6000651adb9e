//! The kit, with real machines and files, and with those of other installations among them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_driver::kit::{Bed, Failure, Faults, Injected, Report, Setup, Suite, explore};
use nodeyard_driver::{BootImage, Clock, Driver, Error, Progress, SystemId};
use nodeyard_driver_qemu::{
    DiskFormat, GuestEndpoint, LocalHost, LocalId, MachineSpec, MachineStatus, QemuDriver,
    QemuHost, QemuMachine, StopMethod, StoredUpload, UploadStatus,
};
use nodeyard_model::{ImageName, Resources, Timestamp};

use crate::common::{Yard, order, owner};

/// Injects faults into the calls of a host.
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
impl QemuHost for FaultyHost {
    async fn machines(&self) -> Result<Vec<QemuMachine>, Error> {
        self.pass("machines", self.host.machines()).await
    }

    async fn write_machine(&self, machine: &QemuMachine) -> Result<(), Error> {
        self.pass("write_machine", self.host.write_machine(machine))
            .await
    }

    async fn start(&self, machine: &QemuMachine, spec: &MachineSpec) -> Result<(), Error> {
        self.pass("start", self.host.start(machine, spec)).await
    }

    async fn status(&self, machine: &QemuMachine, guest_port: u16) -> Result<MachineStatus, Error> {
        self.pass("status", self.host.status(machine, guest_port))
            .await
    }

    async fn is_running(&self, machine: &QemuMachine) -> Result<bool, Error> {
        self.pass("is_running", self.host.is_running(machine)).await
    }

    async fn reject_kvm(&self, machine: &QemuMachine, reason: &str) -> Result<bool, Error> {
        self.pass("reject_kvm", self.host.reject_kvm(machine, reason))
            .await
    }

    async fn stop(&self, machine: &QemuMachine, method: StopMethod) -> Result<(), Error> {
        self.pass("stop", self.host.stop(machine, method)).await
    }

    async fn remove_machine(&self, machine: &QemuMachine) -> Result<(), Error> {
        self.pass("remove_machine", self.host.remove_machine(machine))
            .await
    }

    async fn uploads(&self) -> Result<Vec<StoredUpload>, Error> {
        self.pass("uploads", self.host.uploads()).await
    }

    async fn write_upload(&self, upload: &StoredUpload) -> Result<(), Error> {
        self.pass("write_upload", self.host.write_upload(upload))
            .await
    }

    async fn store_upload(
        &self,
        upload: &StoredUpload,
        source: &Path,
        progress: &Progress,
    ) -> Result<(), Error> {
        let call = self.host.store_upload(upload, source, progress);
        self.pass("store_upload", call).await
    }

    async fn remove_upload(&self, upload: &StoredUpload) -> Result<(), Error> {
        self.pass("remove_upload", self.host.remove_upload(upload))
            .await
    }

    fn upload_path(&self, upload: &StoredUpload) -> PathBuf {
        self.host.upload_path(upload)
    }

    async fn image_files(&self) -> Result<Vec<PathBuf>, Error> {
        self.host.image_files().await
    }

    async fn greets(&self, endpoint: GuestEndpoint) -> bool {
        self.host.greets(endpoint).await
    }

    async fn evidence(&self, machine: &LocalId) -> Result<String, Error> {
        self.host.evidence(machine).await
    }

    async fn qemu_log(&self, machine: &LocalId) -> String {
        self.host.qemu_log(machine).await
    }

    async fn wait_for_fault(&self, machine: &LocalId) {
        self.host.wait_for_fault(machine).await;
    }

    async fn wait_for_exit(&self, machine: &LocalId) {
        self.host.wait_for_exit(machine).await;
    }

    async fn collect_garbage(&self, now: Timestamp) -> Result<usize, Error> {
        self.host.collect_garbage(now).await
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
            let machine = QemuMachine {
                id: id.clone(),
                name: order(number).hostname().into(),
                tags,
                upload: None,
                cpus: 1,
                memory: 32,
                mac: "52:54:00:00:00:01".into(),
                created: Clock::system().now(),
                deleting: false,
                process: None,
            };
            host.write_machine(&machine).await.unwrap();
            last = Some(id);
            let mut tags = owner().upload_tags(
                nodeyard_model::BuildId::from_u128(0x11d),
                format!("{number:010}").parse().unwrap(),
            );
            tags.system = Some(SystemId::new("theirs"));
            let upload = StoredUpload {
                id: LocalId::new("image"),
                name: "image".into(),
                format: DiskFormat::Raw,
                tags,
                metadata: Default::default(),
                created: Clock::system().now(),
                status: UploadStatus::Active,
            };
            host.write_upload(&upload).await.unwrap();
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
        Box::new(QemuDriver::with_host(options, Arc::new(host)))
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

    /// Nothing here takes longer because it is polled more often.
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
        singles: 1,
        pairs: Some(97),
    };
    assert!(report("two uploads", explore(suite, LocalBed::new).await).runs > 100);
}
