//! Starting QEMU.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nodeyard_driver::{Error, ErrorClass};
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use super::console::{QEMU_LOG, tail};
use super::disk::missing_tool;
use super::process::ProcessIdentity;
use super::qmp::Qmp;
use crate::host::LocalId;
use crate::options::Options;

/// From the start of the process until it answers on its control socket.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

/// Starts QEMU in `directory`; it may not answer yet. It reads nothing, but keeps `lock` as its input.
pub(super) fn start(
    options: &Options,
    id: &LocalId,
    directory: &Path,
    arguments: &[String],
    lock: File,
) -> Result<ProcessIdentity, Error> {
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(directory.join(QEMU_LOG))
        .map_err(|cause| Error::retry(format!("machine {id} cannot have a log")).because(cause))?;
    find_binary(options)?;
    // In a session of its own no terminal and no end of ours concerns it.
    let child = Command::new("setsid")
        .arg(&*options.binary)
        .args(arguments)
        .current_dir(directory)
        .stdin(lock)
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .map_err(|cause| missing_tool("setsid", "util-linux", cause))?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    pid.and_then(ProcessIdentity::of)
        .ok_or_else(|| ended(id, directory))
}

/// Returns when a QEMU that was started answers, or fails with its words if it does not.
pub(super) async fn answering(
    id: &LocalId,
    directory: &Path,
    process: &ProcessIdentity,
) -> Result<(), Error> {
    let answers = async {
        while Qmp::connect(directory).await.is_err() {
            sleep(PAUSE).await;
        }
    };
    tokio::select! {
        answers = timeout(PATIENCE, answers) => match answers {
            Ok(()) => Ok(()),
            Err(_) => {
                // The next try starts another.
                let _killed = process.kill();
                let said = tail(&directory.join(QEMU_LOG)).unwrap_or_default();
                Err(Error::retry(format!("QEMU of machine {id} did not answer within {PATIENCE:?}: {said}")))
            }
        },
        _ended = process.ended() => Err(ended(id, directory)),
    }
}

fn ended(id: &LocalId, directory: &Path) -> Error {
    let said = tail(&directory.join(QEMU_LOG)).unwrap_or_default();
    let class = if said.contains("Cannot allocate memory") || said.contains("No space left") {
        ErrorClass::Capacity
    } else if said.contains("Failed to get \"write\" lock") {
        // Somebody started it at the same moment, and died before he could say so.
        ErrorClass::Retry
    } else {
        ErrorClass::Permanent
    };
    Error::new(class, format!("QEMU ended before machine {id} ran: {said}"))
}

/// `setsid` would only say that there is no such file.
pub(super) fn find_binary(options: &Options) -> Result<(), Error> {
    match find_program(&options.binary) {
        Some(_) => Ok(()),
        None => Err(qemu_error(options, io::ErrorKind::NotFound.into())),
    }
}

pub(super) fn find_program(name: &str) -> Option<std::path::PathBuf> {
    if name.contains('/') {
        return Some(name.into()).filter(|path: &std::path::PathBuf| path.is_file());
    }
    // Where the system looks when it is told nothing.
    let path = std::env::var_os("PATH").unwrap_or("/bin:/usr/bin".into());
    let mut candidates = std::env::split_paths(&path).map(|directory| directory.join(name));
    candidates.find(|file| file.is_file())
}

pub(super) fn qemu_error(options: &Options, cause: io::Error) -> Error {
    let binary = &options.binary;
    if cause.kind() == io::ErrorKind::NotFound {
        let package = match &*options.architecture {
            "x86_64" | "i386" => "qemu-system-x86",
            "aarch64" | "arm" => "qemu-system-arm",
            _ => "qemu-system-misc",
        };
        return Error::permanent(format!(
            "{binary} is not installed; on Debian it is in {package}, elsewhere name it with `binary`"
        ));
    }
    Error::permanent(format!("{binary} cannot be run")).because(cause)
}
