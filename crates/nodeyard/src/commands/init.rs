//! `nodeyard init`: writes a commented configuration for machines on this host.
//!
//! The binary contains all parts: configuration templates, which are combined for the drivers that work on this host,
//! and the script that builds the image. An SSH key is generated. Existing files are overwritten only with `--force`,
//! and the key never, because existing machines trust it.

mod configuration;
mod host_capabilities;
mod key;

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anstream::println;
use anyhow::{Context as _, bail, ensure};
use clap::{Args, ValueEnum};

use self::configuration::ConfigTemplate;
use self::host_capabilities::HostCapabilities;

const CONFIGURATION: &str = "nodepool.yaml";
const SCRIPT: &str = "build-debian";
const KEY: &str = "id_ed25519";

const SCRIPT_TEXT: &str = include_str!("init/build-debian.sh");

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// Directory to write to; created if it is missing
    #[arg(default_value = ".")]
    directory: PathBuf,
    /// Kind of machines, instead of all that work here; may be given several times
    #[arg(long = "driver", value_name = "DRIVER")]
    drivers: Vec<LocalDriver>,
    /// Overwrite the configuration and the program that builds the image; the key stays
    #[arg(long)]
    force: bool,
}

/// Kinds of machines that need no cloud.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LocalDriver {
    /// Containers of Podman or Docker
    Container,
    /// Virtual machines
    Qemu,
    /// A simulated cloud: it has no machines to log in to
    Fake,
}

pub(crate) async fn run(args: InitArgs) -> anyhow::Result<()> {
    let directory = std::path::absolute(&args.directory)
        .with_context(|| format!("invalid directory {}", args.directory.display()))?;
    let text = directory.to_str();
    // `%(` would be read as a variable.
    let usable = text.filter(|text| !text.contains("%(") && !text.contains(['\n', '\'']));
    let Some(directory_text) = usable else {
        bail!(
            "the name of {} contains characters that are not allowed in a configuration; choose another directory",
            directory.display()
        );
    };
    let file = directory.join(CONFIGURATION);
    let script = directory.join(SCRIPT);
    if !args.force {
        let there: Vec<String> = [&file, &script]
            .into_iter()
            .filter(|path| fs::symlink_metadata(path).is_ok())
            .map(|path| path.display().to_string())
            .collect();
        ensure!(
            there.is_empty(),
            "not overwritten: {}; give another directory, or --force",
            there.join(" and ")
        );
    }
    let host = HostCapabilities::detect().await;
    let drivers = choose(&args.drivers, &host);

    fs::create_dir_all(&directory)
        .with_context(|| format!("failed to create {}", directory.display()))?;
    let public = key::make_or_read(&directory.join(KEY))?;
    let parts = ConfigTemplate {
        directory: directory_text,
        drivers: &drivers,
        socket: host.named_socket.as_deref(),
        public_key: &public,
    };
    write(&script, SCRIPT_TEXT, 0o755)?;
    // Written last, so that an existing configuration is complete.
    write(&file, &parts.text(), 0o644)?;
    report(&directory, &drivers, &host)
}

/// Returns the requested drivers, or else those that work on this host, or else the simulated cloud.
fn choose(wanted: &[LocalDriver], host: &HostCapabilities) -> Vec<LocalDriver> {
    let all = [LocalDriver::Container, LocalDriver::Qemu, LocalDriver::Fake];
    if !wanted.is_empty() {
        return all
            .into_iter()
            .filter(|driver| wanted.contains(driver))
            .collect();
    }
    let mut drivers = Vec::new();
    if host.runtime.is_ok() {
        drivers.push(LocalDriver::Container);
    }
    if host.qemu.is_ok() {
        drivers.push(LocalDriver::Qemu);
    }
    if drivers.is_empty() {
        drivers.push(LocalDriver::Fake);
    }
    drivers
}

/// Replaces a file atomically.
fn write(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    let draft = path.with_added_extension("new");
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode)
            .open(&draft)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, path)
    };
    write().with_context(|| format!("failed to write {}", path.display()))
}

fn report(
    directory: &Path,
    drivers: &[LocalDriver],
    host: &HostCapabilities,
) -> anyhow::Result<()> {
    let file = directory.join(CONFIGURATION);
    let file = configuration::shell_word(&file.to_string_lossy());
    let key = directory.join(KEY);
    let key = configuration::shell_word(&key.to_string_lossy());
    println!("{file}: the configuration, with comments");
    println!("{}: builds the image", directory.join(SCRIPT).display());
    println!("{key}: the SSH key for logging in");
    println!();
    for driver in drivers {
        println!("{}", host.describe(*driver));
    }
    let missing = host.missing_packages(drivers);
    if !missing.is_empty() {
        println!();
        println!("The image cannot be built yet. On Debian or Ubuntu, as root:");
        println!("  apt-get install {}", missing.join(" "));
    }
    println!();
    println!("Start it; the image is built first, which takes a minute or two:");
    println!("  nodeyard -c {file} up");
    println!("See it happen, in another terminal:");
    println!("  nodeyard -c {file} image logs -f debian");
    println!("Get a machine; it says how to log in, and keeps the machine until Ctrl-C:");
    for driver in drivers {
        let label = configuration::label(*driver);
        println!("  nodeyard -c {file} request {label} -i {key}");
    }
    Ok(())
}
