//! A daemon in the background: detached from its terminal, with a file that holds its process id.
//!
//! A process with threads cannot fork safely, so the command starts itself anew, in a session of its own, and returns
//! when the new process says that it works. Until then errors reach the terminal, as the new process still has its
//! standard error; after that only its log does.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use nodeyard_model::ErrorCode;
use rustix::process::{Pid, getppid, setsid, test_kill_process};

use crate::error_codes::WithCode as _;
use crate::exit::Outcome;

/// Tells the new process that it is one: its value is the process id of the command.
const MARK: &str = "NODEYARD_BACKGROUND_OF";

const READY: &str = "ready\n";

/// Whether this is the process that is to work in the background.
pub(crate) fn is_child() -> bool {
    let starter = std::env::var(MARK).ok().and_then(|text| text.parse().ok());
    starter.is_some() && starter == getppid().map(|pid| pid.as_raw_nonzero().get())
}

/// Starts this program anew and returns when it works, or with what kept it from that.
pub(crate) fn launch(pid_file: &Path) -> anyhow::Result<Outcome> {
    refuse_second(pid_file).code(ErrorCode::AlreadyRunning)?;
    let binary = std::env::current_exe().context("cannot find out where this program is")?;
    let mut args = std::env::args_os();
    let mut command = Command::new(binary);
    if let Some(name) = args.next() {
        command.arg0(name);
    }
    let mut child = command
        .args(args)
        .env(MARK, std::process::id().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a process for the background")?;
    let mut said = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut said)?;
    }
    if said == READY {
        return Ok(Outcome::Success);
    }
    child.wait()?;
    // It has said why.
    Ok(Outcome::Failure)
}

/// The process in the background.
#[derive(Debug)]
pub(crate) struct Detached {
    _pid_file: PidFile,
}

impl Detached {
    pub(crate) fn begin(pid_file: &Path) -> anyhow::Result<Self> {
        setsid().context("cannot leave the session of the terminal")?;
        let pid_file = PidFile::create(pid_file)?;
        // No file system is kept from being unmounted.
        std::env::set_current_dir("/").context("cannot go to /")?;
        Ok(Self {
            _pid_file: pid_file,
        })
    }

    /// Lets the command that started this return.
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

/// Removed when dropped.
#[derive(Debug)]
struct PidFile {
    path: PathBuf,
}

impl PidFile {
    fn create(path: &Path) -> anyhow::Result<Self> {
        refuse_second(path).code(ErrorCode::AlreadyRunning)?;
        let writing = || {
            format!(
                "cannot write the pid file {}; make its directory, name another with -p, or stay in the \
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
        // If it cannot be removed, the next one finds that nobody has this id.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Fails if the process of the pid file lives; removes a file that another one left behind.
fn refuse_second(path: &Path) -> anyhow::Result<()> {
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        text => text.with_context(|| format!("cannot read the pid file {}", path.display()))?,
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
        .with_context(|| format!("cannot remove the old pid file {}", path.display()))
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
