//! [`LocalHost`]: machines and uploads as files and processes of this host.

mod accelerator;
mod arguments;
mod console;
mod disk;
mod network;
mod process;
mod qmp;
mod record_files;
mod seed;
mod start;
mod template;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_driver::{Error, ErrorClass, Progress};
use nodeyard_model::Timestamp;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

pub(crate) use disk::inspect;
pub(crate) use network::random_mac;
pub use process::ProcessIdentity;

use self::accelerator::AcceleratorSelector;
use self::arguments::{MARKER, QemuAccelerator};
use self::qmp::{Qmp, QmpError, SOCKET};
use self::record_files::{RecordDirectory, create_private, remove_directory, unless_missing};
use self::template::Templates;
use crate::host::{
    GuestEndpoint, LocalId, MachineStatus, QemuHost, QemuMachine, StopMethod, StoredUpload,
    UploadStatus,
};
use crate::machine_spec::MachineSpec;
use crate::options::{GuestNetwork, Options};

/// From the close of its sockets until a process has exited.
const EXIT_LIMIT: Duration = Duration::from_secs(1);
/// How long a guest may take to greet after it accepted a connection, under emulation.
const GREETING_LIMIT: Duration = Duration::from_secs(3);

/// The file with the name of the accelerator in the directory of a machine.
const ACCELERATOR_FILE: &str = "accelerator";

/// How long a process may take from its start until its command line can be read.
const COMMAND_LINE_LIMIT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The files of one provider, and the processes of its machines.
#[derive(Debug)]
pub struct LocalHost {
    options: Arc<Options>,
    machines: RecordDirectory,
    uploads: RecordDirectory,
    accelerators: AcceleratorSelector,
    templates: Templates,
}

impl LocalHost {
    pub fn new(options: Arc<Options>) -> Self {
        Self {
            machines: RecordDirectory::new(options.directory.join("machines")),
            uploads: RecordDirectory::new(options.directory.join("uploads")),
            accelerators: AcceleratorSelector::default(),
            templates: Templates::new(options.directory.join("templates")),
            options,
        }
    }

    fn directory(&self, id: &LocalId) -> PathBuf {
        self.machines.path(id.as_str())
    }

    /// Returns the process that runs a machine. The record may have none, or one that exited, although another one runs or
    /// is about to: a driver that started it may have been killed before it wrote the record.
    async fn process(&self, id: &LocalId) -> Result<Option<ProcessIdentity>, Error> {
        let failed = |cause| file_error(&format!("find the process of machine {id}"), cause);
        let machine: Option<QemuMachine> = self.machines.read(id).map_err(failed)?;
        let known = machine.and_then(|machine| machine.process);
        if let Some(process) = known.filter(ProcessIdentity::is_alive) {
            return Ok(Some(process));
        }
        let limit = Instant::now() + COMMAND_LINE_LIMIT;
        loop {
            if let Some(process) = process::find([MARKER, id.as_str()]).map_err(failed)? {
                return Ok(Some(process));
            }
            if !self.machines.is_locked(id).map_err(failed)? {
                return Ok(None);
            }
            if Instant::now() > limit {
                return Err(Error::retry(format!(
                    "machine {id} is being started by another process"
                )));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Creates the files of a machine and starts it.
    async fn run(
        &self,
        machine: &QemuMachine,
        spec: &MachineSpec,
    ) -> Result<ProcessIdentity, Error> {
        let id = &machine.id;
        let failed = |cause| file_error(&format!("create the files of machine {id}"), cause);
        let directory = self.directory(id);
        // A failed start may have left files behind.
        remove_directory(&directory).await.map_err(failed)?;
        create_private(&directory).map_err(failed)?;
        let accelerator = self.accelerators.choose(&self.options).await?;
        let mut spec = spec.clone();
        let start_mode = self
            .templates
            .prepare(&self.options, machine, &mut spec, accelerator, &directory)
            .await;
        disk::make_overlay(&directory, &spec).await?;
        disk::copy_variables(&directory, &self.options)?;
        let seed = seed::image(machine, &spec.seed).map_err(failed)?;
        fs::write(directory.join(seed::SEED), seed).map_err(failed)?;
        let arguments = arguments::machine(&self.options, machine, &spec, accelerator, start_mode);
        fs::write(directory.join(ACCELERATOR_FILE), accelerator.as_str()).map_err(failed)?;
        let lock = self.machines.lock(id).map_err(failed)?;
        let lock = lock.ok_or_else(|| {
            Error::retry(format!("machine {id} is being started by another process"))
        })?;
        start::start(&self.options, id, &directory, &arguments, lock)
    }

    /// Starts a machine and waits until its QEMU answers.
    async fn run_until_answering(
        &self,
        machine: &QemuMachine,
        spec: &MachineSpec,
    ) -> Result<(), Error> {
        let id = &machine.id;
        let process = match self.process(id).await? {
            Some(process) => process,
            None => self.run(machine, spec).await?,
        };
        self.record_process(machine, process.clone())?;
        start::wait_until_answering(id, &self.directory(id), &process).await
    }

    fn record_process(&self, machine: &QemuMachine, process: ProcessIdentity) -> Result<(), Error> {
        let running = QemuMachine {
            process: Some(process),
            ..machine.clone()
        };
        let id = &machine.id;
        let written = self.machines.write(id, &running);
        written.map_err(|cause| file_error(&format!("write the record of machine {id}"), cause))
    }

    async fn endpoint(
        &self,
        machine: &QemuMachine,
        guest_port: u16,
        qmp: &mut Qmp,
    ) -> Result<Option<GuestEndpoint>, Error> {
        match &self.options.network {
            GuestNetwork::User { address } => {
                let table = qmp
                    .monitor("info usernet")
                    .await
                    .map_err(|cause| control_error(&machine.id, cause))?;
                let port = network::forwarded_port(&table, guest_port);
                Ok(port.map(|port| GuestEndpoint {
                    address: IpAddr::V4(*address),
                    port,
                }))
            }
            GuestNetwork::Bridge { name } => {
                let table = fs::read_to_string("/proc/net/arp");
                let table =
                    table.map_err(|cause| file_error("read the neighbours of this host", cause))?;
                let address = network::neighbour(&table, &machine.mac, name);
                Ok(address.map(|address| GuestEndpoint {
                    address: IpAddr::V4(address),
                    port: guest_port,
                }))
            }
        }
    }
}

#[async_trait]
impl QemuHost for LocalHost {
    async fn machines(&self) -> Result<Vec<QemuMachine>, Error> {
        let machines: Vec<QemuMachine> = self
            .machines
            .read_all()
            .map_err(|cause| file_error("read the records of machines", cause))?;
        for machine in &machines {
            console::limit_size(&self.directory(&machine.id));
        }
        Ok(machines)
    }

    async fn write_machine(&self, machine: &QemuMachine) -> Result<(), Error> {
        let written = self.machines.write(&machine.id, machine);
        written.map_err(|cause| {
            file_error(
                &format!("write the record of machine {}", machine.id),
                cause,
            )
        })
    }

    async fn start(&self, machine: &QemuMachine, spec: &MachineSpec) -> Result<(), Error> {
        let id = &machine.id;
        let directory = self.directory(id);
        if let Err(error) = self.run_until_answering(machine, spec).await {
            let log = self.qemu_log(id).await;
            if !log.to_ascii_lowercase().contains("kvm") || !self.reject_kvm(machine, &log).await? {
                return Err(error);
            }
            self.run_until_answering(machine, spec).await?;
        }
        if directory.join(template::MEMORY).exists() {
            let resumed = template::resume(&directory).await;
            resumed.map_err(|cause| control_error(id, cause))?;
        }
        Ok(())
    }

    async fn status(&self, machine: &QemuMachine, guest_port: u16) -> Result<MachineStatus, Error> {
        let Some(process) = self.process(&machine.id).await? else {
            return Ok(MachineStatus::Stopped);
        };
        console::limit_size(&self.directory(&machine.id));
        let query = async {
            let mut qmp = Qmp::connect(&self.directory(&machine.id))
                .await
                .map_err(|cause| control_error(&machine.id, cause))?;
            let fault = qmp.guest_fault().await;
            let fault = fault.map_err(|cause| control_error(&machine.id, cause))?;
            match fault {
                Some(fault) => Ok(MachineStatus::Failed(fault)),
                None => Ok(MachineStatus::Running(
                    self.endpoint(machine, guest_port, &mut qmp).await?,
                )),
            }
        };
        match query.await {
            Ok(status) => Ok(status),
            // It may have exited during the query; its sockets close a moment before that can be seen.
            Err(error) => match timeout(EXIT_LIMIT, process.ended()).await {
                Ok(Ok(())) => Ok(MachineStatus::Stopped),
                Ok(Err(_)) | Err(_) => Err(error),
            },
        }
    }

    async fn is_running(&self, machine: &QemuMachine) -> Result<bool, Error> {
        Ok(self.process(&machine.id).await?.is_some())
    }

    async fn reject_kvm(&self, machine: &QemuMachine, reason: &str) -> Result<bool, Error> {
        let id = &machine.id;
        let accelerator = fs::read_to_string(self.directory(id).join(ACCELERATOR_FILE));
        if accelerator.is_ok_and(|name| name != QemuAccelerator::Kvm.as_str())
            || !self.accelerators.reject_kvm(&self.options, reason).await
        {
            return Ok(false);
        }
        if let Some(process) = self.process(id).await? {
            let failed = |cause| file_error(&format!("kill machine {id}"), cause);
            process.kill().map_err(failed)?;
            process.ended().await.map_err(failed)?;
        }
        Ok(true)
    }

    async fn stop(&self, machine: &QemuMachine, method: StopMethod) -> Result<(), Error> {
        let id = &machine.id;
        let Some(process) = self.process(id).await? else {
            return Ok(());
        };
        let command = match method {
            StopMethod::PowerDown => "system_powerdown",
            StopMethod::Quit => "quit",
            StopMethod::Kill => {
                let killed = process.kill();
                return killed.map_err(|cause| file_error(&format!("kill machine {id}"), cause));
            }
        };
        let execution = async {
            Qmp::connect(&self.directory(id))
                .await?
                .execute(command)
                .await
        };
        match execution.await {
            Ok(_) => Ok(()),
            // QEMU may exit without a response. Whether it runs is checked by the caller.
            Err(error) => {
                tracing::debug!(machine = %id, command, %error, "failed to send command to QEMU");
                Ok(())
            }
        }
    }

    async fn remove_machine(&self, machine: &QemuMachine) -> Result<(), Error> {
        let id = &machine.id;
        let failed = |cause| file_error(&format!("remove the files of machine {id}"), cause);
        remove_directory(&self.directory(id))
            .await
            .map_err(failed)?;
        self.machines.remove(id).map_err(failed)
    }

    async fn uploads(&self) -> Result<Vec<StoredUpload>, Error> {
        let uploads = self.uploads.read_all();
        uploads.map_err(|cause| file_error("read the records of images", cause))
    }

    async fn write_upload(&self, upload: &StoredUpload) -> Result<(), Error> {
        let written = self.uploads.write(&upload.id, upload);
        written
            .map_err(|cause| file_error(&format!("write the record of image {}", upload.id), cause))
    }

    async fn store_upload(
        &self,
        upload: &StoredUpload,
        source: &Path,
        progress: &Progress,
    ) -> Result<(), Error> {
        let stored = disk::copy_image(source, &self.upload_path(upload), progress).await;
        let failed = |cause| file_error(&format!("store image {}", source.display()), cause);
        stored.map_err(failed)?;
        match self.uploads.read(&upload.id).map_err(failed)? {
            Some(StoredUpload {
                status: UploadStatus::Pending,
                ..
            }) => {
                let status = UploadStatus::Active;
                self.write_upload(&StoredUpload {
                    status,
                    ..upload.clone()
                })
                .await
            }
            Some(StoredUpload {
                status: UploadStatus::Active,
                ..
            }) => Ok(()),
            // It was deleted during the copy.
            Some(StoredUpload {
                status: UploadStatus::Deleting,
                ..
            })
            | None => {
                unless_missing(fs::remove_file(self.upload_path(upload))).map_err(failed)?;
                Err(Error::retry(format!(
                    "image {} was deleted while it was uploaded",
                    upload.id
                )))
            }
        }
    }

    async fn remove_upload(&self, upload: &StoredUpload) -> Result<(), Error> {
        let id = &upload.id;
        let failed = |cause| file_error(&format!("remove image {id}"), cause);
        unless_missing(tokio::fs::remove_file(self.upload_path(upload)).await).map_err(failed)?;
        self.uploads.remove(id).map_err(failed)
    }

    fn upload_path(&self, upload: &StoredUpload) -> PathBuf {
        let format = upload.format.as_str();
        self.uploads.path(&format!("{}.{format}", upload.id))
    }

    async fn image_files(&self) -> Result<Vec<PathBuf>, Error> {
        let directory = self.options.directory.join("images");
        let failed = |cause| file_error(&format!("list {}", directory.display()), cause);
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut files = Vec::new();
        for entry in entries {
            let path = entry.map_err(failed)?.path();
            if path.is_file() {
                files.push(path);
            }
        }
        Ok(files)
    }

    async fn greets(&self, endpoint: GuestEndpoint) -> bool {
        let greeting = async {
            let mut stream = TcpStream::connect((endpoint.address, endpoint.port)).await?;
            stream.read(&mut [0; 1]).await
        };
        // QEMU accepts the connection before the guest does, so that only a greeting counts.
        matches!(timeout(GREETING_LIMIT, greeting).await, Ok(Ok(1)))
    }

    async fn evidence(&self, machine: &LocalId) -> Result<String, Error> {
        Ok(console::evidence(&self.directory(machine)))
    }

    async fn qemu_log(&self, machine: &LocalId) -> String {
        console::tail(&self.directory(machine).join(console::QEMU_LOG)).unwrap_or_default()
    }

    async fn wait_for_fault(&self, machine: &LocalId) {
        let directory = self.directory(machine);
        let fault = async {
            if let Err(error) = Qmp::wait_for_fault(&directory).await {
                tracing::debug!(%machine, %error, "failed to watch guest; polling only");
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = self.wait_for_exit(machine) => {}
            () = fault => {}
        }
    }

    async fn wait_for_exit(&self, machine: &LocalId) {
        let exit = async {
            match self.process(machine).await? {
                Some(process) => process.ended().await.map_err(|cause| {
                    file_error(&format!("watch the process of machine {machine}"), cause)
                }),
                None => Ok(()),
            }
        };
        if let Err(error) = exit.await {
            tracing::debug!(%machine, %error, "failed to watch process; polling only");
            std::future::pending::<()>().await;
        }
    }

    async fn collect_garbage(&self, now: Timestamp) -> Result<usize, Error> {
        let is_running = |id: &str| {
            let found = process::find([MARKER, id]);
            !matches!(found, Ok(None))
        };
        let failed = |cause| file_error("remove files without a record", cause);
        let machines = self
            .machines
            .collect_garbage(now, is_running)
            .map_err(failed)?;
        let uploads = self
            .uploads
            .collect_garbage(now, |_| false)
            .map_err(failed)?;
        let templates = self.templates.collect_garbage(now).map_err(failed)?;
        Ok(machines + uploads + templates)
    }
}

/// Returns the error of a failed operation on files or processes.
fn file_error(operation: &str, cause: io::Error) -> Error {
    let class = match cause.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            ErrorClass::Credentials
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorClass::Capacity,
        io::ErrorKind::InvalidData => ErrorClass::Permanent,
        _ => ErrorClass::Retry,
    };
    Error::new(class, format!("failed to {operation}")).because(cause)
}

fn control_error(id: &LocalId, cause: QmpError) -> Error {
    Error::retry(format!("failed to query machine {id} on its {SOCKET}")).because(cause)
}
