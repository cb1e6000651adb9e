//! Starts QEMU.

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
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Starts QEMU in `directory`; it may not answer yet. It holds `lock` as its standard input and never reads it.
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
        .map_err(|cause| {
            Error::retry(format!("failed to create the log of machine {id}")).because(cause)
        })?;
    find_binary(options)?;
    // A session of its own: signals to the session of the driver do not reach it.
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
        .ok_or_else(|| exit_error(id, directory))
}

/// Waits until QEMU answers. Fails with its log if it does not.
pub(super) async fn wait_until_answering(
    id: &LocalId,
    directory: &Path,
    process: &ProcessIdentity,
) -> Result<(), Error> {
    let answers = async {
        while Qmp::connect(directory).await.is_err() {
            sleep(POLL_INTERVAL).await;
        }
    };
    tokio::select! {
        answers = timeout(ANSWER_LIMIT, answers) => match answers {
            Ok(()) => Ok(()),
            Err(_) => {
                // The next attempt starts another process.
                let _killed = process.kill();
                let log = tail(&directory.join(QEMU_LOG)).unwrap_or_default();
                Err(Error::retry(format!("QEMU of machine {id} did not answer within {ANSWER_LIMIT:?}: {log}")))
            }
        },
        _exited = process.ended() => Err(exit_error(id, directory)),
    }
}

fn exit_error(id: &LocalId, directory: &Path) -> Error {
    let log = tail(&directory.join(QEMU_LOG)).unwrap_or_default();
    let class = if log.contains("Cannot allocate memory") || log.contains("No space left") {
        ErrorClass::Capacity
    } else if log.contains("Failed to get \"write\" lock") {
        // Another driver started it at the same moment, and was killed before it wrote the record.
        ErrorClass::Retry
    } else {
        ErrorClass::Permanent
    };
    Error::new(class, format!("QEMU exited before machine {id} ran: {log}"))
}

/// Fails with the remedy if QEMU is not installed, where `setsid` would report a missing file only.
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
    // The default of the system.
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
            "{binary} is not installed; on Debian it is in {package}, elsewhere set `binary`"
        ));
    }
    Error::permanent(format!("failed to run {binary}")).because(cause)
}
