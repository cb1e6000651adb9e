//! Runs a daemon in the background: detached from its terminal, with a PID file.
//!
//! A process with threads cannot fork safely, so the command starts the program again in a new session, and returns
//! when the new process reports that it is ready. Until then the new process writes errors to the terminal; after that
//! only to its log.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use nodeyard_model::ErrorCode;
use rustix::process::{Pid, getppid, setsid, test_kill_process};

use crate::error_codes::WithCode as _;
use crate::exit::CommandOutcome;

/// Marks the background process; its value is the process id of the command that started it.
const PARENT_VARIABLE: &str = "NODEYARD_BACKGROUND_OF";

const READY: &str = "ready\n";

/// Returns whether this process was started to run in the background.
pub(crate) fn is_child() -> bool {
    let starter = std::env::var(PARENT_VARIABLE)
        .ok()
        .and_then(|text| text.parse().ok());
    starter.is_some() && starter == getppid().map(|pid| pid.as_raw_nonzero().get())
}

/// Starts the program again in the background and returns when it is ready or has failed.
pub(crate) fn launch(pid_file: &Path) -> anyhow::Result<CommandOutcome> {
    ensure_not_running(pid_file).code(ErrorCode::AlreadyRunning)?;
    let binary = std::env::current_exe().context("failed to find the path of this program")?;
    let mut args = std::env::args_os();
    let mut command = Command::new(binary);
    if let Some(name) = args.next() {
        command.arg0(name);
    }
    let mut child = command
        .args(args)
        .env(PARENT_VARIABLE, std::process::id().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("failed to start the background process")?;
    let mut said = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut said)?;
    }
    if said == READY {
        return Ok(CommandOutcome::Success);
    }
    child.wait()?;
    // It has already printed the error.
    Ok(CommandOutcome::Failure)
}

/// The background process. Removes the PID file when dropped.
#[derive(Debug)]
pub(crate) struct BackgroundProcess {
    _pid_file: PidFile,
}

impl BackgroundProcess {
    /// Detaches this process from the terminal and writes the PID file.
    pub(crate) fn enter(pid_file: &Path) -> anyhow::Result<Self> {
        setsid().context("failed to create a session")?;
        let pid_file = PidFile::create(pid_file)?;
        // Otherwise the current file system could not be unmounted.
        std::env::set_current_dir("/").context("failed to change to the directory /")?;
        Ok(Self {
            _pid_file: pid_file,
        })
    }

    /// Lets the command that started this process return.
    pub(crate) fn ready(&self) -> anyhow::Result<()> {
        let nothing = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/null")?;
        let mut out = std::io::stdout();
        out.write_all(READY.as_bytes())?;
        out.flush()?;
        rustix::stdio::dup2_stdout(&nothing)?;
        rustix::stdio::dup2_stderr(&nothing)?;
        Ok(())
    }
}

/// A PID file, removed when dropped.
#[derive(Debug)]
struct PidFile {
    path: PathBuf,
}

impl PidFile {
    fn create(path: &Path) -> anyhow::Result<Self> {
        ensure_not_running(path).code(ErrorCode::AlreadyRunning)?;
        let writing = || {
            format!(
                "failed to write the pid file {}; create its directory, name another with -p, or stay in the \
                 foreground with -f",
                path.display()
            )
        };
        let mut file = File::create_new(path).with_context(writing)?;
        writeln!(file, "{}", std::process::id()).with_context(writing)?;
        Ok(Self {
            path: path.to_owned(),
        })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // A file that cannot be removed is detected as stale by the next start.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Fails if the process in the PID file is running; removes a stale file.
fn ensure_not_running(path: &Path) -> anyhow::Result<()> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        text => text.with_context(|| format!("failed to read the pid file {}", path.display()))?,
    };
    let pid = text.trim().parse().ok().and_then(Pid::from_raw);
    if let Some(pid) = pid
        && test_kill_process(pid) != Err(rustix::io::Errno::SRCH)
    {
        bail!(
            "process {} of the pid file {} is running; stop it first, or name another file with -p",
            pid.as_raw_nonzero(),
            path.display()
        );
    }
    std::fs::remove_file(path)
        .with_context(|| format!("failed to remove the stale pid file {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_pid_file_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        // No process has this id: it is above the largest that Linux gives.
        for stale in ["4194305\n", "nonsense", ""] {
            std::fs::write(&path, stale).unwrap();
            let file = PidFile::create(&path).unwrap();
            let own = std::fs::read_to_string(&path).unwrap();
            assert_eq!(own.trim(), std::process::id().to_string());
            assert!(
                PidFile::create(&path)
                    .unwrap_err()
                    .to_string()
                    .contains("is running")
            );
            drop(file);
            assert!(!path.exists());
        }
    }
}
