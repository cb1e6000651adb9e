//! This host: files and processes.

mod accelerator;
mod arguments;
mod console;
mod descriptions;
mod disk;
mod launch;
mod network;
mod process;
mod qmp;
mod seed;
mod template;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_driver::{Error, ErrorClass};
use nodeyard_model::Timestamp;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

pub(crate) use disk::inspect;
pub(crate) use network::random_mac;
pub use process::ProcessIdentity;

use self::accelerator::Accelerators;
use self::arguments::{Engine, MARK};
use self::descriptions::{Shelf, create_private, remove_directory, unless_missing};
use self::qmp::{Qmp, QmpError, SOCKET};
use self::template::Templates;
use crate::host::{
    Answering, Endpoint, Host, LocalId, Machine, Stop, Upload, UploadStatus, Vitals,
};
use crate::options::{Network, Options};
use crate::recipe::Recipe;

/// From the end of its sockets until a process is gone.
const ENDING: Duration = Duration::from_secs(1);
/// How long one try to hear a machine may take. Under emulation a guest needs a while to greet.
const HEARING: Duration = Duration::from_secs(3);

/// Name of the file in a machine's directory that tells its accelerator.
const ACCELERATOR: &str = "accelerator";

/// How long a process may take from its first moment until its command line can be read.
const COMING_UP: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

/// Files and processes of this host.
#[derive(Debug)]
pub struct LocalHost {
    options: Arc<Options>,
    machines: Shelf,
    uploads: Shelf,
    accelerators: Accelerators,
    templates: Templates,
}

impl LocalHost {
    pub fn new(options: Arc<Options>) -> Self {
        Self {
            machines: Shelf::new(options.directory.join("machines")),
            uploads: Shelf::new(options.directory.join("uploads")),
            accelerators: Accelerators::default(),
            templates: Templates::new(options.directory.join("templates")),
            options,
        }
    }

    fn directory(&self, id: &LocalId) -> PathBuf {
        self.machines.path(id.as_str())
    }

    /// The process that runs a machine. The description may know none, or one that is gone, while another runs or is
    /// about to: whoever started it may have died before he could write it down.
    async fn process(&self, id: &LocalId) -> Result<Option<ProcessIdentity>, Error> {
        let failed = |cause| trouble(&format!("processes of machine {id}"), cause);
        let machine: Option<Machine> = self.machines.read(id).map_err(failed)?;
        let known = machine.and_then(|machine| machine.process);
        if let Some(process) = known.filter(ProcessIdentity::is_alive) {
            return Ok(Some(process));
        }
        let limit = Instant::now() + COMING_UP;
        loop {
            if let Some(process) = process::find([MARK, id.as_str()]).map_err(failed)? {
                return Ok(Some(process));
            }
            if !self.machines.is_locked(id).map_err(failed)? {
                return Ok(None);
            }
            if Instant::now() > limit {
                return Err(Error::retry(format!(
                    "machine {id} is being started by somebody else"
                )));
            }
            sleep(PAUSE).await;
        }
    }

    /// Starts a machine from nothing.
    async fn run(&self, machine: &Machine, recipe: &Recipe) -> Result<ProcessIdentity, Error> {
        let id = &machine.id;
        let failed = |cause| trouble(&format!("files of machine {id}"), cause);
        let directory = self.directory(id);
        // A start that failed may have left something behind.
        remove_directory(&directory).await.map_err(failed)?;
        create_private(&directory).map_err(failed)?;
        let engine = self.accelerators.choose(&self.options).await?;
        let mut recipe = recipe.clone();
        let beginning = self
            .templates
            .prepare(&self.options, machine, &mut recipe, engine, &directory)
            .await;
        disk::make_overlay(&directory, &recipe).await?;
        disk::copy_variables(&directory, &self.options)?;
        let seed = seed::image(machine, &recipe.seed).map_err(failed)?;
        fs::write(directory.join(seed::SEED), seed).map_err(failed)?;
        let arguments = arguments::machine(&self.options, machine, &recipe, engine, beginning);
        fs::write(directory.join(ACCELERATOR), engine.as_str()).map_err(failed)?;
        let lock = self.machines.lock(id).map_err(failed)?;
        let lock = lock.ok_or_else(|| {
            Error::retry(format!("machine {id} is being started by somebody else"))
        })?;
        launch::start(&self.options, id, &directory, &arguments, lock)
    }

    /// Starts a machine and waits until its QEMU answers.
    async fn run_until_answering(&self, machine: &Machine, recipe: &Recipe) -> Result<(), Error> {
        let id = &machine.id;
        let process = match self.process(id).await? {
            Some(process) => process,
            None => self.run(machine, recipe).await?,
        };
        self.note_process(machine, process.clone())?;
        launch::answering(id, &self.directory(id), &process).await
    }

    fn note_process(&self, machine: &Machine, process: ProcessIdentity) -> Result<(), Error> {
        let running = Machine {
            process: Some(process),
            ..machine.clone()
        };
        let id = &machine.id;
        let written = self.machines.write(id, &running);
        written.map_err(|cause| trouble(&format!("description of machine {id}"), cause))
    }

    async fn endpoint(
        &self,
        machine: &Machine,
        guest_port: u16,
        qmp: &mut Qmp,
    ) -> Result<Option<Endpoint>, Error> {
        match &self.options.network {
            Network::User { address } => {
                let table = qmp
                    .monitor("info usernet")
                    .await
                    .map_err(|cause| control_error(&machine.id, cause))?;
                let port = network::forwarded_port(&table, guest_port);
                Ok(port.map(|port| Endpoint {
                    address: IpAddr::V4(*address),
                    port,
                }))
            }
            Network::Bridge { name } => {
                let table = fs::read_to_string("/proc/net/arp");
                let table = table.map_err(|cause| trouble("the neighbours of this host", cause))?;
                let address = network::neighbour(&table, &machine.mac, name);
                Ok(address.map(|address| Endpoint {
                    address: IpAddr::V4(address),
                    port: guest_port,
                }))
            }
        }
    }
}

#[async_trait]
impl Host for LocalHost {
    async fn machines(&self) -> Result<Vec<Machine>, Error> {
        let machines: Vec<Machine> = self
            .machines
            .read_all()
            .map_err(|cause| trouble("descriptions of machines", cause))?;
        for machine in &machines {
            console::bound(&self.directory(&machine.id));
        }
        Ok(machines)
    }

    async fn record(&self, machine: &Machine) -> Result<(), Error> {
        let written = self.machines.write(&machine.id, machine);
        written.map_err(|cause| trouble(&format!("description of machine {}", machine.id), cause))
    }

    async fn start(&self, machine: &Machine, recipe: &Recipe) -> Result<(), Error> {
        let id = &machine.id;
        let directory = self.directory(id);
        if let Err(error) = self.run_until_answering(machine, recipe).await {
            let log = self.log(id).await;
            if !log.to_ascii_lowercase().contains("kvm") || !self.reject_kvm(machine, &log).await? {
                return Err(error);
            }
            self.run_until_answering(machine, recipe).await?;
        }
        if directory.join(template::MEMORY).exists() {
            let resumed = template::resume(&directory).await;
            resumed.map_err(|cause| control_error(id, cause))?;
        }
        Ok(())
    }

    async fn look(&self, machine: &Machine, guest_port: u16) -> Result<Vitals, Error> {
        let Some(process) = self.process(&machine.id).await? else {
            return Ok(Vitals::Down);
        };
        console::bound(&self.directory(&machine.id));
        let looked = async {
            let mut qmp = Qmp::connect(&self.directory(&machine.id))
                .await
                .map_err(|cause| control_error(&machine.id, cause))?;
            let fault = qmp.guest_fault().await;
            let fault = fault.map_err(|cause| control_error(&machine.id, cause))?;
            match fault {
                Some(fault) => Ok(Vitals::Failed(fault)),
                None => Ok(Vitals::Up(
                    self.endpoint(machine, guest_port, &mut qmp).await?,
                )),
            }
        };
        match looked.await {
            Ok(vitals) => Ok(vitals),
            // It may have ended while it was asked; its sockets close a moment before that can be seen.
            Err(error) => match timeout(ENDING, process.ended()).await {
                Ok(Ok(())) => Ok(Vitals::Down),
                Ok(Err(_)) | Err(_) => Err(error),
            },
        }
    }

    async fn is_up(&self, machine: &Machine) -> Result<bool, Error> {
        Ok(self.process(&machine.id).await?.is_some())
    }

    async fn reject_kvm(&self, machine: &Machine, reason: &str) -> Result<bool, Error> {
        let id = &machine.id;
        let accelerator = fs::read_to_string(self.directory(id).join(ACCELERATOR));
        if accelerator.is_ok_and(|name| name != Engine::Kvm.as_str())
            || !self.accelerators.reject_kvm(&self.options, reason).await
        {
            return Ok(false);
        }
        if let Some(process) = self.process(id).await? {
            let failed = |cause| trouble(&format!("process of machine {id}"), cause);
            process.kill().map_err(failed)?;
            process.ended().await.map_err(failed)?;
        }
        Ok(true)
    }

    async fn stop(&self, machine: &Machine, how: Stop) -> Result<(), Error> {
        let id = &machine.id;
        let Some(process) = self.process(id).await? else {
            return Ok(());
        };
        let command = match how {
            Stop::PowerDown => "system_powerdown",
            Stop::Quit => "quit",
            Stop::Kill => {
                let killed = process.kill();
                return killed.map_err(|cause| trouble(&format!("process of machine {id}"), cause));
            }
        };
        let asked = async {
            Qmp::connect(&self.directory(id))
                .await?
                .execute(command)
                .await
        };
        match asked.await {
            Ok(_) => Ok(()),
            // It ends without an answer, or does not listen: a look will show.
            Err(error) => {
                tracing::debug!(machine = %id, command, %error, "QEMU was not told");
                Ok(())
            }
        }
    }

    async fn discard(&self, machine: &Machine) -> Result<(), Error> {
        let id = &machine.id;
        let failed = |cause| trouble(&format!("files of machine {id}"), cause);
        remove_directory(&self.directory(id))
            .await
            .map_err(failed)?;
        self.machines.remove(id).map_err(failed)
    }

    async fn uploads(&self) -> Result<Vec<Upload>, Error> {
        let uploads = self.uploads.read_all();
        uploads.map_err(|cause| trouble("descriptions of images", cause))
    }

    async fn record_upload(&self, upload: &Upload) -> Result<(), Error> {
        let written = self.uploads.write(&upload.id, upload);
        written.map_err(|cause| trouble(&format!("description of image {}", upload.id), cause))
    }

    async fn place(&self, upload: &Upload, source: &Path) -> Result<(), Error> {
        let placed = disk::place(source, &self.upload_path(upload)).await;
        let failed = |cause| trouble(&format!("image {}", source.display()), cause);
        placed.map_err(failed)?;
        match self.uploads.read(&upload.id).map_err(failed)? {
            Some(Upload {
                status: UploadStatus::Pending,
                ..
            }) => {
                let status = UploadStatus::Active;
                self.record_upload(&Upload {
                    status,
                    ..upload.clone()
                })
                .await
            }
            Some(Upload {
                status: UploadStatus::Active,
                ..
            }) => Ok(()),
            // Copying takes its time.
            Some(Upload {
                status: UploadStatus::Going,
                ..
            })
            | None => {
                unless_missing(fs::remove_file(self.upload_path(upload))).map_err(failed)?;
                Err(Error::retry(format!(
                    "image {} was deleted while it was made",
                    upload.id
                )))
            }
        }
    }

    async fn discard_upload(&self, upload: &Upload) -> Result<(), Error> {
        let id = &upload.id;
        let failed = |cause| trouble(&format!("image {id}"), cause);
        unless_missing(tokio::fs::remove_file(self.upload_path(upload)).await).map_err(failed)?;
        self.uploads.remove(id).map_err(failed)
    }

    fn upload_path(&self, upload: &Upload) -> PathBuf {
        let format = upload.format.as_str();
        self.uploads.path(&format!("{}.{format}", upload.id))
    }

    async fn files(&self) -> Result<Vec<PathBuf>, Error> {
        let directory = self.options.directory.join("images");
        let failed = |cause| trouble(&format!("files in {}", directory.display()), cause);
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

    async fn hear(&self, endpoint: Endpoint) -> Answering {
        let greeting = async {
            let mut stream = TcpStream::connect((endpoint.address, endpoint.port)).await?;
            stream.read(&mut [0; 1]).await
        };
        match timeout(HEARING, greeting).await {
            Ok(Ok(1)) => Answering::Yes,
            // QEMU takes the connection before the guest does.
            _ => Answering::No,
        }
    }

    async fn evidence(&self, machine: &LocalId) -> Result<String, Error> {
        Ok(console::evidence(&self.directory(machine)))
    }

    async fn log(&self, machine: &LocalId) -> String {
        console::tail(&self.directory(machine).join(console::QEMU_LOG)).unwrap_or_default()
    }

    async fn halted(&self, machine: &LocalId) {
        let directory = self.directory(machine);
        let paused = async {
            match Qmp::halted(&directory).await {
                Ok(()) => {}
                // It ends, or has no socket for events: then the caller's next look shows what happened.
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.stopped(machine) => {}
            () = paused => {}
        }
    }

    async fn stopped(&self, machine: &LocalId) {
        if let Ok(Some(process)) = self.process(machine).await {
            // Should it not be possible to wait, the caller looks too early, and then again.
            let _ended = process.ended().await;
        }
    }

    async fn tidy(&self, now: Timestamp) -> Result<usize, Error> {
        let runs = |id: &str| {
            let found = process::find([MARK, id]);
            !matches!(found, Ok(None))
        };
        let failed = |cause| trouble("files without a description", cause);
        let machines = self.machines.tidy(now, runs).map_err(failed)?;
        let uploads = self.uploads.tidy(now, |_| false).map_err(failed)?;
        let templates = self.templates.tidy(now).map_err(failed)?;
        Ok(machines + uploads + templates)
    }
}

/// An error of the file system: who runs this may not, has no room, or should try again.
fn trouble(what: &str, cause: io::Error) -> Error {
    let class = match cause.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            ErrorClass::Credentials
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorClass::Capacity,
        io::ErrorKind::InvalidData => ErrorClass::Permanent,
        _ => ErrorClass::Retry,
    };
    Error::new(class, format!("trouble with {what}")).because(cause)
}

fn control_error(id: &LocalId, cause: QmpError) -> Error {
    Error::retry(format!("machine {id} cannot be asked on its {SOCKET}")).because(cause)
}
