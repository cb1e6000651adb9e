//! `nodeyard init`: a commented configuration for machines on this host, and what goes with it.
//!
//! Everything is in this binary: the configuration, in parts that are put together for what works here, the program
//! that makes the image, and a fresh key for the first login. Nothing that exists is overwritten without being asked,
//! and the key not even then: machines that exist know it.

mod configuration;
mod key;
mod surroundings;

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anstream::println;
use anyhow::{Context as _, bail, ensure};
use clap::{Args, ValueEnum};

use self::configuration::Parts;
use self::surroundings::Surroundings;

const CONFIGURATION: &str = "nodepool.yaml";
const SCRIPT: &str = "build-debian";
const KEY: &str = "id_ed25519";

const SCRIPT_TEXT: &str = include_str!("init/build-debian.sh");

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// Where to write it; made if it is missing
    #[arg(default_value = ".")]
    directory: PathBuf,
    /// Kind of machines, instead of all that work here; may be given several times
    #[arg(long = "driver", value_name = "DRIVER")]
    drivers: Vec<Machines>,
    /// Overwrite the configuration and the program that builds the image; the key stays
    #[arg(long)]
    force: bool,
}

/// Where machines can come from without a cloud.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Machines {
    /// Containers of Podman or Docker
    Container,
    /// Virtual machines
    Qemu,
    /// A simulated cloud: nobody can log in to its machines
    Fake,
}

pub(crate) async fn run(args: InitArgs) -> anyhow::Result<()> {
    let directory = std::path::absolute(&args.directory)
        .with_context(|| format!("{} cannot be used", args.directory.display()))?;
    let text = directory.to_str();
    // In the file it would be taken for a variable.
    let usable = text.filter(|text| !text.contains("%(") && !text.contains(['\n', '\'']));
    let Some(directory_text) = usable else {
        bail!(
            "the name of {} cannot be written into a configuration; choose another directory",
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
    let surroundings = Surroundings::look().await;
    let drivers = choose(&args.drivers, &surroundings);

    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let public = key::make_or_read(&directory.join(KEY))?;
    let parts = Parts {
        directory: directory_text,
        drivers: &drivers,
        socket: surroundings.named_socket.as_deref(),
        public_key: &public,
    };
    write(&script, SCRIPT_TEXT, 0o755)?;
    // Last, so that a file that is there is complete.
    write(&file, &parts.text(), 0o644)?;
    report(&directory, &drivers, &surroundings)
}

/// What was asked for, otherwise what works; where nothing does, there is still something to look at.
fn choose(wanted: &[Machines], surroundings: &Surroundings) -> Vec<Machines> {
    let all = [Machines::Container, Machines::Qemu, Machines::Fake];
    if !wanted.is_empty() {
        return all
            .into_iter()
            .filter(|machines| wanted.contains(machines))
            .collect();
    }
    let mut drivers = Vec::new();
    if surroundings.runtime.is_ok() {
        drivers.push(Machines::Container);
    }
    if surroundings.qemu.is_ok() {
        drivers.push(Machines::Qemu);
    }
    if drivers.is_empty() {
        drivers.push(Machines::Fake);
    }
    drivers
}

/// All of it or nothing, in place of what is there.
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
    write().with_context(|| format!("cannot write {}", path.display()))
}

fn report(
    directory: &Path,
    drivers: &[Machines],
    surroundings: &Surroundings,
) -> anyhow::Result<()> {
    let file = directory.join(CONFIGURATION);
    let file = configuration::shell_word(&file.to_string_lossy());
    let key = directory.join(KEY);
    let key = configuration::shell_word(&key.to_string_lossy());
    println!("{file}: the configuration; read its comments");
    println!("{}: makes the image", directory.join(SCRIPT).display());
    println!("{key}: the key that may log in");
    println!();
    for machines in drivers {
        println!("{}", surroundings.say(*machines));
    }
    let missing = surroundings.missing_packages(drivers);
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
    for machines in drivers {
        let label = configuration::label(*machines);
        println!("  nodeyard -c {file} request {label} -i {key}");
    }
    Ok(())
}
