//! Machines that start from saved memory.
//!
//! A template is a guest that has booted as far as it can without being anybody: its seed calls it
//! [`seed::TEMPLATE_INSTANCE`], and a guest that knows what that means says [`READY`] on its console and waits until its seed
//! says something else. At that moment its memory is saved. Machines then continue from there, each with a seed of its own,
//! and become somebody: host name, host keys, machine id and random numbers are made after the memory was copied, not
//! before. A guest that does not know this never says it, and its machines start from the beginning.
//!
//! ```text
//! <directory>/templates/<key>.json     what it depends on
//!                       <key>/         base.qcow2 and memory; complete if it is there
//!                       <key>.lock     held while it is made
//! ```
//!
//! A machine gets links to both files, so a template can go at any time.

use std::collections::HashMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nodeyard_driver::{Error, ErrorClass, Tags};
use nodeyard_model::Timestamp;
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;
use tokio::time::sleep;
use tracing::{info, warn};

use super::arguments::{self, Beginning, Engine};
use super::console::{CONSOLE, QEMU_LOG, evidence};
use super::descriptions::{create_private, remove_directory, try_lock, unless_missing};
use super::disk::{self, DISK, missing_tool, write_atomically};
use super::launch::{find_binary, find_program};
use super::qmp::Qmp;
use super::seed::{self, SEED};
use super::trouble;
use crate::host::{LocalId, Machine};
use crate::options::{Network, Options};
use crate::recipe::{Recipe, Seed};

/// What a guest says on its console when its memory can be saved.
const READY: &str = "nodeyard: template ready";
/// Names of the two files, in a template and in the directory of a machine.
const BASE: &str = "base.qcow2";
pub(super) const MEMORY: &str = "memory";
/// How long a template that could not be made is not tried again.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(3600);
/// How long a template may be in nobody's use.
const LIFE: Duration = Duration::from_secs(14 * 24 * 3600);
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Templates {
    directory: PathBuf,
    /// Made one after the other: each takes the memory of a machine.
    failures: Mutex<HashMap<String, Instant>>,
}

impl Templates {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            failures: Mutex::default(),
        }
    }

    /// Puts what the machine needs to continue from a template into its directory, and changes the recipe accordingly.
    /// [`Beginning::Boot`] if it has to start from the beginning, which is never a reason not to start it.
    pub(super) async fn prepare(
        &self,
        options: &Options,
        machine: &Machine,
        recipe: &mut Recipe,
        engine: Engine,
        target: &Path,
    ) -> Beginning {
        // On a bridge, machines would share the address of the template's network card.
        if !recipe.warm || !matches!(options.network, Network::User { .. }) {
            return Beginning::Boot;
        }
        // Larger than a template's, it would not be seen as a whole.
        if !seed::fits_template(&recipe.seed) {
            return Beginning::Boot;
        }
        let circumstances = circumstances(options, machine, recipe, engine);
        let key = key(&circumstances);
        let mut failures = self.failures.lock().await;
        if failures
            .get(&key)
            .is_some_and(|at| at.elapsed() < PAUSE_AFTER_FAILURE)
        {
            return Beginning::Boot;
        }
        let made = self
            .make(options, machine, recipe, engine, &key, &circumstances)
            .await;
        let linked = made.and_then(|()| {
            self.link(&key, target)
                .map_err(|cause| trouble(&format!("template {key}"), cause))
        });
        match linked {
            Ok(()) => {
                recipe.backing = target.join(BASE);
                recipe.format = crate::recipe::DiskFormat::Qcow2;
                Beginning::Memory
            }
            Err(error) => {
                warn!(%error, "no template; machines start from the beginning");
                if error.class() == ErrorClass::Permanent {
                    failures.insert(key, Instant::now());
                }
                Beginning::Boot
            }
        }
    }

    fn link(&self, key: &str, target: &Path) -> io::Result<()> {
        let template = self.directory.join(key);
        for name in [BASE, MEMORY] {
            fs::hard_link(template.join(name), target.join(name))?;
        }
        // For whoever tidies up: it is in use.
        File::open(self.directory.join(format!("{key}.json")))?
            .set_modified(nodeyard_model::now().into())
    }

    /// Returns when there is a template.
    async fn make(
        &self,
        options: &Options,
        machine: &Machine,
        recipe: &Recipe,
        engine: Engine,
        key: &str,
        circumstances: &str,
    ) -> Result<(), Error> {
        let failed = |cause| trouble(&format!("template {key}"), cause);
        let description = self.directory.join(format!("{key}.json"));
        let finished = self.directory.join(key);
        let known = fs::read_to_string(&description).is_ok_and(|text| text == circumstances);
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
                "template {key} is being made by somebody else"
            )));
        }
        let began = Instant::now();
        let draft = self.directory.join(format!("{key}.new"));
        remove_directory(&draft).await.map_err(failed)?;
        remove_directory(&finished).await.map_err(failed)?;
        create_private(&draft).map_err(failed)?;
        let made = self
            .boot_and_save(options, machine, recipe, engine, &draft)
            .await;
        if let Err(error) = made {
            remove_directory(&draft).await.map_err(failed)?;
            return Err(error);
        }
        for name in fs::read_dir(&draft).map_err(failed)?.flatten() {
            if name.file_name() != BASE && name.file_name() != MEMORY {
                unless_missing(fs::remove_file(name.path())).map_err(failed)?;
            }
        }
        write_atomically(&description, circumstances.as_bytes()).map_err(failed)?;
        fs::rename(&draft, &finished).map_err(failed)?;
        info!(
            template = key,
            seconds = began.elapsed().as_secs(),
            "a template was made"
        );
        Ok(())
    }

    async fn boot_and_save(
        &self,
        options: &Options,
        machine: &Machine,
        recipe: &Recipe,
        engine: Engine,
        directory: &Path,
    ) -> Result<(), Error> {
        let failed = |cause| trouble("files of a template", cause);
        disk::make_overlay(directory, recipe).await?;
        disk::copy_variables(directory, options)?;
        let template = Machine {
            id: LocalId::new("template"),
            name: "template".into(),
            tags: Tags::default(),
            ..machine.clone()
        };
        let seed = seed::template(&Seed::default()).map_err(failed)?;
        fs::write(directory.join(SEED), seed).map_err(failed)?;
        let arguments = arguments::machine(options, &template, recipe, engine, Beginning::Boot);
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
                    _ => sleep(LOOK).await,
                }
            }
            qmp.execute("quit").await
        };
        saving.await.map_err(|cause| {
            Error::retry("the memory of a template cannot be saved").because(cause)
        })?;
        // It ends in its own time.
        let _status = child.wait().await;
        fs::rename(directory.join(DISK), directory.join(BASE)).map_err(failed)
    }

    /// Removes what has not been used for long, or can never be again.
    pub(super) fn tidy(&self, now: Timestamp) -> io::Result<usize> {
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
            if Path::new(image).exists() && now.since(used.into()) < LIFE {
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

/// Lets a machine run that has read its memory. May be called twice.
pub(super) async fn resume(directory: &Path) -> Result<(), super::QmpError> {
    let mut qmp = Qmp::connect(directory).await?;
    loop {
        let state = qmp.execute("query-status").await?;
        match state.get("status").and_then(|status| status.as_str()) {
            Some("inmigrate") => sleep(LOOK).await,
            Some("paused" | "prelaunch" | "postmigrate") => {
                qmp.execute("cont").await?;
                return Ok(());
            }
            _ => return Ok(()),
        }
    }
}

/// It ends with us, however that comes about: nobody would find it again.
fn start(options: &Options, directory: &Path, arguments: &[String]) -> Result<Child, Error> {
    find_binary(options)?;
    let log = File::create(directory.join(QEMU_LOG))
        .map_err(|cause| trouble("the log of a template", cause))?;
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
    let begun = Instant::now();
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
            // The machine itself meets the same fault, and then decides about its accelerator.
            return Err(Error::retry(format!("the template failed: {fault}")));
        }
        let ended = child.try_wait().is_ok_and(|status| status.is_some());
        if ended || begun.elapsed() > options.boot_timeout {
            let why = if ended {
                "it ended".to_owned()
            } else {
                format!("it did not within {:?}", options.boot_timeout)
            };
            let evidence = evidence(directory);
            return Err(Error::permanent(format!(
                "the guest never said `{READY}`, {why}; its image has to know templates: {}",
                evidence.trim_end()
            )));
        }
        sleep(LOOK).await;
    }
}

/// All that the memory depends on; the image comes first.
fn circumstances(options: &Options, machine: &Machine, recipe: &Recipe, engine: Engine) -> String {
    let age = |path: &Path| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.size(), metadata.mtime(), metadata.ino()))
    };
    let kernel = recipe.kernel.as_ref().map(|kernel| {
        let initrd = kernel.initrd.as_deref();
        let ages = (age(&kernel.path), initrd.and_then(age));
        (&kernel.path, ages, &kernel.arguments)
    });
    let binary = find_program(&options.binary);
    format!(
        "{}\n{:?}\n{:?} {:?}\n{} {} {:?}\n{:?}\n{:?} {:?}\n{}\n",
        recipe.backing.display(),
        age(&recipe.backing),
        binary,
        binary.as_deref().and_then(age),
        machine.cpus,
        machine.memory,
        recipe.disk_size,
        kernel,
        options.machine,
        options.firmware,
        engine.as_str(),
    )
}

fn key(circumstances: &str) -> String {
    let mut hasher = DefaultHasher::new();
    circumstances.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
