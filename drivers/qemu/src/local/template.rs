//! Templates: saved memory of a booted guest, from which machines start.
//!
//! The seed of a template has the instance id [`seed::TEMPLATE_INSTANCE`]. A guest that supports templates boots, writes
//! [`READY`] to its console and waits until the instance id changes; at that moment its memory is saved. Machines start
//! from that memory with seeds of their own, so that host name, host keys, machine id and random numbers are generated
//! after the memory was copied. Machines of an image that never writes [`READY`] boot normally.
//!
//! ```text
//! <directory>/templates/<key>.json     everything it depends on
//!                       <key>/         base.qcow2 and memory; complete if it exists
//!                       <key>.lock     locked while it is created
//! ```
//!
//! A machine gets hard links to both files, so that a template can be removed at any time.

use std::collections::HashMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nodeyard_driver::{Error, ErrorClass, Tags};
use nodeyard_driver_common::KeyedLocks;
use nodeyard_model::Timestamp;
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::time::sleep;
use tracing::{info, warn};

use super::arguments::{self, QemuAccelerator, StartMode};
use super::console::{CONSOLE, QEMU_LOG, evidence};
use super::disk::{self, DISK, missing_tool, write_atomically};
use super::file_error;
use super::qmp::Qmp;
use super::record_files::{create_private, remove_directory, try_lock, unless_missing};
use super::seed::{self, SEED};
use super::start::{find_binary, find_program};
use crate::host::{LocalId, QemuMachine};
use crate::machine_spec::{MachineSpec, Seed};
use crate::options::{GuestNetwork, Options};

/// What a guest writes to its console when its memory can be saved.
const READY: &str = "nodeyard: template ready";
/// The two files of a template, also in the directory of a machine.
const BASE: &str = "base.qcow2";
pub(super) const MEMORY: &str = "memory";
/// The pause after a failure to create a template.
const RETRY_PAUSE: Duration = Duration::from_secs(3600);
/// How long an unused template is kept.
const LIFETIME: Duration = Duration::from_secs(14 * 24 * 3600);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Templates {
    directory: PathBuf,
    /// Held while a template is created. The machine that needs it waits meanwhile, so that both together use the memory of
    /// one.
    creating: KeyedLocks,
    failures: Mutex<HashMap<String, Instant>>,
}

impl Templates {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            creating: KeyedLocks::default(),
            failures: Mutex::default(),
        }
    }

    /// Links the files of a template into the directory of a machine and adapts the specification. Returns
    /// [`StartMode::Boot`] if the machine cannot start from a template; a failure is never an error.
    pub(super) async fn prepare(
        &self,
        options: &Options,
        machine: &QemuMachine,
        spec: &mut MachineSpec,
        accelerator: QemuAccelerator,
        target: &Path,
    ) -> StartMode {
        // On a bridge, machines would share the MAC address of the template.
        if !spec.warm || !matches!(options.network, GuestNetwork::User { .. }) {
            return StartMode::Boot;
        }
        // The guest would not notice that the seed is larger than that of the template.
        if !seed::fits_template(&spec.seed) {
            return StartMode::Boot;
        }
        let circumstances = circumstances(options, machine, spec, accelerator);
        let key = key(&circumstances);
        let _turn = self.creating.lock(&key).await;
        if self.failed_recently(&key) {
            return StartMode::Boot;
        }
        let created = self
            .ensure(options, machine, spec, accelerator, &key, &circumstances)
            .await;
        let linked = created.and_then(|()| {
            self.link(&key, target)
                .map_err(|cause| file_error(&format!("link template {key}"), cause))
        });
        match linked {
            Ok(()) => {
                spec.backing = target.join(BASE);
                spec.format = crate::machine_spec::DiskFormat::Qcow2;
                StartMode::Restore
            }
            Err(error) => {
                warn!(%error, "failed to create template; machines boot normally");
                if error.class() == ErrorClass::Permanent {
                    self.failures().insert(key, Instant::now());
                }
                StartMode::Boot
            }
        }
    }

    fn failures(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed_recently(&self, key: &str) -> bool {
        let failed = self.failures().get(key).copied();
        failed.is_some_and(|at| at.elapsed() < RETRY_PAUSE)
    }

    fn link(&self, key: &str, target: &Path) -> io::Result<()> {
        let template = self.directory.join(key);
        for name in [BASE, MEMORY] {
            fs::hard_link(template.join(name), target.join(name))?;
        }
        // Marks the template as used.
        File::open(self.directory.join(format!("{key}.json")))?
            .set_modified(nodeyard_model::now().into())
    }

    /// Creates the template if it does not exist.
    async fn ensure(
        &self,
        options: &Options,
        machine: &QemuMachine,
        spec: &MachineSpec,
        accelerator: QemuAccelerator,
        key: &str,
        circumstances: &str,
    ) -> Result<(), Error> {
        let failed = |cause| file_error(&format!("create template {key}"), cause);
        let record = self.directory.join(format!("{key}.json"));
        let finished = self.directory.join(key);
        let known = fs::read_to_string(&record).is_ok_and(|text| text == circumstances);
        if known && finished.exists() {
            return Ok(());
        }
        create_private(&self.directory).map_err(failed)?;
        let lock = File::create(self.directory.join(format!("{key}.lock"))).map_err(failed)?;
        if try_lock(lock.try_clone().map_err(failed)?)
            .map_err(failed)?
            .is_none()
        {
            return Err(Error::retry(format!(
                "template {key} is being created by another process"
            )));
        }
        let started = Instant::now();
        let draft = self.directory.join(format!("{key}.new"));
        remove_directory(&draft).await.map_err(failed)?;
        remove_directory(&finished).await.map_err(failed)?;
        create_private(&draft).map_err(failed)?;
        let created = self
            .boot_and_save(options, machine, spec, accelerator, &draft)
            .await;
        if let Err(error) = created {
            remove_directory(&draft).await.map_err(failed)?;
            return Err(error);
        }
        for name in fs::read_dir(&draft).map_err(failed)?.flatten() {
            if name.file_name() != BASE && name.file_name() != MEMORY {
                unless_missing(fs::remove_file(name.path())).map_err(failed)?;
            }
        }
        write_atomically(&record, circumstances.as_bytes()).map_err(failed)?;
        fs::rename(&draft, &finished).map_err(failed)?;
        info!(
            template = key,
            seconds = started.elapsed().as_secs(),
            "created template"
        );
        Ok(())
    }

    async fn boot_and_save(
        &self,
        options: &Options,
        machine: &QemuMachine,
        spec: &MachineSpec,
        accelerator: QemuAccelerator,
        directory: &Path,
    ) -> Result<(), Error> {
        let failed = |cause| file_error("create the files of a template", cause);
        disk::make_overlay(directory, spec).await?;
        disk::copy_variables(directory, options)?;
        let template = QemuMachine {
            id: LocalId::new("template"),
            name: "template".into(),
            tags: Tags::default(),
            ..machine.clone()
        };
        let seed = seed::template(&Seed::default()).map_err(failed)?;
        fs::write(directory.join(SEED), seed).map_err(failed)?;
        let arguments = arguments::machine(options, &template, spec, accelerator, StartMode::Boot);
        let mut child = start(options, directory, &arguments)?;
        wait_until_ready(options, directory, &mut child).await?;
        let saving = async {
            let mut qmp = Qmp::connect(directory).await?;
            qmp.execute("stop").await?;
            qmp.execute_with("migrate", &json!({"uri": format!("exec:cat > {MEMORY}")}))
                .await?;
            loop {
                let state = qmp.execute("query-migrate").await?;
                match state.get("status").and_then(|status| status.as_str()) {
                    Some("completed") => break,
                    Some("failed" | "cancelled") => {
                        return Err(super::QmpError::Refused {
                            description: state.to_string(),
                        });
                    }
                    _ => sleep(POLL_INTERVAL).await,
                }
            }
            qmp.execute("quit").await
        };
        saving.await.map_err(|cause| {
            Error::retry("failed to save the memory of a template").because(cause)
        })?;
        // It exits after the response to `quit`.
        let _status = child.wait().await;
        fs::rename(directory.join(DISK), directory.join(BASE)).map_err(failed)
    }

    /// Removes templates that were unused for long or whose image is gone, and returns how many.
    pub(super) fn collect_garbage(&self, now: Timestamp) -> io::Result<usize> {
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            entries => entries?,
        };
        let mut count = 0;
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.extension().is_none_or(|end| end != "json") {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap_or_default();
            let image = text.lines().next().unwrap_or_default();
            let used = fs::metadata(&path)?.modified()?;
            if Path::new(image).exists() && now.since(used.into()) < LIFETIME {
                continue;
            }
            unless_missing(fs::remove_dir_all(path.with_extension("")))?;
            unless_missing(fs::remove_file(&path))?;
            unless_missing(fs::remove_file(path.with_extension("lock")))?;
            count += 1;
        }
        Ok(count)
    }
}

/// Continues a machine that was started from saved memory. Idempotent.
pub(super) async fn resume(directory: &Path) -> Result<(), super::QmpError> {
    let mut qmp = Qmp::connect(directory).await?;
    loop {
        let state = qmp.execute("query-status").await?;
        match state.get("status").and_then(|status| status.as_str()) {
            Some("inmigrate") => sleep(POLL_INTERVAL).await,
            Some("paused" | "prelaunch" | "postmigrate") => {
                qmp.execute("cont").await?;
                return Ok(());
            }
            _ => return Ok(()),
        }
    }
}

/// Starts QEMU so that it ends with this process: no later process would find it.
fn start(options: &Options, directory: &Path, arguments: &[String]) -> Result<Child, Error> {
    find_binary(options)?;
    let log = File::create(directory.join(QEMU_LOG))
        .map_err(|cause| file_error("create the log of a template", cause))?;
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL"])
        .arg(&*options.binary)
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .map_err(|cause| missing_tool("setpriv", "util-linux", cause))
}

async fn wait_until_ready(
    options: &Options,
    directory: &Path,
    child: &mut Child,
) -> Result<(), Error> {
    let started = Instant::now();
    loop {
        let console = fs::read(directory.join(CONSOLE)).unwrap_or_default();
        if console
            .windows(READY.len())
            .any(|window| window == READY.as_bytes())
        {
            return Ok(());
        }
        if let Ok(mut qmp) = Qmp::connect(directory).await
            && let Ok(Some(fault)) = qmp.guest_fault().await
        {
            // The machine itself will meet the same fault, and then replace the accelerator.
            return Err(Error::retry(format!("template failed to boot: {fault}")));
        }
        let exited = child.try_wait().is_ok_and(|status| status.is_some());
        if exited || started.elapsed() > options.boot_timeout {
            let failure = if exited {
                format!("QEMU exited before the guest wrote `{READY}`")
            } else {
                let limit = options.boot_timeout;
                format!("the guest did not write `{READY}` within {limit:?}")
            };
            let evidence = evidence(directory);
            return Err(Error::permanent(format!(
                "{failure}; `warm-template` requires an image that supports templates: {}",
                evidence.trim_end()
            )));
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Describes everything that the memory depends on. The image comes first.
fn circumstances(
    options: &Options,
    machine: &QemuMachine,
    spec: &MachineSpec,
    accelerator: QemuAccelerator,
) -> String {
    let age = |path: &Path| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.size(), metadata.mtime(), metadata.ino()))
    };
    let kernel = spec.kernel.as_ref().map(|kernel| {
        let initrd = kernel.initrd.as_deref();
        let ages = (age(&kernel.path), initrd.and_then(age));
        (&kernel.path, ages, &kernel.arguments)
    });
    let binary = find_program(&options.binary);
    format!(
        "{}\n{:?}\n{:?} {:?}\n{} {} {:?}\n{:?}\n{:?} {:?}\n{}\n",
        spec.backing.display(),
        age(&spec.backing),
        binary,
        binary.as_deref().and_then(age),
        machine.cpus,
        machine.memory,
        spec.disk_size,
        kernel,
        options.machine,
        options.firmware,
        accelerator.as_str(),
    )
}

fn key(circumstances: &str) -> String {
    let mut hasher = DefaultHasher::new();
    circumstances.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
